"""The round loop: rounds, with checkpoints between them; at the end, analyses and the result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from pflcore.backbones import Backbone
from pflcore.conditions import Condition
from pflcore.data.federation import FederatedData
from pflcore.engine.analysis import Analysis
from pflcore.engine.checkpoint import CheckpointFolder
from pflcore.engine.device import one_thread
from pflcore.engine.executors import choose_executor
from pflcore.engine.forward import use_precision
from pflcore.engine.phases import check_steps
from pflcore.engine.result import Result
from pflcore.engine.run import RunState
from pflcore.faults import during
from pflcore.memory import keep_freed_memory
from pflcore.method import Method
from pflcore.settings import Evaluation, Training


@dataclass(frozen=True)
class Progress:
    """The state of a run after a round, for a progress display."""

    round: int
    rounds: int  # number of rounds of the run; equals `round` after the last one, even if the run is stopped early
    loss: float  # mean over the participants of the round
    accuracy: float | None  # of the last measurement, 0 to 1


def train(
    *,
    data: FederatedData,
    backbone: Backbone,
    method: Method,
    training: Training,
    evaluation: Evaluation,
    seed: int,
    analyses: Mapping[str, Analysis] = {},
    executor: str = "auto",
    checkpoints: CheckpointFolder | None = None,
    checkpoint_every: float = 60.0,
    on_round: Callable[[Progress], None] | None = None,
    confirm: Callable[[], None] = lambda: None,
    kinds: Sequence[int] | None = None,
    condition: Condition | None = None,
) -> Result:
    """Train one run from its last checkpoint, or from the beginning, to its end, and analyse it.

    Args:
        seed: Seed of initial weights, sampling, batches and dropout, which have separate streams.
        executor: One of :data:`pflcore.engine.executors.EXECUTORS`.
        checkpoints: Folder of checkpoints, already entered; None writes no checkpoints.
        checkpoint_every: Least number of seconds between checkpoints, which are also at least twenty times the duration
            of the last write apart; 0 writes one after every round. It never changes a result.
        confirm: Called after all computation. If it or an analysis raises, the last checkpoint has the trained state.
        kinds: Per client a number by which analyses group clients; None: its most frequent class.
        condition: Condition under which the run trains; None: no condition.
    """
    if data.device.type == "cpu":
        keep_freed_memory()
    # Only the CPU's generator: nothing uses a GPU's generator, and reading its state would start CUDA on all GPUs.
    with torch.random.fork_rng(devices=[]), use_precision(training.precision):
        with during("before the first round"):
            scratch = checkpoints.folder if checkpoints else None
            run = RunState(data, backbone, method, training, evaluation, seed, scratch, condition)
            check_steps(run.trainer)
            for analysis in analyses.values():
                analysis.check(run.subject(kinds))
        if checkpoints:
            run.resume(checkpoints)
        with choose_executor(executor, run.trainer, run.client_state) as chosen:
            by = f"executor {type(chosen).__name__.lower()}"
            if not run.round:
                with during(f"before the first round, {by}"):
                    run.warmup(chosen)
            while not run.over:
                with during(f"round {run.round + 1}, {by}"):
                    loss = run.advance(chosen)
                if on_round and not run.diverged:
                    rounds = run.round if run.over else training.rounds
                    on_round(Progress(run.round, rounds, loss, run.history.last_figure()))
                if checkpoints and not run.over and checkpoints.is_due(checkpoint_every):
                    checkpoints.save(run.round, run.state())
        if checkpoints and not run.diverged:
            checkpoints.save_last(run.round, run.state())
        with during("after the last round"):
            findings = {}
            subject = run.subject(kinds)
            if not run.diverged:
                with one_thread(data.device):
                    findings = {name: list(analysis.findings(subject)) for name, analysis in analyses.items()}
            result = run.result(findings)
        confirm()
        return result
