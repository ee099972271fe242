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
from pflcore.engine.executors.vectorised import Step, TooFewMasks, vectorisable
from pflcore.faults import during
from pflcore.groups import Tensors
from pflcore.memory import TooLittleMemory, is_memory_error

Item = TypeVar("Item")
_NO_ROWS = torch.empty(0, dtype=torch.int64)  # of a client that takes no step


class Stacked(Sequential):
    """Trains and measures up to `width` clients together, on the device of the data.

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
                message = _memory_message(error)
            self._reduce(1, message, measures=True)

    def _in_stacks(
        self, jobs: Iterable[Job], run: Callable[[Sequence[Job]], list[Item]], *, measures: bool
    ) -> Iterator[Item]:
        """Yield the results of `run` for the jobs, in stacks of at most `width` jobs, fewer if memory runs out."""
        remaining, waiting = iter(jobs), list[Job]()
        while waiting := waiting + list(islice(remaining, max(0, self.width - len(waiting)))):
            stack = waiting[: self.width]
            results = []
            message = ""
            try:
                results = run(stack)
            except Exception as error:
                message = _memory_message(error)
            if message:  # outside of the handler, because the error refers to the tensors that filled the memory
                self._reduce(len(stack), message, measures=measures)
            waiting = waiting[len(results) :]
            yield from results

    def _reduce(self, clients: int, message: str, *, measures: bool) -> None:
        """Halve samples or clients per pass after `clients` did not fit. Raises :class:`TooLittleMemory` if it is 1."""
        self.replay.clear()
        torch.cuda.empty_cache()
        if measures and self.samples > clients:
            self.samples //= 2
        elif clients > 1:
            self.width = clients // 2
        else:
            raise TooLittleMemory(
                f"not enough memory on {self.trainer.data.device} for one client ({message}); "
                "use a smaller batch_size, or PFL_DEVICE=cpu"
            )

    def train_stack(self, round_: int, jobs: Sequence[Job], part: int) -> list[Outcome]:
        trainer = self.trainer.part(part)
        if not trainer.method.supports_vmap:
            return [trainer.train(round_, client, received) for client, received in jobs]
        while True:
            try:
                with _error_note(jobs):
                    return self._train_vectorised(trainer, round_, jobs, part)
            except TooFewMasks:
                self._passes[part] *= 2

    def _train_vectorised(self, trainer: Trainer, round_: int, jobs: Sequence[Job], key: int) -> list[Outcome]:
        """Take all local steps of clients; return outcomes whose states are views of the stacked ones, not copies."""
        pads = can_pad(trainer)
        cohort = [trainer.local.batches(round_, client) for client, _ in jobs]
        turns = list(schedule([[len(batch) for batch in batches] for batches in cohort], pads))
        order, widths = narrow(turns, len(jobs)) if pads else (range(len(jobs)), [len(jobs)] * len(turns))
        clients, cohort = [jobs[job][0] for job in order], [cohort[job] for job in order]
        turns = [[turn[job] for job in order[:width]] for turn, width in zip(turns, widths, strict=True)]
        size = min(trainer.training.batch_size, max(map(len, trainer.data.train))) if pads else 0
        device, passes, rows = trainer.data.device, self._passes[key], []
        for turn in turns:
            batches = [_NO_ROWS if step is None else cohort[lane][step] for lane, step in enumerate(turn)]
            rows.append(_padded(batches, size or max(map(len, batches))))
        first = torch.tensor([[trainer.local.first(client)] for client in clients])
        numbers = [first[: len(turn)] + torch.tensor([[step or 0] for step in turn]) for turn in turns]
        trainer.model.train()
        vectorised, losses = Step(trainer, pads), list[Tensor]()
        finished: list[Tensors] = []  # models of the lanes without further steps, the last lanes first
        with vectorisable():
            received = stack_states([jobs[job][1] for job in order])
            state = vectorised.begin(received)
            data = trainer.data.batches([step_rows.clamp_min(0) for step_rows in rows], round_, numbers)
            weights = upload([_weights(step_rows) for step_rows in rows], device)
            rates = upload([_rates(trainer, round_, clients[: len(turn)], turn) for turn in turns], device)
            for turn, step_rows, batch, weight, rate in zip(turns, rows, data, weights, rates, strict=True):
                width = len(turn)
                if width < len(losses[-1] if losses else jobs):
                    finished.append(vectorised.end(*_lanes((state, received), slice(width, None)))["model"])
                    state, received = _lanes((state, received), slice(width))
                noise = _noise(trainer, round_, clients[:width], turn, step_rows, passes)
                step_data = batch.inputs, batch.labels, noise, rate, weight
                state, loss = self.replay(key, vectorised.take, state, received, *step_data)
                losses.append(loss)
            finished.append(vectorised.end(state, received)["model"])
        models = {name: [lane for model in reversed(finished) for lane in model[name].unbind()] for name in finished[0]}
        means = _mean_losses(losses, turns, len(clients))
        outcomes = []
        for lane in np.argsort(order):  # the jobs' order
            if not math.isfinite(means[lane]):
                raise Diverged(round_, clients[lane])
            model = {name: tensors[lane] for name, tensors in models.items()}
            outcomes.append(Outcome(clients[lane], model, means[lane]))
        return outcomes

    @torch.no_grad()
    def _score(self, jobs: Sequence[Job], part: int) -> list[SplitScores]:
        """Return scores of clients; samples are padded to the same number, and do not interact in evaluation mode."""
        trainer = self.trainer.part(part)
        data = trainer.data
        if trainer.method.remembers:  # such predictions are computed for one client at a time
            return [score_client(trainer, state, client, self.samples) for client, state in jobs]
        trainer.model.eval()
        rows = [data.evaluation_rows(client) for client, _ in jobs]
        size = max(1, self.samples // len(jobs))
        chunks = torch.split(_padded(rows, max(map(len, rows))).clamp_min(0), size, 1)
        state = stack_states([state for _, state in jobs])
        parts = []
        with vectorisable(), _error_note(jobs):
            for batch in data.batches(chunks):
                parts.append(trainer.task.measure(vmap(trainer.predict)(state, batch.inputs), batch.labels))
        measured = [torch.cat(part, 1).cpu().numpy() for part in zip(*parts, strict=True)]
        return [
            by_split(trainer, client, tuple(part[index, : len(rows[index])] for part in measured))
            for index, (client, _) in enumerate(jobs)
        ]


Turn = list[int | None]  # for each client the number of the step that it takes, from 0, or None if it takes none


def schedule(sizes: Sequence[Sequence[int]], pads: bool) -> Iterator[Turn]:
    """Yield turns: in each, which clients take which of their steps together; `sizes` are the sizes of their batches.

    If `pads`, all clients take step after step. Otherwise only batches of equal size go together, the smallest first: a
    client takes the small batch at the end of its epoch while others wait, so that all full batches go together.
    """
    steps = [0] * len(sizes)
    while upcoming := {i: sizes[i][step] for i, step in enumerate(steps) if step < len(sizes[i])}:
        smallest = min(upcoming.values())
        turn: Turn = [None] * len(sizes)
        for i, size in upcoming.items():
            if pads or size == smallest:
                turn[i] = steps[i]
                steps[i] += 1
        yield turn


def narrow(turns: Sequence[Turn], clients: int) -> tuple[list[int], list[int]]:
    """Return the clients, those that end last first, and how many of them compute in each turn.

    So a narrower stack is the beginning of a wider one. Widths are halves of halves, because each one is recorded.
    """
    ends = [0] * clients
    for number, turn in enumerate(turns, 1):
        for client, step in enumerate(turn):
            if step is not None:
                ends[client] = number
    widths, width = [], clients
    for index in range(len(turns)):
        while -(-width // 2) >= sum(end > index for end in ends) and width > 1:
            width = -(-width // 2)
        widths.append(width)
    return sorted(range(clients), key=lambda client: -ends[client]), widths


def can_pad(trainer: Trainer) -> bool:
    """Return whether a client's step on a padded batch equals its step on the batch.

    The method must state this about its loss and step (:attr:`~pflcore.method.Method.ignores_unlabelled`), and the
    model must have no running statistics except those of batch norm, and dropout with samples as first dimension.
    """
    if trainer.other_statistics or not trainer.noise.by_sample:
        return False
    # The attribute describes the loss and the step of its class, not those that a derived class overrides.
    names = {"ignores_unlabelled", "loss", "step"}
    definer = next(kind for kind in type(trainer.method).__mro__ if names & vars(kind).keys())
    return trainer.method.ignores_unlabelled and "ignores_unlabelled" in vars(definer)


def stack_states(states: Sequence[Tensors]) -> Tensors:
    """Return states stacked along a new first dimension. Do not modify it: an entry that all share is stored once."""
    stacked = {}
    for name, first in states[0].items():
        tensors = [state[name] for state in states]
        shared = all(tensor is first for tensor in tensors)
        stacked[name] = first.expand(len(states), *first.shape) if shared else torch.stack(tensors)
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
    return torch.tensor(
        [0.0 if step is None else trainer.learning_rate(round_, client, step) for client, step in steps]
    )


def _noise(trainer: Trainer, round_: int, clients: Sequence[int], turn: Turn, rows: Tensor, passes: int) -> Tensor:
    source = trainer.noise
    if not source.per_sample:
        return torch.empty(len(turn), 0, device=source.device)
    bits = []
    for client, step, samples in zip(clients, turn, (rows >= 0).sum(1).tolist(), strict=True):
        for index in range(passes):
            mask = trainer.masks(samples, round_, client, step or 0, index)
            bits.append(source.fill(mask, samples, rows.shape[1]))
    return torch.stack(bits).view(len(turn), passes, -1)


def _mean_losses(losses: Sequence[Tensor], turns: Sequence[Turn], clients: int) -> list[float]:
    if not losses:
        return [0.0] * clients
    stepped = np.zeros((len(turns), clients), bool)
    for row, turn in zip(stepped, turns, strict=True):
        row[: len(turn)] = [step is not None for step in turn]
    padded = torch.stack([F.pad(loss, (0, clients - len(loss))) for loss in losses]).cpu().numpy()  # one copy
    means: list[float] = (np.where(stepped, padded, 0).sum(0, dtype=np.float64) / stepped.sum(0).clip(1)).tolist()
    return means


def _error_note(jobs: Sequence[Job]) -> AbstractContextManager[None]:
    clients = ", ".join(str(client) for client, _ in jobs)
    return during(f"clients {clients} stacked; PFL_EXECUTOR=sequential takes one at a time without vmap")


def _memory_message(error: Exception) -> str:
    """Return the first line of an out-of-memory error; raise any other error again."""
    if not is_memory_error(error):
        raise error
    return str(error).splitlines()[0]
