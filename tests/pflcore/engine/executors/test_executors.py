"""Executors agree: every method on every backbone that fits, uneven clients, batch norm and dropout."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from support.cohorts import FIRST, PAIRS, UNEVEN, amplified, assert_close, trainer, uneven_run
from support.pretend_device import pretend_cuda
from support.pretend_device.runs import on_gpu
from support.tiers import SIX
from support.tiny import assert_states_close, backbone, federation, method, result_bytes, training
from torch import Tensor

from pflcore.engine import Result
from pflcore.engine.client import Diverged, Job, Outcome, Trainer
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.evaluation import SplitScores
from pflcore.engine.executors import choose_executor, worker_count
from pflcore.engine.executors.pooled import Pooled
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.memory import TooLittleMemory
from pflcore.method import Batch, ClientView
from pflcore.methods.simple import FedAvg

SIX_PAIRS = [pair for pair in FIRST if pair[0] in SIX]


@pytest.fixture(autouse=True)
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_WORKERS", "2")


@cache
def reference_run(name: str, net: str) -> Result:
    return uneven_run(name, net, "sequential")


@pytest.mark.parametrize(
    ("name", "net"), [pair if pair in SIX_PAIRS else pytest.param(*pair, marks=pytest.mark.matrix) for pair in PAIRS]
)
def test_workers_give_the_bytes_of_the_sequential_executor(name: str, net: str) -> None:
    assert result_bytes(uneven_run(name, net, "pooled")) == result_bytes(reference_run(name, net))


# All clients in one stack; for a pair of each method also in several.
WIDTHS = [(*pair, width) for width in (64, 2) for pair in PAIRS if width == 64 or pair in FIRST]


@pytest.mark.parametrize(
    ("name", "net", "width"),
    [pytest.param(*one, marks=[] if one[:2] in FIRST and one[2] == 64 else pytest.mark.matrix) for one in WIDTHS],
)
def test_stacked_clients_agree_with_single_ones(
    name: str, net: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFL_STACK", str(width))
    assert_close(uneven_run(name, net, "stacked"), reference_run(name, net), amplified(name))


def test_the_tolerance_tells_dropout_masks_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = reference_run("fedavg", "tiny_vit")
    draw = DropoutBits.draw
    monkeypatch.setattr(DropoutBits, "draw", lambda self, samples, seed, *ids: draw(self, samples, seed + 1, *ids))
    with pytest.raises(AssertionError):
        assert_close(uneven_run("fedavg", "tiny_vit", "stacked"), expected)


def test_the_first_divergence_in_order_is_told() -> None:
    reference, state = trainer()
    lost = {name: torch.full_like(tensor, float("nan")) for name, tensor in state.items()}
    with Pooled(reference, state, 2) as pooled:
        with pytest.raises(Diverged) as error:
            list(pooled.train(5, [(4, lost), (1, lost)]))
        assert (error.value.round, error.value.client) == (5, 4)
        assert "round 5 at client 4" in str(error.value)
        # The executor is not confused by what the other worker still had to say.
        scores = pooled.score_each((client, state) for client in range(5))
    assert np.array_equal(scores.column("total"), UNEVEN[1])


def test_results_that_nobody_waits_for_stop_the_work() -> None:
    reference, state = trainer()
    with Pooled(reference, state, 2) as pooled:
        outcomes = pooled.train(1, [(client, state) for client in range(5)])
        next(outcomes)
        processes = [worker.process for worker in pooled.workers]
        outcomes.close()  # type: ignore[attr-defined]
        assert not any(process.is_alive() for process in processes)
        assert [one.client for one in pooled.train(1, [(3, state), (2, state)])] == [3, 2]


@pytest.mark.parametrize("samples", [1, 256, 257, 700])
def test_one_model_is_measured_over_chunks(samples: int) -> None:
    data = federation((4, 4), (1, samples))
    model, groups = backbone("convnet").create(data.shape, data.classes, 0)
    state = dict(model.state_dict())
    reference = make_trainer(model, groups, data, method("fedavg"), training(), 0)
    with Pooled(reference, state, 2) as pooled:
        expected, scores = Sequential(reference).score_shared(state), pooled.score_shared(state)
        again = pooled.score_shared({name: torch.zeros_like(tensor) for name, tensor in state.items()})
    assert scores.column("total").tolist() == [1, samples]
    assert np.array_equal(scores.values, expected.values)
    assert np.allclose(again.column("loss"), again.column("total") * np.log(data.classes), rtol=1e-5)


def test_a_worker_that_dies_is_one_line() -> None:
    reference, state = trainer()
    with Pooled(reference, state, 2) as pooled:
        list(pooled.train(1, [(0, state)]))
        for worker in pooled.workers:
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.join()
        with pytest.raises(UserError, match=r"a worker process died \(exit code -9\).*PFL_WORKERS") as error:
            list(pooled.train(1, [(0, state), (1, state)]))
        assert "\n" not in str(error.value)


def test_an_error_in_a_worker_says_what_it_was() -> None:
    reference, state = trainer()
    broken = {**state, "head.weight": torch.zeros(2, 2)}
    with Pooled(reference, state, 1) as pooled, pytest.raises(RuntimeError):
        list(pooled.train(1, [(0, broken)]))
    with Pooled(reference, state, 1) as pooled, pytest.raises(IndexError) as error:
        pooled.score_each([(99, state)])
    assert "in score_splits" in "".join(error.value.__notes__)


def test_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, state = trainer()
    assert isinstance(choose_executor("auto", reference, state), Pooled)
    assert isinstance(choose_executor("sequential", reference, state), Sequential)
    assert isinstance(choose_executor("stacked", reference, state), Stacked) and stack_width() == 64
    monkeypatch.setenv("PFL_WORKERS", "1")
    assert isinstance(choose_executor("auto", reference, state), Sequential)
    with pytest.raises(UserError, match="did you mean 'pooled'"):
        choose_executor("poled", reference, state)


@pytest.mark.matrix
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")
def test_the_choice_on_an_accelerator() -> None:
    reference, state = trainer()
    with pretend_cuda():
        reference.data = on_gpu(reference.data)
        assert isinstance(choose_executor("auto", reference, state), Stacked)
        assert isinstance(choose_executor("sequential", reference, state), Sequential)
        with pytest.raises(UserError, match="the pooled executor runs on the CPU, the data lies on cuda"):
            choose_executor("pooled", reference, state)


@pytest.mark.parametrize("value", ["0", "-1", "two", "²", "1.5"])
def test_a_wrong_number_of_workers(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_WORKERS", value)
    with pytest.raises(UserError, match="PFL_WORKERS"):
        worker_count()


def test_workers_are_the_cores_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PFL_WORKERS")
    assert 1 <= worker_count() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5, 6}, raising=False)
    assert worker_count() == 4
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS and Windows
    for cores, workers in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert worker_count() == workers


# --- stacked: what the comparison above does not see ---------------------------------------------------------------


def test_a_divergence_in_a_stack_names_the_first_client_in_order() -> None:
    reference, state = trainer()
    lost = {name: torch.full_like(tensor, float("nan")) for name, tensor in state.items()}
    with pytest.raises(Diverged) as error:
        list(Stacked(reference, 8).train(5, [(2, state), (4, lost), (1, lost)]))
    assert (error.value.round, error.value.client) == (5, 4)


class Short(Stacked):
    """Has memory for two clients."""

    def _refuse(self, jobs: Sequence[Job]) -> None:
        self.widths = [*getattr(self, "widths", []), len(jobs)]
        if len(jobs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    def _train(self, round_: int, jobs: Sequence[Job], part: int) -> list[Outcome]:
        self._refuse(jobs)
        return super()._train(round_, jobs, part)

    def _score(self, jobs: Sequence[Job]) -> list[SplitScores]:
        self._refuse(jobs)
        return super()._score(jobs)


def test_a_stack_that_does_not_fit_is_made_smaller() -> None:
    reference, state = trainer()
    short = Short(reference, 8)
    jobs = [(client, state) for client in range(5)]
    expected = list(Sequential(reference).train(1, jobs))
    for outcome, other in zip(short.train(1, jobs), expected, strict=True):
        assert outcome.client == other.client
        assert_states_close(outcome.model, other.model)
    assert short.widths == [5, 2, 2, 1] and short.training.clients == 2
    short = Short(reference, 8)
    np.testing.assert_allclose(short.score_each(jobs).values, Sequential(reference).score_each(jobs).values, rtol=1e-5)
    assert short.widths == [5, 2, 2, 1]


def test_one_client_that_does_not_fit_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, state = trainer()

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    monkeypatch.setattr(Stacked, "_train", refuse)
    with pytest.raises(
        TooLittleMemory, match=r"not enough memory on cpu for one client \(CUDA out of memory\.\); use a"
    ):
        list(Stacked(reference, 4).train(1, [(0, state)]))


@pytest.mark.parametrize("words", ["CUDA out of memory.", "CUDA error: out of memory\nmore"])
def test_measuring_takes_fewer_samples_at_once_where_memory_is_short(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, state = trainer()
    jobs = [(client, state) for client in range(5)]
    expected = Sequential(reference).score_shared(state), Sequential(reference).score_each(jobs)
    predict, tried = Trainer.predict, []

    def short(self: Trainer, state: Tensors, inputs: Tensor) -> Tensor:
        tried.append(len(inputs))
        if len(inputs) > 3:
            raise RuntimeError(words)
        return predict(self, state, inputs)

    monkeypatch.setattr(Trainer, "predict", short)
    stacked = Stacked(reference, 8)
    found = stacked.score_shared(state), stacked.score_each(jobs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.values, other.values, rtol=1e-5)
    assert max(tried) > 3 and stacked.training.clients == 8
    monkeypatch.setattr(Trainer, "predict", lambda *_: (_ for _ in ()).throw(RuntimeError(words)))
    for measure in (lambda: stacked.score_shared(state), lambda: stacked.score_each(jobs)):
        with pytest.raises(TooLittleMemory, match="not enough memory on cpu for one client"):
            measure()


@pytest.mark.parametrize("value", ["0", "-1", "two", "²", "1.5"])
def test_a_wrong_width(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_STACK", value)
    with pytest.raises(UserError, match="PFL_STACK"):
        stack_width()


@pytest.mark.parametrize("kind", ["sequential", "pooled", "stacked"])
def test_several_forward_passes_in_a_step_have_masks_of_their_own(kind: str) -> None:
    reference, state = trainer("fedavg", "tiny_vit")
    object.__setattr__(reference, "method", Thrice())
    executor = choose_executor(kind, reference, state)
    with executor:
        outcomes = list(executor.train(1, [(client, state) for client in (0, 3)]))
    expected = [reference.train(1, client, state) for client in (0, 3)]
    for one, other in zip(outcomes, expected, strict=True):
        assert_states_close(one.model, other.model)
    plain, _ = trainer("fedavg", "tiny_vit")
    assert abs(plain.train(1, 0, state).loss - expected[0].loss) > 1e-4


@dataclass(frozen=True, kw_only=True)
class Thrice(FedAvg):
    """The mean loss of three passes, each with other masks."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        losses = [FedAvg.loss(self, local, params, batch) for _ in range(3)]
        return torch.stack(losses).mean()
