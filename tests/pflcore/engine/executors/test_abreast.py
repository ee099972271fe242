"""Runs side by side give what they give by themselves, and none of them is another's misfortune."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.cohorts import FIRST, UNEVEN, amplified, assert_close, backbones, trainer, uneven_run
from support.tiny import backbone, federation, method, run, suited, training
from torch import Tensor

from pflcore.engine import CheckpointFolder, Progress, Result, run_abreast
from pflcore.engine.divergence import Diverged
from pflcore.engine.executors import alike, cohort
from pflcore.engine.executors.abreast import Abreast, current_lane
from pflcore.engine.executors.alike import _same_but_numbers, varying
from pflcore.engine.executors.batches import Rows, _source
from pflcore.engine.executors.choice import choose_executor
from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView
from pflcore.methods.fedavg import FedAvg
from pflcore.methods.fedprox import FedProx
from pflcore.options import option

QUICK = ("fedavg", "fedtp", "ditto", "pfedme", "fedkd", "fedbn", "fedala")
CASES = [pytest.param(*pair, marks=[] if pair[0] in QUICK else [pytest.mark.matrix]) for pair in FIRST]


class Stopped(Exception):
    """Instead of a kill."""


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients were trained together, each time that some were."""
    widths: list[int] = []
    train = cohort.Cohort.train
    monkeypatch.setattr(cohort.Cohort, "train", lambda self: widths.append(len(self.tasks)) or train(self))
    return widths


