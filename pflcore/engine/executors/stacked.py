"""A cohort at once: the models of several clients stacked, and every step taken for all of them together.

A GPU that trains one small model at a time is idle for most of it. Here a client's step, written for one client, is
vectorised over clients with ``torch.func.vmap``; on CUDA the resulting hundreds of kernels are recorded once and
replayed (:mod:`~pflcore.engine.executors.replay`). Batches of one size go together: a client whose next batch is
smaller waits for others in the same position, and a client that is done drops out, so nothing is padded and nothing
computed in vain.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pflcore.engine.divergence import Diverged
from pflcore.engine.evaluate import Both, Scores, batch_size, by_side, measure, score_both, score_one_model
from pflcore.engine.executors.pieces import schedule
from pflcore.engine.executors.replay import Replay
from pflcore.engine.optimizers import Rate
from pflcore.engine.trainer import Job, Outcome, Trainer, chosen
from pflcore.errors import UserError
from pflcore.faults import locate
from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView, LocalState

Done = TypeVar("Done")

# Attention as two matrix products, which vmap knows how to vectorise; fused kernels it does not.
_vectorisable = partial(sdpa_kernel, SDPBackend.MATH)


class Stacked:
    """Trains and measures up to `width` clients at once, on the device of the data.

    When memory does not suffice, the width is halved and the clients at hand start again; what they receive is never
    modified, so nothing is lost. The width changes results within float tolerance.
    """

    def __init__(self, trainer: Trainer, width: int) -> None:
        self.trainer = trainer
        self.width = width
        # Of training and of tuning: what has been recorded of a step, and how many forward passes it makes.
        self._replays = {tuning: Replay(trainer.data.device) for tuning in (False, True)}
        self._passes = {False: 1, True: 1}

    def __enter__(self) -> Stacked:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def train(self, round_: int, jobs: Iterable[Job], tuning: bool = False) -> Iterator[Outcome]:
        """Outcomes in the order of the jobs. Raises :class:`Diverged` for the first that diverges, in that order."""
        yield from self._in_stacks(jobs, lambda stack: self._train(round_, stack, tuning))

    def score_each(self, jobs: Iterable[Job]) -> Scores:
        """Scores of every job's own model on its client's samples."""
        return Scores.join(self._in_stacks(jobs, self._score))

    def score_shared(self, state: Tensors) -> Scores:
        """Scores of one model that all clients share."""
        return score_one_model(self.trainer, state)

    def _in_stacks(self, jobs: Iterable[Job], run: Callable[[Sequence[Job]], list[Done]]) -> Iterator[Done]:
        """What `run` gives for the jobs, in stacks of at most the width for which there is memory."""
        rest, waiting = iter(jobs), deque[Job]()
        while True:
            waiting.extend(islice(rest, max(0, self.width - len(waiting))))
            if not waiting:
                return
            stack = list(islice(waiting, self.width))
            try:
                done = run(stack)
            except torch.OutOfMemoryError as error:
                if self.width == 1:
                    raise UserError(
                        f"not enough memory on {self.trainer.data.device} for one client "
                        f"({str(error).splitlines()[0]}); use a smaller batch_size, or PFL_DEVICE=cpu"
                    ) from None
                done = []
            if not done:  # outside of the handler, which holds on to the tensors that filled the memory
                self.width = max(1, len(stack) // 2)
                self._clear()
                torch.cuda.empty_cache()
            for one in done:
                waiting.popleft()
                yield one

    def _train(self, round_: int, jobs: Sequence[Job], tuning: bool) -> list[Outcome]:
        trainer, replay = chosen(self.trainer, tuning), self._replays[tuning]
        while True:
            cohort = _Cohort(trainer, replay, self._passes[tuning], round_, jobs)
            try:
                return _or_blame(cohort.train, cohort.suspects)
            except _MorePasses:
                self._passes[tuning] *= 2
                replay.clear()

    def _clear(self) -> None:
        for replay in self._replays.values():
            replay.clear()

    @torch.no_grad()
    def _score(self, jobs: Sequence[Job]) -> list[Both]:
        if self.trainer.method.remembers:  # neighbours are sought for one client at a time
            return [score_both(self.trainer, state, client) for client, state in jobs]
        alone = {client: partial(score_both, self.trainer, state, client) for client, state in jobs}
        return _or_blame(lambda: self._score_stacked(jobs), lambda: alone)

    def _score_stacked(self, jobs: Sequence[Job]) -> list[Both]:
        """Samples are padded to the same number for all: in evaluation mode they do not affect each other."""
        trainer, data = self.trainer, self.trainer.data
        trainer.model.eval()
        own = [data.measured(client) for client, _ in jobs]
        sizes = [len(rows) for rows in own]
        rows = torch.stack([F.pad(each, (0, max(sizes) - len(each))) for each in own])
        state = _stack([received for _, received in jobs])
        chunks = torch.split(rows, max(1, batch_size(data.device) // len(jobs)), dim=1)
        parts = []
        with _vectorisable():
            for batch in data.batches(chunks):
                parts.append(measure(vmap(trainer.predict)(state, batch.inputs), batch.labels, data.is_text))
        hits, losses, last = (torch.cat(part, 1).cpu().numpy() for part in zip(*parts, strict=True))
        return [
            by_side((hits[index, :size], losses[index, :size], last[index, :size]), data, client)
            for index, ((client, _), size) in enumerate(zip(jobs, sizes, strict=True))
        ]


class _MorePasses(Exception):
    """A step made more forward passes than dropout masks were drawn for."""


def _or_blame(run: Callable[[], Done], suspects: Callable[[], Mapping[int, Callable[[], object]]]) -> Done:
    """What `run` gives. A fault in somebody's code is raised as the first client raises it that also fails by itself.

    When none does, since what fails is the vectorising, it is raised as the fault of all.

    Args:
        suspects: For each client what it was at, to be done again without the others and without ``vmap``.
    """
    harmless = (UserError, Diverged, torch.OutOfMemoryError, _MorePasses)
    try:
        return run()
    except harmless:
        raise
    except Exception as error:
        failed = error
    stack = suspects()
    for alone in stack.values() if "CUDA error" not in str(failed) else ():  # after one, everything fails
        with suppress(*harmless):
            alone()
    who = f"clients {', '.join(map(str, stack))} stacked"
    locate(failed, who=who, advice="PFL_EXECUTOR=sequential takes one at a time without vmap")
    raise failed


@dataclass(repr=False)  # vmap asks for it at every call, and to show tensors is to wait for the device
class _Step:
    """One client's step as a function for :func:`torch.func.vmap`: everything that varies by client is an argument."""

    trainer: Trainer
    _noise: Tensor = field(init=False)
    _rate: Rate = field(init=False)
    _pass: int = field(init=False, default=0)
    # Buffers that a forward pass below a gradient has changed: the client's own, and their new values.
    _changed: list[tuple[Tensor, Tensor]] | None = field(init=False, default=None)

    def __call__(
        self, state: LocalState, received: Tensors, inputs: Tensor, labels: Tensor, noise: Tensor, rate: Tensor
    ) -> tuple[LocalState, Tensor]:
        """The state after a step, and the loss before it.

        `noise` has a row for each forward pass; `rate` is the learning rate, of no elements where that never varies.
        """
        self._noise, self._pass = noise, 0
        self._rate = rate if rate.numel() else self.trainer.training.lr
        return self.trainer.step(self._local(received), state, Batch(inputs, labels))

    def begin(self, received: Tensors) -> LocalState:
        """The state before the first step."""
        start = {name: tensor.clone() for name, tensor in received.items()}
        return self.trainer.method.begin(self._local(received), start)

    def end(self, state: LocalState) -> LocalState:
        """The state after the last step."""
        return self.trainer.method.end(self._local({}), state)

    def _local(self, received: Tensors) -> ClientView:
        trainer = self.trainer
        return ClientView(self._features, self._differentiate, self._sgd, received, trainer.parameters, trainer.roles)

    def _features(self, state: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
        trainer = self.trainer
        if trainer.noise.per_sample:
            if self._pass == len(self._noise):
                raise _MorePasses
            trainer.noise.load(self._noise[self._pass])
            self._pass += 1
        # A gradient must not see its inputs change, so buffers are copied and written back when it has been taken.
        own = {name: tensor for name, tensor in state.items() if name in trainer.entries - trainer.parameters}
        fresh = {name: tensor.clone() for name, tensor in own.items()}
        made = trainer.features({**state, **fresh}, inputs)
        pairs = [(own[name], fresh[name]) for name in own]
        if self._changed is None:
            _write_back(pairs)
        else:
            self._changed += pairs
        return made

    def _differentiate(
        self, loss: Callable[[Tensors], tuple[Tensor, Tensors]], params: Tensors
    ) -> tuple[Tensors, Tensor, Tensors]:
        targets: list[Tensor] = []

        def traced(params: Tensors) -> tuple[Tensor, tuple[list[Tensor], Tensors]]:
            self._changed = []
            value, aside = loss(params)
            pairs, self._changed = self._changed, None
            targets.extend(target for target, _ in pairs)
            return value, ([fresh.detach() for _, fresh in pairs], aside)

        gradients, (value, (fresh, aside)) = grad_and_value(traced, has_aux=True)(params)
        _write_back(list(zip(targets, fresh, strict=True)))
        return gradients, value, aside

    def _sgd(self, params: Tensors, gradients: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return self.trainer.optimizer.apply(params, gradients, state, self._rate)


class _Cohort:
    """The clients that are trained together in a round."""

    def __init__(self, trainer: Trainer, replay: Replay, passes: int, round_: int, jobs: Sequence[Job]) -> None:
        self.trainer, self.replay, self.passes, self.round, self.jobs = trainer, replay, passes, round_, jobs
        self.clients = [client for client, _ in jobs]
        self.received = _stack([received for _, received in jobs])
        self.rows = [trainer.batches(round_, client) for client in self.clients]
        self.losses: list[list[Tensor]] = [[] for _ in jobs]
        self.step = _Step(trainer)
        self.tick = [(one, 0) for one in range(len(jobs))]  # the clients that are at work, and their steps before

    def train(self) -> list[Outcome]:
        """All local steps of all clients."""
        self.trainer.model.train()
        with _vectorisable():
            state = vmap(self.step.begin)(self.received)
            ticks = list(schedule([[len(batch) for batch in batches] for batches in self.rows]))
            chunks = [torch.stack([self.rows[one][step] for one, step in tick]) for tick in ticks]
            steps = [torch.tensor([[step] for _, step in tick]) for tick in ticks]
            for tick, batch in zip(ticks, self.trainer.data.batches(chunks, self.round, steps), strict=True):
                self.tick = tick
                state = self._advance(state, tick, batch)
            self.tick = [(one, len(batches)) for one, batches in enumerate(self.rows)]
            state = vmap(self.step.end)(state)
        return [self._outcome(index, state) for index in range(len(self.clients))]

    def suspects(self) -> dict[int, Callable[[], None]]:
        """For each client that is at work: its training so far, with the step that it is at, by itself."""
        return {self.clients[one]: partial(self._alone, one, step) for one, step in self.tick}

    def _alone(self, one: int, step: int) -> None:
        trainer, (client, received) = self.trainer, self.jobs[one]
        with trainer.at(self.round, client):
            unfinished = trainer.advance(self.round, client, received, trainer.begin(received), step + 1)
            if step == len(self.rows[one]):
                trainer.finish(self.round, client, unfinished)

    def _advance(self, state: LocalState, tick: Sequence[tuple[int, int]], batch: Batch) -> LocalState:
        """One step of the clients in `tick`; the others stay as they are."""
        inputs = self._noise(tick, batch.labels.shape[1]), self._rates(tick)
        if len(tick) == len(self.clients):
            state, losses = self._stacked(state, self.received, batch, *inputs)
        else:
            index = torch.tensor([one for one, _ in tick], device=batch.labels.device)
            some = {key: _select(part, index) for key, part in state.items()}
            after, losses = self._stacked(some, _select(self.received, index), batch, *inputs)
            state = {key: _put(state.get(key, {}), index, part, len(self.clients)) for key, part in after.items()}
        for (one, _), loss in zip(tick, losses, strict=True):
            self.losses[one].append(loss)
        return state

    def _stacked(
        self, state: LocalState, received: Tensors, batch: Batch, noise: Tensor, rates: Tensor
    ) -> tuple[LocalState, Tensor]:
        after: tuple[LocalState, Tensor] = self.replay(
            vmap(self.step), state, received, batch.inputs, batch.labels, noise, rates
        )
        return after

    def _rates(self, tick: Sequence[tuple[int, int]]) -> Tensor:
        """The clients' learning rates: (clients,), or (clients, 0) where they never vary."""
        trainer, device = self.trainer, self.trainer.data.device
        if not trainer.training.scheduled:
            return torch.empty(len(tick), 0, device=device)
        return torch.tensor(
            [trainer.learning_rate(self.round, self.clients[one], step) for one, step in tick], device=device
        )

    def _noise(self, tick: Sequence[tuple[int, int]], samples: int) -> Tensor:
        """The random numbers of the clients' forward passes: (clients, passes, numbers)."""
        source = self.trainer.noise
        if not source.per_sample:
            return torch.empty(len(tick), 0, device=source.device)
        ids = ((self.clients[one], step, one_pass) for one, step in tick for one_pass in range(self.passes))
        drawn = [self.trainer.masks(samples, self.round, *each) for each in ids]
        return torch.stack(drawn).view(len(tick), self.passes, -1)

    def _outcome(self, index: int, state: LocalState) -> Outcome:
        mean = float(torch.stack(self.losses[index]).mean())
        if not math.isfinite(mean):
            raise Diverged(self.round, self.clients[index])
        model = {name: tensor[index].clone() for name, tensor in state["model"].items()}
        return Outcome(self.clients[index], model, mean)


def _stack(states: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def _select(stacked: Tensors, index: Tensor) -> Tensors:
    return {name: tensor[index] for name, tensor in stacked.items()}


def _put(stacked: Tensors, index: Tensor, some: Tensors, count: int) -> Tensors:
    """`stacked` with the rows in `index` replaced; entries that are new begin as zeros for the other rows."""
    result = {}
    for name, rows in some.items():
        whole = stacked[name] if name in stacked else rows.new_zeros(count, *rows.shape[1:])
        result[name] = whole.index_copy(0, index, rows)
    return result


def _write_back(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for target, value in pairs:
        target.copy_(value)
