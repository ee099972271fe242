"""What a run asks of a GPU beside arithmetic: ticks, kernels that are replayed, launches by the host, passes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pflcore.cohorts import sample_cohort
from pflcore.engine.executors.choice import stack_width
from pflcore.engine.executors.ticks import by_size, side_by_side
from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.ownership import roles_of
from pflcore.settings import Training
from pipeline.plan.client_sizes import ClientSizes, Federations
from pipeline.plan.step_kernels import Kernels, StepKernels
from pipeline.spec.run import Run

# Launches by the host, counted on the pretended GPU of the tests: beside a step that is replayed; in a round, for each
# tensor of each client's state (it is taken out of the stack and into the mean) and beside these; and of a server
# that generates what clients receive, from 80 to 700.
BESIDE_STEP = 12
PER_ENTRY = 2
PER_ROUND = 40
GENERATING = 400

_COHORTS = 3  # that ticks are counted for, where rounds draw clients
_MEASURED_AT_ONCE = 4096  # samples of a forward pass, as on CUDA
_TUNED_AT_ONCE = 16  # clients


@dataclass(frozen=True)
class Work:
    """What the device and its host do beside arithmetic.

    Attributes:
        ticks: Steps of all clients of a stack together, tuning before measurements included.
        replayed: Kernels that run in recorded steps.
        launched: Kernels that the host launches one by one.
        passes: Forward passes that measure; their kernels are among those launched.
    """

    ticks: float = 0.0
    replayed: float = 0.0
    launched: float = 0.0
    passes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.ticks + other.ticks,
            self.replayed + other.replayed,
            self.launched + other.launched,
            self.passes + other.passes,
        )


class DeviceWork:
    """The work of runs; what several have in common is counted once."""

    def __init__(self, federations: Federations, kernels: Kernels) -> None:
        self._federations = federations
        self._kernels = kernels
        self._ticks: dict[str, float] = {}

    def of(self, run: Run) -> Work:
        """Of a run that is trained alone from its beginning; none if its model does not fit."""
        kernels, sizes = self._kernels.of(run), self._federations.of(run)
        if not kernels:
            return Work()
        method: Method = METHODS.create(run.method, **run.options("method"))
        training, measurements = run.training, len(run.evaluation.due(run.training.rounds))
        members = [client for client in range(run.clients) if client not in sizes.novel]
        drawn = training.cohort_size(len(members))
        cohort = len(method.participants(range(drawn), run.clients))
        width = 1 if method.one_by_one else stack_width()
        ticks = training.rounds * self._round_ticks(run, sizes, members, cohort, kernels, width)
        roles = roles_of(method, kernels.groups)
        personal = roles.personal or roles.generated or type(method).companions is not Method.companions
        if tuning := method.tuning():
            whole = [_batches(size, training, tuning.epochs, tuning.steps, kernels) for size in sizes.train]
            ticks += measurements * _ticks(whole, _TUNED_AT_ONCE, filled=kernels.fills)
        alike = not (personal or tuning or method.remembers)
        passes = measurements * _passes(sizes.measured, alike)
        generating = GENERATING if roles.generated else 0
        beside = training.rounds * (PER_ENTRY * kernels.entries * cohort + PER_ROUND + generating)
        launched = BESIDE_STEP * ticks + beside + kernels.forward * passes
        if method.one_by_one:  # nothing is recorded
            return Work(ticks, 0, launched + kernels.step * ticks, passes)
        return Work(ticks, kernels.step * ticks, launched, passes)

    def _round_ticks(
        self, run: Run, sizes: ClientSizes, members: Sequence[int], cohort: int, kernels: StepKernels, width: int
    ) -> float:
        """Ticks of a round in stacks of `width` clients, as the mean over a few that a run draws."""
        training = run.training
        settings = training.local_epochs, training.local_steps, training.batch_size, kernels.fills, kernels.batch_norm
        key = json.dumps([sizes.train, sorted(sizes.novel), cohort, width, *settings])
        if key not in self._ticks:
            rounds = 1 if cohort >= len(members) or len(set(sizes.train)) == 1 else _COHORTS
            counts = []
            for round_ in range(1, rounds + 1):
                drawn = sample_cohort(members, min(cohort, len(members)), run.seed, round_)
                held = [sizes.train[one] for one in drawn]
                epochs, steps = training.local_epochs, training.local_steps
                batches = [_batches(size, training, epochs, steps, kernels) for size in held]
                counts.append(_ticks(batches, width, filled=kernels.fills))
            self._ticks[key] = sum(counts) / len(counts)
        return self._ticks[key]


def _batches(samples: int, training: Training, epochs: int, steps: int | None, kernels: StepKernels) -> list[int]:
    """The sizes of a client's batches in a round."""
    size = training.batch_size
    if steps:
        return [min(size, samples)] * steps
    rest = samples % size
    last = [rest] if rest > (1 if kernels.batch_norm else 0) else []
    return epochs * [*[size] * (samples // size), *last]


def _ticks(batches: Sequence[Sequence[int]], width: int, *, filled: bool) -> int:
    order = side_by_side if filled else by_size
    stacks = (batches[start : start + width] for start in range(0, len(batches), width))
    return sum(sum(1 for _ in order(stack)) for stack in stacks)


def _passes(measured: Sequence[int], alike: bool) -> int:
    """Forward passes of a measurement of all clients, by one model that is `alike` for all or by their own."""
    if alike:
        return math.ceil(sum(measured) / _MEASURED_AT_ONCE)
    width = stack_width()
    stacks = [measured[start : start + width] for start in range(0, len(measured), width)]
    return sum(math.ceil(max(stack) / max(1, _MEASURED_AT_ONCE // len(stack))) for stack in stacks)