def abreast(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """What all of them give; the first error, if there is one."""
    results: dict[int, Result] = {}
    errors = run_abreast(
        [lambda index=index, work=work: results.update({index: work()}) for index, work in enumerate(works)]
    )  # type: ignore[misc]
    for error in errors:
        if error:
            raise error
    return [results[index] for index in range(len(works))]


def varied(name: str) -> list[dict[str, Any]]:
    """Changes of a method's run: its seed, then also its learning rate, then each number among its options."""
    entry = method(name)
    numbers = {field.name: getattr(entry, field.name) for field in fields(entry)}
    others = {
        key: value * 0.75 for key, value in numbers.items() if isinstance(value, float) and value not in (0.0, 1.0)
    }
    return [{"seed": 3}, {"seed": 4, "training": {"lr": 0.03}}, {"seed": 4, "method": replace(entry, **others)}]


def one_of(name: str, net: str, executor: str = "stacked", **changes: Any) -> Result:
    """A run of :func:`uneven_run` with another method's options, if there are any."""
    entry = changes.pop("method", None)
    if entry is None:
        return uneven_run(name, net, executor, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("support.cohorts.method", lambda _: entry)
        return uneven_run(name, net, executor, **changes)


@pytest.mark.parametrize(("name", "net"), CASES)
def test_runs_of_every_method_that_differ_in_seeds_and_numbers(name: str, net: str) -> None:
    works = [partial(one_of, name, net, **changes) for changes in varied(name)]
    for together, work in zip(abreast(works), works, strict=True):
        assert_close(together, work(), amplified(name))


def test_clients_of_all_runs_are_one_stack(stacks: list[int]) -> None:
    smaller = suited(backbones()["convnet"], (9, 4, 12), (3, 2, 4))
    works = [
        partial(one_of, "fedavg", "convnet", seed=3, training={"sample_rate": 1.0}),
        partial(one_of, "fedavg", "convnet", seed=4, training={"sample_rate": 1.0, "lr": 0.02}),
        partial(
            run,
            method("fedavg"),
            backbone("convnet"),
            smaller,
            executor="stacked",
            training=training(sample_rate=1.0, momentum=0.5, weight_decay=1e-3),
        ),
    ]
    found = abreast(works)
    assert stacks == [5 + 5 + 3] * 2
    for together, work in zip(found, works, strict=True):
        assert_close(together, work())


def test_other_models_and_methods_are_trained_in_turn(stacks: list[int]) -> None:
    works = [partial(one_of, "fedavg", net) for net in ("convnet", "lenet")]
    works += [partial(one_of, name, "convnet", seed=5) for name in ("fedavg", "fedprox")]
    works += [partial(one_of, "fedavg", "convnet", training={"momentum": 0.0})]
    found = abreast(works)
    assert sorted(stacks) == [4, 4, 4, 4, 4, 4, 8, 8]
    for together, work in zip(found, works, strict=True):
        assert_close(together, work())


@pytest.mark.parametrize("name", ["ditto", "pfedgp"])  # in one stack, and one client after the other
def test_one_that_diverges_is_alone_in_it(name: str) -> None:
    works = [partial(one_of, name, "convnet", seed=seed, training={"lr": lr}) for seed, lr in ((3, 0.1), (4, 1e30))]
    fine, lost = abreast(works)
    assert lost.diverged and not fine.diverged
    assert_close(fine, works[0]())
    alone = works[1]().diverged
    assert isinstance(alone, Diverged) and lost.diverged.args == alone.args


@dataclass(frozen=True, kw_only=True)
class Fragile(FedAvg):
    """It fails at images that are too bright."""

    most: float = option(1e9, help="How bright is too bright.")

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        if self.most < 0:
            raise ValueError("too bright")
        return super().loss(local, params, batch)


def test_one_that_fails_is_alone_in_it() -> None:
    results: dict[float, Result] = {}

    def one(most: float, seed: int) -> None:
        results[most] = run(Fragile(most=most), backbone("convnet"), federation(*UNEVEN), executor="stacked", seed=seed)

    works = [partial(one, most, seed) for seed, most in ((3, 1e9), (4, -1.0), (5, 2e9))]
    first, failed, last = run_abreast(works)
    assert (first, last) == (None, None)
    assert isinstance(failed, ValueError) and "client 0, round 1" in failed.__notes__[0]
    together = dict(results)
    works[0]()
    assert_close(together[1e9], results[1e9])


@dataclass(frozen=True, kw_only=True)
class Choosy(FedProx):
    """A number decides what its step does, which cannot be so for some of the clients of a stack."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        return super().loss(local, params, batch) if self.mu > 0.05 else FedAvg.loss(self, local, params, batch)


def test_numbers_that_decide_what_a_step_does_set_runs_apart(stacks: list[int]) -> None:
    works = [
        partial(run, Choosy(mu=mu), backbone("convnet"), federation(*UNEVEN), executor="stacked") for mu in (0.5, 0.01)
    ]
    found = abreast(works)
    assert stacks[0] == 2 * stacks[1]  # tried at once, and then never again
    assert set(stacks[1:]) == {stacks[1]}
    for together, work in zip(found, works, strict=True):
        assert_close(together, work())


def test_samples_that_change_by_run_and_round_are_fetched_apart() -> None:
    inputs = torch.zeros(1)

    def rows(round_: int, noise: object = None, augmentation: object = None) -> Rows:
        data: Any = SimpleNamespace(inputs=inputs, noise=noise, augmentation=augmentation)
        return Rows(data, torch.arange(2), round_)

    assert _source(rows(1)) == _source(rows(2)), "of all runs, whose federations hold the same samples"
    for changed in (rows(1, noise=0.5), rows(1, augmentation="flip")):
        others = rows(1), rows(1, 0.5, "flip"), replace(changed, round=2)
        assert _source(changed) == _source(replace(changed)) not in [_source(other) for other in others]


def test_what_may_differ_in_runs_side_by_side() -> None:
    methods = [method("fedprox", mu=mu) for mu in (0.5, 0.1, 0.7)]
    assert varying(methods) == varying(methods[:2]) == varying(methods[1:]) == ("mu",) and varying(methods[:1]) == ()
    assert _same_but_numbers(methods[0], methods[1])
    assert not _same_but_numbers(methods[0], method("fedavg"))
    # A number may be in what a method adds to the model.
    assert _same_but_numbers(method("lora"), method("lora"))
    assert not _same_but_numbers(method("lora"), method("lora", alpha=0.25))


def test_only_equal_methods_predict_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "alike", lambda one, other: True)
    one, same, other = (SimpleNamespace(method=method("fedprox", mu=mu)) for mu in (0.5, 0.5, 0.7))
    assert alike.equal(one, same) and not alike.equal(one, other) and not alike.equal(other, one)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_all_go_on_from_checkpoints_of_their_own(name: str, tmp_path: Path) -> None:
    def stop(at: int, progress: Progress) -> None:
        if progress.round == at:
            raise Stopped

    def one(seed: int, at: int = 0) -> Result:
        with CheckpointFolder(tmp_path / str(seed), "me", print) as folder:
            stops = partial(stop, at) if at else None
            arguments = {"checkpoints": folder, "checkpoint_every": 0.0, "on_round": stops, "seed": seed}
            return one_of(name, "convnet", training={"rounds": 4}, **arguments)

    errors = run_abreast([partial(one, 3, at=3), partial(one, 4, at=2), partial(one, 5, at=4)])
    assert all(isinstance(error, Stopped) for error in errors)
    again = abreast([partial(one, seed) for seed in (3, 4, 5)])
    assert [result.resumed_from for result in again] == [2, 1, 3]
    for seed, result in zip((3, 4, 5), again, strict=True):
        assert_close(result, one_of(name, "convnet", training={"rounds": 4}, seed=seed))


def test_precision_is_each_runs_own_and_is_put_back() -> None:
    seen: list[bool] = []

    def one(precision: str, rounds: int) -> Result:
        def look(_: Progress) -> None:
            seen.append(torch.backends.cuda.matmul.allow_tf32 == (precision == "tf32"))

        return one_of("fedavg", "convnet", training={"precision": precision, "rounds": rounds}, on_round=look)

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    abreast([partial(one, "tf32", 1), partial(one, "fp32", 3), partial(one, "tf32", 2)])
    assert all(seen) and len(seen) == 6
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_a_round_without_clients() -> None:
    def one() -> None:
        reference, state = trainer()
        with choose_executor("auto", reference, state) as executor:
            assert isinstance(executor, Abreast)
            assert list(executor.train(1, [])) == [] and len(executor.score_each([]).total) == 0

    assert run_abreast([one]) == [None]


UNENDING = """
import time

from pflcore.engine import run_abreast

def work():
    print("at work", flush=True)
    time.sleep(600)

run_abreast([work, work])
"""


def test_an_interruption_waits_for_nobody_at_work() -> None:
    arguments = [sys.executable, "-c", UNENDING]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"at work\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT and said.endswith(b"KeyboardInterrupt\n")


def test_an_interruption_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def one(seed: int) -> None:
        try:
            one_of("fedavg", "convnet", seed=seed)
        finally:
            ended.append(seed)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cohort.Cohort, "train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_abreast([partial(one, seed) for seed in (3, 4)])
    assert sorted(ended) == [3, 4]
    assert current_lane() is None
