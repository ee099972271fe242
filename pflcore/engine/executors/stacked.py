"""The executor for GPUs: clients in stacks that are as large as memory allows.

A GPU that trains one small model at a time is idle most of the time. Here a step, written for one client, is vectorised
over clients with ``torch.func.vmap``; on CUDA the resulting hundreds of kernels are recorded once and replayed
(:mod:`~pflcore.engine.executors.graphs`).

A smaller batch is padded with samples of weight 0. A client that has finished still computes, though its state does not
change, until at most half of the stack has steps left: then the stack gets narrower.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from pflcore.data.upload import upload
from pflcore.engine.client import TRAINING, Diverged, Job, Outcome, Trainer
from pflcore.engine.evaluation import Scored, SplitScores, batch_size, by_split, join, score_client, score_shared_model
from pflcore.engine.executors.graphs import Replay, map_tree
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.vectorised import MorePasses, Step, vectorisable
from pflcore.faults import during
from pflcore.groups import Tensors
from pflcore.memory import TooLittleMemory, is_memory_error

Done = TypeVar("Done")
_NONE = torch.empty(0, dtype=torch.int64)  # rows of a client that takes no step


class Stacked(Sequential):
    """Trains and measures up to `width` clients at once, on the device of the data.

    If memory runs out, the width is halved and the clients of the stack start again; their received states are never
    modified, so nothing is lost. Measurements first halve the samples per pass. Results stay within float tolerance.
    """

    def __init__(self, trainer: Trainer, width: int) -> None:
        super().__init__(trainer)
        self.width, self.samples = width, batch_size(trainer)  # samples of all clients in one forward pass
        self.replay = Replay(trainer.data.device)
        self._passes = dict.fromkeys((TRAINING, *trainer.parts), 1)  # per part: forward passes in a step

    def __exit__(self, *_: object) -> None:
        self.replay.clear()

    def train(self, round_: int, jobs: Iterable[Job], part: int = TRAINING) -> Iterator[Outcome]:
        yield from self._in_stacks(jobs, lambda stack: self.train_stack(round_, stack, part), measures=False)

    def score_each(self, jobs: Iterable[Job], part: int = TRAINING) -> Scored:
        return join(self._in_stacks(jobs, lambda stack: self._score(stack, part), measures=True))

    def score_shared(self, state: Tensors, part: int = TRAINING) -> Scored:
        while True:
            try:
                return score_shared_model(self.trainer.part(part), state, self.samples)
            except Exception as error:
                short = _shortage(error)
            self._use_less(1, short, measures=True)

    def _in_stacks(
        self, jobs: Iterable[Job], run: Callable[[Sequence[Job]], list[Done]], *, measures: bool
    ) -> Iterator[Done]:
        """Yield the results of `run` for the jobs, in stacks of at most `width` jobs, fewer if memory runs out."""
        rest, waiting = iter(jobs), list[Job]()
        while waiting := waiting + list(islice(rest, max(0, self.width - len(waiting)))):
            stack = waiting[: self.width]
            done = []
            short = ""
            try:
                done = run(stack)
            except Exception as error:
                short = _shortage(error)
            if short:  # outside of the handler, because the error refers to the tensors that filled the memory
                self._use_less(len(stack), short, measures=measures)
            waiting = waiting[len(done) :]
            yield from done

    def _use_less(self, clients: int, short: str, *, measures: bool) -> None:
        """Halve samples or clients per pass after `clients` did not fit. Raises :class:`TooLittleMemory` if it is 1."""
        self.replay.clear()
        torch.cuda.empty_cache()
        if measures and self.samples > clients:
            self.samples //= 2
        elif clients > 1:
            self.width = clients // 2
        else:
            raise TooLittleMemory(
                f"not enough memory on {self.trainer.data.device} for one client ({short}); "
                "use a smaller batch_size, or PFL_DEVICE=cpu"
            )

    def train_stack(self, round_: int, jobs: Sequence[Job], part: int) -> list[Outcome]:
        trainer = self.trainer.part(part)
        if not trainer.method.supports_vmap:
            return [trainer.train(round_, client, received) for client, received in jobs]
        while True:
            try:
                with _noting(jobs):
                    return self._side_by_side(trainer, round_, jobs, part)
            except MorePasses:
                self._passes[part] *= 2

    def _side_by_side(self, trainer: Trainer, round_: int, jobs: Sequence[Job], key: int) -> list[Outcome]:
        """Take all local steps of clients; return outcomes whose states are views of the stacked ones, not copies."""
        pads = can_pad(trainer)
        cohort = [trainer.local.batches(round_, client) for client, _ in jobs]
        turns = list(take_turns([[len(batch) for batch in own] for own in cohort], pads))
        order, widths = narrowing(turns, len(jobs)) if pads else (range(len(jobs)), [len(jobs)] * len(turns))
        clients, cohort = [jobs[one][0] for one in order], [cohort[one] for one in order]
        turns = [[turn[one] for one in order[:width]] for turn, width in zip(turns, widths, strict=True)]
        size = min(trainer.training.batch_size, max(map(len, trainer.data.train))) if pads else 0
        device = trainer.data.device
        passes = self._passes[key]
        rows = []
        for turn in turns:
            some = [_NONE if at is None else own[at] for at, own in zip(turn, cohort, strict=False)]
            rows.append(_padded(some, size or max(map(len, some))))
        first = torch.tensor([[trainer.local.first(client)] for client in clients])
        numbers = [first[: len(turn)] + torch.tensor([[at or 0] for at in turn]) for turn in turns]
        trainer.model.train()
        step = Step(trainer, pads)
        taken: list[Tensor] = []
        ended: list[Tensors] = []  # models of the lanes that have ended, the last lanes first
        with vectorisable():
            received = stack_states([jobs[one][1] for one in order])
            state = step.begin(received)
            drawn = trainer.data.batches([one.clamp_min(0) for one in rows], round_, numbers)
            weights = upload([_weights(one) for one in rows], device)
            rates = upload([_rates(trainer, round_, clients[: len(turn)], turn) for turn in turns], device)
            for turn, own, batch, weight, rate in zip(turns, rows, drawn, weights, rates, strict=True):
                width = len(turn)
                if width < len(taken[-1] if taken else jobs):
                    ended.append(step.end(*_lanes((state, received), slice(width, None)))["model"])
                    state, received = _lanes((state, received), slice(width))
                noise = _noise(trainer, round_, clients[:width], turn, own, passes)
                data = batch.inputs, batch.labels, noise, rate, weight
                state, losses = self.replay(key, step.all, state, received, *data)
                taken.append(losses)
            ended.append(step.end(state, received)["model"])
        parts = {name: [lane for model in reversed(ended) for lane in model[name].unbind()] for name in ended[0]}
        losses_of = _mean_losses(taken, turns, len(clients))
        outcomes = []
        for lane in np.argsort(order):  # the jobs' order
            if not math.isfinite(losses_of[lane]):
                raise Diverged(round_, clients[lane])
            model = {name: part[lane] for name, part in parts.items()}
            outcomes.append(Outcome(clients[lane], model, losses_of[lane]))
        return outcomes

    @torch.no_grad()
    def _score(self, jobs: Sequence[Job], part: int) -> list[SplitScores]:
        """Return scores of clients; samples are padded to the same number, and do not interact in evaluation mode."""
        trainer = self.trainer.part(part)
        data = trainer.data
        if trainer.method.remembers:  # such predictions are computed for one client at a time
            return [score_client(trainer, state, client, self.samples) for client, state in jobs]
        trainer.model.eval()
        rows = [data.measured(client) for client, _ in jobs]
        size = max(1, self.samples // len(jobs))
        chunks = torch.split(_padded(rows, max(map(len, rows))).clamp_min(0), size, 1)
        state = stack_states([state for _, state in jobs])
        parts = []
        with vectorisable(), _noting(jobs):
            for batch in data.batches(chunks):
                parts.append(trainer.task.measure(vmap(trainer.predict)(state, batch.inputs), batch.labels))
        measured = [torch.cat(part, 1).cpu().numpy() for part in zip(*parts, strict=True)]
        return [
            by_split(trainer, client, tuple(part[index, : len(rows[index])] for part in measured))
            for index, (client, _) in enumerate(jobs)
        ]


Turn = list[int | None]  # for each client the number of the step that it takes, from 0, or None if it takes none


def take_turns(sizes: Sequence[Sequence[int]], pads: bool) -> Iterator[Turn]:
    """Yield turns: in each, which clients take which of their steps together; `sizes` are the sizes of their batches.

    If `pads`, all clients take step after step. Otherwise only batches of equal size go together, the smallest first: a
    client takes the small batch at the end of its epoch while others wait, so that all full batches go together.
    """
    at = [0] * len(sizes)
    while upcoming := {one: own[at[one]] for one, own in enumerate(sizes) if at[one] < len(own)}:
        smallest = min(upcoming.values())
        go = {one for one, size in upcoming.items() if pads or size == smallest}
        turn: Turn = [step if one in go else None for one, step in enumerate(at)]
        yield turn
        at = [done + (step is not None) for done, step in zip(at, turn, strict=True)]


def narrowing(turns: Sequence[Turn], clients: int) -> tuple[list[int], list[int]]:
    """Return the clients, those that end last first, and how many of them compute in each turn.

    So a narrower stack is the beginning of a wider one. Widths are halves of halves, because each one is recorded.
    """
    ends = [max((at for at, turn in enumerate(turns, 1) if turn[one] is not None), default=0) for one in range(clients)]
    widths, width = [], clients
    for at in range(len(turns)):
        while -(-width // 2) >= sum(end > at for end in ends) and width > 1:
            width = -(-width // 2)
        widths.append(width)
    return sorted(range(clients), key=lambda one: -ends[one]), widths


def can_pad(trainer: Trainer) -> bool:
    """Return whether a client's step on a padded batch equals its step on the batch.

    The method must state this about its loss and step (:attr:`~pflcore.method.Method.ignores_unlabelled`), and the
    model must have no running statistics except those of batch norm, and dropout with samples as first dimension.
    """
    line = type(trainer.method).__mro__

    def place(name: str) -> int:
        """Return the position, in the method resolution order, of the class that defines the attribute."""
        return next(index for index, kind in enumerate(line) if name in vars(kind))

    # The attribute describes the loss and the step of its class, not those that a derived class overrides.
    said = place("ignores_unlabelled") <= min(place("loss"), place("step"))
    plain = trainer.method.ignores_unlabelled and said
    return plain and not trainer.other_statistics and trainer.noise.by_sample


def stack_states(states: Sequence[Tensors]) -> Tensors:
    """Return states stacked along a new first dimension. Do not modify it: an entry that all share is stored once."""
    stacked = {}
    for name, first in states[0].items():
        same = all(state[name] is first for state in states)
        stacked[name] = first.expand(len(states), *first.shape) if same else torch.stack([s[name] for s in states])
    return stacked


def _lanes(trees: Any, lanes: slice) -> Any:
    """Return some clients' part of stacked states, as views."""
    return map_tree(lambda tensor: tensor[lanes], trees)


