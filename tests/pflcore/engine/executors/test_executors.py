"""Executors agree: every method on every backbone that fits, uneven clients, batch norm and dropout."""

import os
import signal
from functools import cache
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cohorts import AMPLIFIED, FIRST, PAIRS, UNEVEN, assert_close, trainer, uneven_run
from support.mistakes import refuses
from support.tiers import SIX, few_of
from support.tiny import backbone, create, federation, first_fitting, method, result_bytes, run, suited, training

from pflcore.engine.client import Diverged
from pflcore.engine.evaluation import COLUMNS
from pflcore.engine.executors import choose_executor
from pflcore.engine.executors.pooled import Piece, Pooled, split_jobs
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.memory import worker_count
from pflcore.methods import METHODS


@pytest.fixture(autouse=True)
def two_workers(monkeypatch):
    monkeypatch.setenv("PFL_WORKERS", "2")


@cache
def reference_run(name, net):
    return uneven_run(name, net, "sequential")


QUICK = [pair for pair in FIRST if pair[0] in SIX]
WIDE, NARROW = ([(*pair, width) for pair in pairs] for width, pairs in ((64, PAIRS), (2, FIRST)))


@pytest.mark.parametrize("name, net", few_of(PAIRS, QUICK))
def test_workers_give_the_bytes_of_the_sequential_executor(name, net):
    assert result_bytes(uneven_run(name, net, "pooled")) == result_bytes(reference_run(name, net))


@pytest.mark.parametrize("name, net, width", few_of(WIDE + NARROW, [(*pair, 64) for pair in QUICK]))
def test_stacked_clients_agree_with_single_ones(name, net, width, monkeypatch):
    monkeypatch.setenv("PFL_STACK", str(width))
    assert_close(uneven_run(name, net, "stacked"), reference_run(name, net), AMPLIFIED.get(name, 1e-6))


def test_the_choice(monkeypatch):
    reference, state = trainer()
    for name, kind in (("auto", Pooled), ("sequential", Sequential), ("stacked", Stacked)):
        assert type(choose_executor(name, reference, state)) is kind
    refuses("did you mean 'pooled'", choose_executor, "poled", reference, state)
    for variable, name in (("PFL_WORKERS", "pooled"), ("PFL_STACK", "stacked")):
        monkeypatch.setenv(variable, "0")
        refuses(variable, choose_executor, name, reference, state)
    monkeypatch.setenv("PFL_WORKERS", "1")
    assert type(choose_executor("auto", reference, state)) is Sequential
    monkeypatch.delenv("PFL_WORKERS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5, 6}, raising=False)
    assert worker_count() == 4
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert worker_count() == 6


@pytest.mark.parametrize("name", METHODS.names())
def test_a_trainer_reaches_workers_that_are_not_forked(name):  # as on macOS, where it is pickled
    entry = method(name)
    net = first_fitting(entry)
    ForkingPickler.dumps(make_trainer(*create(net, 3, entry), suited(net), entry, training(), 3))


@pytest.mark.parametrize("kind", ["pooled", "stacked"])
def test_the_first_divergence_in_order_is_told(kind):
    reference, state = trainer()
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in state.items()}
    with choose_executor(kind, reference, state) as executor:
        with pytest.raises(Diverged, match="round 5 at client 4"):
            list(executor.train(5, [(2, state), (4, broken), (1, broken)]))
        # The executor is not confused by what another worker still had to say.
        scores = executor.score_each((client, state) for client in range(5))
    assert np.array_equal(scores[0, COLUMNS.index("total")], UNEVEN[1])


@pytest.mark.parametrize("samples", [1, 257, 700])
def test_one_model_is_measured_over_chunks_that_are_cut_inside_clients(samples):
    data = federation((4, 4), (3, samples))
    model, groups = backbone("convnet").create(data.shape, data.classes, 0)
    state, reference = dict(model.state_dict()), make_trainer(model, groups, data, method("fedavg"), training(), 0)
    with Pooled(reference, state, 2) as pooled:
        expected, scores = Sequential(reference).score_shared(state), pooled.score_shared(state)
        zero_scores = pooled.score_shared({name: torch.zeros_like(tensor) for name, tensor in state.items()})
    each = Sequential(reference).score_each([(0, state), (1, state)])
    np.testing.assert_allclose(scores, each, rtol=1e-6)
    total, loss = (COLUMNS.index(name) for name in ("total", "loss"))
    assert scores[0, total].tolist() == [3, samples] and np.array_equal(scores, expected)
    assert np.allclose(zero_scores[0, loss], zero_scores[0, total] * np.log(data.classes), rtol=1e-5)


def test_workers_stop_where_nobody_waits_for_them_and_say_that_they_died_or_failed():
    reference, state = trainer()
    with Pooled(reference, state, 2) as pooled:
        outcomes = pooled.train(1, [(client, state) for client in range(5)])
        next(outcomes)
        processes = [worker.process for worker in pooled.workers]
        outcomes.close()
        assert not any(process.is_alive() for process in processes)
        assert [outcome.client for outcome in pooled.train(1, [(3, state), (2, state)])] == [3, 2]
        for worker in pooled.workers:
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.join()
        with pytest.raises(UserError, match=r"^a worker process died \(exit code -9\).*PFL_WORKERS"):
            list(pooled.train(1, [(0, state), (1, state)]))
        with pytest.raises(IndexError) as error:
            pooled.score_each([(99, state)])
    assert "in score_client" in "".join(error.value.__notes__)


def test_five_equal_clients_take_two_workers_two_and_a_half_turns():
    pieces = split_jobs([80] * 5, 2)
    assert pieces == [Piece(2, 0, 40), *(Piece(job, 0, 80) for job in (0, 1, 3, 4)), Piece(2, 40, 80)]
    for steps, workers in (([80] * 4, 2), ([80] * 5, 1), ([7], 3), ([100, 1, 1], 2), ([], 2)):  # it does not pay
        assert split_jobs(steps, workers) == [Piece(job, 0, count) for job, count in enumerate(steps)]


@given(st.lists(st.integers(1, 200), max_size=30), st.integers(1, 9))
def test_every_step_is_in_one_piece_in_order(steps, workers):
    pieces = split_jobs(steps, workers)
    for job, count in enumerate(steps):
        job_pieces = [piece for piece in pieces if piece.job == job]
        assert [piece.start for piece in job_pieces] == [0, *(piece.stop for piece in job_pieces[:-1])]
        assert job_pieces[-1].stop == count and len(job_pieces) <= 2
    assert len(pieces) - len(steps) < workers


def test_workers_need_no_shared_memory(monkeypatch):
    def full(*_):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: Success (0)")

    for name in ("_share_filename_cpu_", "_share_fd_cpu_"):
        monkeypatch.setattr(torch.UntypedStorage, name, full)
    pooled, alone = (run(method("fedavg"), backbone("convnet"), executor=name) for name in ("pooled", "sequential"))
    assert result_bytes(pooled) == result_bytes(alone)
