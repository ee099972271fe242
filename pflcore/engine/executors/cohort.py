"""The clients that are trained side by side: their states stacked, and who takes a step when.

Batches of one size go together. A client whose next batch is smaller has it filled up, where that leaves its step as it
is, and else waits for others in the same position; a client that is done drops out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from pflcore.data.upload import upload
from pflcore.engine.divergence import Diverged
from pflcore.engine.executors.filling import can_fill, filled_labels, filled_rows
from pflcore.engine.executors.replay import Replay
from pflcore.engine.executors.ticks import Tick, by_size, side_by_side
from pflcore.engine.executors.vectorised import Step, vectorisable
from pflcore.engine.trainer import Job, Outcome, Trainer
from pflcore.groups import Tensors
from pflcore.method import Batch, LocalState


class Cohort:
    """The clients that are trained together.

    Args:
        passes: Forward passes of a step that dropout masks are drawn for.
        jobs: What each client receives in the round.
    """

    def __init__(self, trainer: Trainer, replay: Replay, passes: int, round_: int, jobs: Sequence[Job]) -> None:
        self.trainer, self.replay, self.passes, self.round = trainer, replay, passes, round_
        self.clients = [client for client, _ in jobs]
        self.single = [received for _, received in jobs]
        self.received = stack_states(self.single)
        self.rows = [trainer.batches(round_, client) for client in self.clients]
        self.losses: list[Tensor] = []  # of the clients of each tick
        self.step = Step(trainer)
        self.tick = [(one, 0) for one in range(len(jobs))]  # the clients that are at work, and their steps before

    def train(self) -> list[Outcome]:
        """Take all local steps of all clients. Raises :class:`Diverged` for the first client that diverges."""
        trainer, device = self.trainer, self.trainer.data.device
        trainer.model.train()
        with vectorisable():
            state = vmap(self.step.begin)(self.received)
            order = side_by_side if can_fill(trainer) else by_size
            ticks = list(order([[len(batch) for batch in batches] for batches in self.rows]))
            rows = [filled_rows([self.rows[one][step] for one, step in tick]) for tick in ticks]
            numbers = [
                torch.tensor([[trainer.number(self.clients[one], step)] for one, step in tick]) for tick in ticks
            ]
            batches = trainer.data.batches(rows, self.round, numbers)
            places = upload([torch.tensor([one for one, _ in tick]) for tick in ticks], device)
            sizes = upload([torch.tensor(self._sizes(tick)) for tick in ticks], device)
            rates = upload([self._rates(tick) for tick in ticks], device)
            for tick, batch, *rest in zip(ticks, batches, places, sizes, rates, strict=True):
                self.tick = tick
                state = self._advance(state, tick, batch, *rest)
            self.tick = [(one, len(batches)) for one, batches in enumerate(self.rows)]
            state = vmap(self.step.end)(self.replay.own(state), self.received)
        return self._outcomes(ticks, state["model"])

    def suspects(self) -> dict[int, Callable[[], None]]:
        """For each client that is at work: its training so far, with the step that it is at, by itself."""
        return {self.clients[one]: partial(self._alone, one, step) for one, step in self.tick}

    def _alone(self, one: int, step: int) -> None:
        trainer, round_, client, received = self.trainer, self.round, self.clients[one], self.single[one]
        with trainer.at(round_, client):
            unfinished = trainer.advance(round_, client, received, trainer.begin(received), step + 1)
            if step == len(self.rows[one]):
                trainer.finish(round_, client, received, unfinished)

    def _advance(
        self, state: LocalState, tick: Tick, batch: Batch, places: Tensor, sizes: Tensor, rates: Tensor
    ) -> LocalState:
        """One step of the clients in `tick`; the others stay as they are."""
        if len(set(self._sizes(tick))) > 1:
            batch = Batch(batch.inputs, filled_labels(batch.labels, sizes))
        inputs = batch.inputs, batch.labels, self._noise(tick), rates
        if len(tick) == len(self.clients):
            state, losses = self.replay(vmap(self.step), state, self.received, *inputs)
        else:
            state = self.replay.own(state)
            some = {key: _select(part, places) for key, part in state.items()}
            after, losses = self.replay(vmap(self.step), some, _select(self.received, places), *inputs)
            state = {key: _put(state.get(key, {}), places, part, len(self.clients)) for key, part in after.items()}
        self.losses.append(losses)
        return state

    def _sizes(self, tick: Tick) -> list[int]:
        """Of the clients' batches, before they are filled up."""
        return [len(self.rows[one][step]) for one, step in tick]

    def _rates(self, tick: Tick) -> Tensor:
        """The clients' learning rates: (clients,), or (clients, 0) where they never vary."""
        if not self.trainer.training.scheduled:
            return torch.empty(len(tick), 0)
        return torch.tensor([self.trainer.learning_rate(self.round, self.clients[one], step) for one, step in tick])

    def _noise(self, tick: Tick) -> Tensor:
        """The random numbers of the clients' forward passes: (clients, passes, numbers)."""
        source = self.trainer.noise
        if not source.per_sample:
            return torch.empty(len(tick), 0, device=source.device)
        sizes, drawn = self._sizes(tick), []
        for (one, step), samples in zip(tick, sizes, strict=True):
            for one_pass in range(self.passes):
                bits = self.trainer.masks(samples, self.round, self.clients[one], step, one_pass)
                drawn.append(source.fill(bits, samples, max(sizes)))
        return torch.stack(drawn).view(len(tick), self.passes, -1)

    def _outcomes(self, ticks: Sequence[Tick], models: Tensors) -> list[Outcome]:
        """Of each client; its model is a part of the stacked ones, not a copy."""
        places = [one for tick in ticks for one, _ in tick]
        losses = torch.cat(self.losses).cpu().numpy() if places else None  # one look at the device
        sums, counts = (np.bincount(places, weights, len(self.clients)) for weights in (losses, None))
        means = sums / np.maximum(counts, 1)
        parts = {name: tensor.unbind() for name, tensor in models.items()}
        outcomes = []
        for index, (client, mean) in enumerate(zip(self.clients, means, strict=True)):
            if not math.isfinite(mean):
                raise Diverged(self.round, client)
            outcomes.append(Outcome(client, {name: part[index] for name, part in parts.items()}, float(mean)))
        return outcomes


def stack_states(states: Sequence[Tensors]) -> Tensors:
    """States with the same entries as one, along a new first dimension; not to be modified.

    An entry that all have from the server is there once.
    """
    stacked = {}
    for name, first in states[0].items():
        same = all(state[name] is first for state in states)
        stacked[name] = first.expand(len(states), *first.shape) if same else torch.stack([s[name] for s in states])
    return stacked


def _select(stacked: Tensors, index: Tensor) -> Tensors:
    return {name: tensor[index] for name, tensor in stacked.items()}


def _put(stacked: Tensors, index: Tensor, some: Tensors, count: int) -> Tensors:
    """`stacked` with the rows in `index` replaced; entries that are new begin as zeros for the other rows."""
    result = {}
    for name, rows in some.items():
        whole = stacked[name] if name in stacked else rows.new_zeros(count, *rows.shape[1:])
        result[name] = whole.index_copy(0, index, rows)
    return result