def _padded(lists: Sequence[Tensor], size: int) -> Tensor:
    """Return lists of rows as (lists, size); shorter lists are padded with -1 at the end."""
    return torch.stack([F.pad(rows, (0, size - len(rows)), value=-1) for rows in lists])


def _weights(rows: Tensor) -> Tensor:
    """Return weights (clients, batch), 1 for samples and 0 for padding; (clients, 0) if there is no padding."""
    weights = (rows >= 0).float()
    return weights[:, :0] if weights.all() else weights


def _rates(trainer: Trainer, round_: int, clients: Sequence[int], turn: Turn) -> Tensor:
    if not trainer.training.scheduled:
        return torch.empty(len(turn), 0)
    steps = zip(clients, turn, strict=True)
    return torch.tensor([0.0 if at is None else trainer.learning_rate(round_, one, at) for one, at in steps])


def _noise(trainer: Trainer, round_: int, clients: Sequence[int], turn: Turn, rows: Tensor, passes: int) -> Tensor:
    source = trainer.noise
    if not source.per_sample:
        return torch.empty(len(turn), 0, device=source.device)
    drawn = []
    for client, at, own in zip(clients, turn, rows, strict=True):
        samples = int((own >= 0).sum())
        for one_pass in range(passes):
            drawn.append(source.fill(trainer.masks(samples, round_, client, at or 0, one_pass), samples, len(own)))
    return torch.stack(drawn).view(len(turn), passes, -1)


def _mean_losses(taken: Sequence[Tensor], turns: Sequence[Turn], clients: int) -> list[float]:
    if not taken:
        return [0.0] * clients
    stepped = np.array([[*(at is not None for at in turn), *[False] * (clients - len(turn))] for turn in turns])
    losses = torch.stack([F.pad(one, (0, clients - len(one))) for one in taken]).cpu().numpy()  # one copy to the host
    sums = np.where(stepped, losses, 0).sum(0, dtype=np.float64)
    return list(map(float, sums / np.maximum(stepped.sum(0), 1)))


def _noting(jobs: Sequence[Job]) -> AbstractContextManager[None]:
    clients = ", ".join(str(client) for client, _ in jobs)
    return during(f"clients {clients} stacked; PFL_EXECUTOR=sequential takes one at a time without vmap")


def _shortage(error: Exception) -> str:
    """Return the first line of an out-of-memory error; raise any other error again."""
    if not is_memory_error(error):
        raise error
    return str(error).splitlines()[0]
