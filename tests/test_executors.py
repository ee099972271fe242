"""Executors agree: every method on every backbone that fits, uneven clients, batch norm and dropout."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import NormNet, backbone, federation, fits, method, result_bytes, run, training

from pflcore.backbones import BACKBONES, Backbone
from pflcore.engine.divergence import Diverged
from pflcore.engine.executor import choose_executor, worker_count
from pflcore.engine.pooled import Pooled
from pflcore.engine.sequential import Sequential
from pflcore.engine.trainer import Job, Trainer
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.methods import METHODS

# Clients of several sizes: one smaller than a batch, one of whole batches, the others with a last partial one.
UNEVEN = ((13, 3, 10, 7, 22), (5, 2, 6, 1, 9))
DROPOUT = {"tiny_vit": {"dropout": 0.2}}


def backbones() -> dict[str, Backbone]:
    return {name: backbone(name, **DROPOUT.get(name, {})) for name in BACKBONES.names()} | {"norm_net": NormNet()}


PAIRS = [(one, net) for one in METHODS.names() for net, made in backbones().items() if fits(method(one), made)]


@pytest.fixture(autouse=True)
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_WORKERS", "2")


def trainer(name: str = "fedavg", net: str = "convnet", **changes: object) -> tuple[Trainer, Tensors]:
    data = federation(*UNEVEN)
    model, groups = backbones()[net].create(data.shape, data.classes, 3)
    settings = replace(training(), **changes)  # type: ignore[arg-type]
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    return Trainer(model, groups.parameters, data, method(name), settings, 3), state


@pytest.mark.parametrize(("name", "net"), PAIRS)
def test_workers_give_the_bytes_of_the_sequential_executor(name: str, net: str) -> None:
    data, settings = federation(*UNEVEN), training(sample_rate=0.8)
    one, two = (
        run(method(name), backbones()[net], data, training=settings, executor=kind) for kind in ("sequential", "pooled")
    )
    assert result_bytes(one) == result_bytes(two)


def test_the_number_of_workers_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for count in ("1", "3", "8"):
        monkeypatch.setenv("PFL_WORKERS", count)
        results.append(result_bytes(run(method("fedper"), backbone("convnet"), federation(*UNEVEN), executor="pooled")))
    assert results[0] == results[1] == results[2]


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
    assert np.array_equal(scores.total, UNEVEN[1])


def test_jobs_are_drawn_as_workers_fall_idle() -> None:
    reference, state = trainer()
    drawn: list[int] = []

    def jobs() -> Iterator[Job]:
        for client in range(5):
            drawn.append(client)
            yield client, state

    with Pooled(reference, state, 1) as pooled:
        ours = [[drawn[:], job[0]] for job in jobs()]
        assert [len(so_far) for so_far, _ in ours] == [1, 2, 3, 4, 5]
        drawn.clear()
        pooled.score_each(jobs())
    assert drawn == list(range(5))


def test_results_that_nobody_waits_for_stop_the_work() -> None:
    reference, state = trainer()
    with Pooled(reference, state, 2) as pooled:
        outcomes = pooled.train(1, [(client, state) for client in range(5)])
        next(outcomes)
        processes = [worker.process for worker in pooled.workers]
        outcomes.close()  # type: ignore[attr-defined]
        assert not any(process.is_alive() for process in processes)
        assert [one.client for one in pooled.train(1, [(3, state), (2, state)])] == [3, 2]


def test_what_a_client_received_is_left_as_it_is() -> None:
    reference, state = trainer()
    before = {name: tensor.clone() for name, tensor in state.items()}
    with Pooled(reference, state, 2) as pooled:
        outcomes = list(pooled.train(1, [(client, state) for client in range(5)]))
    assert all(torch.equal(state[name], before[name]) for name in state)
    assert len({outcome.model["head.weight"].data_ptr() for outcome in outcomes}) == 5


@pytest.mark.parametrize("samples", [1, 1024, 1025, 2500])
def test_one_model_is_measured_over_chunks(samples: int) -> None:
    data = federation((4, 4), (1, samples))
    model, groups = backbone("convnet").create(data.shape, data.classes, 0)
    state = dict(model.state_dict())
    reference = Trainer(model, groups.parameters, data, method("fedavg"), training(), 0)
    with Pooled(reference, state, 2) as pooled:
        expected, scores = Sequential(reference).score_shared(state), pooled.score_shared(state)
        again = pooled.score_shared({name: torch.zeros_like(tensor) for name, tensor in state.items()})
    assert scores.total.tolist() == [1, samples]
    assert np.array_equal(scores.correct, expected.correct) and np.array_equal(scores.loss, expected.loss)
    assert np.allclose(again.loss, again.total * np.log(data.classes), rtol=1e-5)


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
    with Pooled(reference, state, 1) as pooled, pytest.raises(RuntimeError, match="in a worker process: IndexError"):
        pooled.score_each([(99, state)])


def test_no_process_is_left_behind() -> None:
    reference, state = trainer()
    with Pooled(reference, state, 2) as pooled:
        list(pooled.train(1, [(0, state)]))
        processes = [worker.process for worker in pooled.workers]
        assert all(process.is_alive() for process in processes)
    assert not any(process.is_alive() for process in processes)


def test_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, state = trainer()
    assert isinstance(choose_executor("auto", reference, state), Pooled)
    assert isinstance(choose_executor("sequential", reference, state), Sequential)
    monkeypatch.setenv("PFL_WORKERS", "1")
    assert isinstance(choose_executor("auto", reference, state), Sequential)
    with pytest.raises(UserError, match="did you mean 'pooled'"):
        choose_executor("poled", reference, state)


@pytest.mark.parametrize("value", ["0", "-1", "two", "²", "1.5"])
def test_a_wrong_number_of_workers(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_WORKERS", value)
    with pytest.raises(UserError, match="PFL_WORKERS"):
        worker_count()


def test_workers_are_the_cores_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PFL_WORKERS")
    assert 1 <= worker_count() <= (os.cpu_count() or 1)
