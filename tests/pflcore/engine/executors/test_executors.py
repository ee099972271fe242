"""Executors agree: every method on every backbone that fits, uneven clients, batch norm and dropout."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cohorts import AMPLIFIED, FIRST, PAIRS, UNEVEN, assert_close, trainer, uneven_run
from support.tiers import SIX
from support.tiny import TEXT, assert_states_close, backbone, federation, method, result_bytes, training
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pflcore.client_view import CLASS_WEIGHTS
from pflcore.engine import Result
from pflcore.engine.client import Diverged, Job, Outcome, Trainer, balanced
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.executors import choose_executor, worker_count
from pflcore.engine.executors.pooled import Piece, Pooled, cut
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked, can_pad, take_turns
from pflcore.engine.executors.vectorised import REWRITTEN, weighted_batch_norm
from pflcore.engine.forward import Substitute
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.memory import TooLittleMemory
from pflcore.method import Batch, ClientView
from pflcore.methods.corrections import FedProx
from pflcore.methods.simple import FedAvg

MATRIX = pytest.mark.matrix


@pytest.fixture(autouse=True)
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_WORKERS", "2")


@cache
def reference_run(name: str, net: str) -> Result:
    return uneven_run(name, net, "sequential")


@pytest.mark.parametrize(
    ("name", "net"), [pytest.param(*one, marks=[] if one in FIRST and one[0] in SIX else MATRIX) for one in PAIRS]
)
def test_workers_give_the_bytes_of_the_sequential_executor(name: str, net: str) -> None:
    assert result_bytes(uneven_run(name, net, "pooled")) == result_bytes(reference_run(name, net))


# All clients in one stack; for a pair of each method also in several.
WIDTHS = [(*pair, width) for width in (64, 2) for pair in PAIRS if width == 64 or pair in FIRST]


@pytest.mark.parametrize(
    ("name", "net", "width"),
    [pytest.param(*one, marks=[] if one[:2] in FIRST and one[0] in SIX and one[2] == 64 else MATRIX) for one in WIDTHS],
)
def test_stacked_clients_agree_with_single_ones(name: str, net: str, width: int, monkeypatch: Any) -> None:
    monkeypatch.setenv("PFL_STACK", str(width))
    assert_close(uneven_run(name, net, "stacked"), reference_run(name, net), AMPLIFIED.get(name, 1e-6))


class Thrice(FedAvg):
    """The mean loss of three passes, each with other masks."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        return torch.stack([FedAvg.loss(self, local, params, batch) for _ in range(3)]).mean()


@pytest.mark.parametrize("kind", ["pooled", "stacked"])
def test_several_forward_passes_in_a_step_have_masks_of_their_own(kind: str) -> None:
    reference, state = trainer("fedavg", "tiny_vit")
    plain = reference.train(1, 0, state).loss
    reference.method = Thrice()
    with choose_executor(kind, reference, state) as executor:
        outcomes = list(executor.train(1, [(client, state) for client in (0, 3)]))
    for one in outcomes:
        assert_states_close(one.model, reference.train(1, one.client, state).model)
    assert abs(plain - outcomes[0].loss) > 1e-4


def test_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, state = trainer()
    for name, kind in (("auto", Pooled), ("sequential", Sequential), ("stacked", Stacked)):
        assert type(choose_executor(name, reference, state)) is kind
    with pytest.raises(UserError, match="did you mean 'pooled'"):
        choose_executor("poled", reference, state)
    for variable, name in (("PFL_WORKERS", "pooled"), ("PFL_STACK", "stacked")):
        for value in ("0", "two", "²", "1.5"):
            monkeypatch.setenv(variable, value)
            with pytest.raises(UserError, match=variable):
                choose_executor(name, reference, state)
    monkeypatch.setenv("PFL_WORKERS", "1")
    assert type(choose_executor("auto", reference, state)) is Sequential
    monkeypatch.delenv("PFL_WORKERS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5, 6}, raising=False)
    assert worker_count() == 4
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert worker_count() == 6


@pytest.mark.parametrize("kind", ["pooled", "stacked"])
def test_the_first_divergence_in_order_is_told(kind: str) -> None:
    reference, state = trainer()
    lost = {name: torch.full_like(tensor, float("nan")) for name, tensor in state.items()}
    with choose_executor(kind, reference, state) as executor:
        with pytest.raises(Diverged, match="round 5 at client 4"):
            list(executor.train(5, [(2, state), (4, lost), (1, lost)]))
        # The executor is not confused by what another worker still had to say.
        scores = executor.score_each((client, state) for client in range(5))
    assert np.array_equal(scores.column("total"), UNEVEN[1])


# --- pooled ----------------------------------------------------------------------------------------------------------


def test_results_that_nobody_waits_for_stop_the_work() -> None:
    reference, state = trainer()
    with Pooled(reference, state, 2) as pooled:
        outcomes = pooled.train(1, [(client, state) for client in range(5)])
        next(outcomes)
        processes = [worker.process for worker in pooled.workers]
        outcomes.close()  # type: ignore[attr-defined]
        assert not any(process.is_alive() for process in processes)
        assert [one.client for one in pooled.train(1, [(3, state), (2, state)])] == [3, 2]


@pytest.mark.parametrize("samples", [1, 257, 700])
def test_one_model_is_measured_over_chunks(samples: int) -> None:
    data = federation((4, 4), (1, samples))
    model, groups = backbone("convnet").create(data.shape, data.classes, 0)
    state = dict(model.state_dict())
    reference = make_trainer(model, groups, data, method("fedavg"), training(), 0)
    with Pooled(reference, state, 2) as pooled:
        expected, scores = Sequential(reference).score_shared(state), pooled.score_shared(state)
        again = pooled.score_shared({name: torch.zeros_like(tensor) for name, tensor in state.items()})
    assert scores.column("total").tolist() == [1, samples] and np.array_equal(scores.values, expected.values)
    assert np.allclose(again.column("loss"), again.column("total") * np.log(data.classes), rtol=1e-5)


def test_workers_that_die_or_fail_say_it() -> None:
    reference, state = trainer()
    with Pooled(reference, state, 2) as pooled:
        list(pooled.train(1, [(0, state)]))
        for worker in pooled.workers:
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.join()
        with pytest.raises(UserError, match=r"^a worker process died \(exit code -9\).*PFL_WORKERS"):
            list(pooled.train(1, [(0, state), (1, state)]))
        with pytest.raises(IndexError) as error:
            pooled.score_each([(99, state)])
    assert "in score_client" in "".join(error.value.__notes__)


def finish(pieces: list[Piece], workers: int) -> int:
    """When the last worker is done, if idle ones take pieces in order and a job's pieces do not overlap."""
    free, ended = [0] * workers, {}
    for piece in pieces:
        worker = min(range(workers), key=free.__getitem__)
        start = max(free[worker], ended.get(piece.job, 0))
        ended[piece.job] = free[worker] = start + piece.stop - piece.start
    return max(free)


def test_five_equal_clients_take_two_workers_two_and_a_half_turns() -> None:
    pieces = cut([80] * 5, 2)
    assert pieces == [Piece(2, 0, 40), *(Piece(job, 0, 80) for job in (0, 1, 3, 4)), Piece(2, 40, 80)]
    assert finish(pieces, 2) == 200
    for steps, workers in (([80] * 4, 2), ([80] * 5, 1), ([7], 3), ([100, 1, 1], 2), ([], 2)):  # it does not pay
        assert cut(steps, workers) == [Piece(job, 0, count) for job, count in enumerate(steps)]


@given(st.lists(st.integers(1, 200), max_size=30), st.integers(1, 9))
def test_every_step_is_in_one_piece_in_order_and_no_round_takes_longer(steps: list[int], workers: int) -> None:
    pieces, whole = cut(steps, workers), [Piece(job, 0, count) for job, count in enumerate(steps)]
    for job, count in enumerate(steps):
        own = [piece for piece in pieces if piece.job == job]
        assert [piece.start for piece in own] == [0, *(piece.stop for piece in own[:-1])]
        assert own[-1].stop == count and len(own) <= 2
    assert len(pieces) - len(steps) < workers and finish(pieces, workers) <= finish(whole, workers)


# --- stacked: memory -------------------------------------------------------------------------------------------------


class Short(Stacked):
    """Has memory for two clients, or for none."""

    room, widths = 2, ()

    def _train(self, round_: int, jobs: Sequence[Job], part: int) -> list[Outcome]:
        self.widths += (len(jobs),)
        if len(jobs) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore")
        return super()._train(round_, jobs, part)


def test_a_stack_that_does_not_fit_is_made_smaller() -> None:
    reference, state = trainer()
    short, jobs = Short(reference, 8), [(client, state) for client in range(5)]
    for outcome, other in zip(short.train(1, jobs), Sequential(reference).train(1, jobs), strict=True):
        assert outcome.client == other.client
        assert_states_close(outcome.model, other.model)
    assert short.widths == (5, 2, 2, 1)
    short.room = 0
    with pytest.raises(
        TooLittleMemory, match=r"^not enough memory on cpu for one client \(CUDA out of memory\.\); use"
    ):
        list(short.train(1, jobs))


@pytest.mark.parametrize("words", ["CUDA out of memory.", "CUDA error: out of memory\nmore"])
def test_measuring_takes_fewer_samples_at_once_where_memory_is_short(words: str, monkeypatch: Any) -> None:
    reference, state = trainer()
    jobs = [(client, state) for client in range(5)]
    expected = Sequential(reference).score_shared(state), Sequential(reference).score_each(jobs)
    predict, tried, stacked = Trainer.predict, [], Stacked(reference, 8)

    def short(self: Trainer, state: Tensors, inputs: Tensor) -> Tensor:
        tried.append(len(inputs))
        if len(inputs) > 3:
            raise RuntimeError(words)
        return predict(self, state, inputs)

    monkeypatch.setattr(Trainer, "predict", short)
    for one, other in zip((stacked.score_shared(state), stacked.score_each(jobs)), expected, strict=True):
        np.testing.assert_allclose(one.values, other.values, rtol=1e-5)
    assert max(tried) > 3 and stacked.width == 8
    monkeypatch.setattr(Trainer, "predict", lambda *_: (_ for _ in ()).throw(RuntimeError(words)))
    for measure in (lambda: stacked.score_shared(state), lambda: stacked.score_each(jobs)):
        with pytest.raises(TooLittleMemory, match="not enough memory on cpu for one client"):
            measure()


# --- stacked: small batches are filled up where a client's step stays what it is; others go together by their size ----


class Undeclared(FedAvg):
    """Does not say of its loss what it sees."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        return super().loss(local, params, batch)


@pytest.mark.parametrize(
    ("entry", "net", "weighted", "shapes"),
    [
        (FedAvg, "convnet", True, 1),
        (FedAvg, "tiny_vit", False, 1),
        (FedAvg, TEXT, False, 1),
        (FedAvg, "norm_net", False, 1),
        (Undeclared, "convnet", False, 3),
    ],
)
def test_uneven_clients_step_side_by_side(entry: type[FedAvg], net: str, weighted: bool, shapes: int) -> None:
    reference, state = trainer("fedavg", net, momentum=0.5, **({"batch_size": 6} if net == "norm_net" else {}))
    reference.method, clients, jobs = entry(), range(reference.data.clients), []
    for client in clients:
        weights = {CLASS_WEIGHTS: balanced(reference.data.class_counts(client))} if weighted else {}
        jobs.append((client, {**state, **weights}))
    stacked, seen = Stacked(reference, 8), []
    replay = stacked.replay

    def watched(*arguments: Any) -> Any:
        seen.append(arguments[4].shape)  # of the inputs
        return replay(*arguments)

    stacked.replay = watched  # type: ignore[assignment]
    outcomes = list(stacked.train(1, jobs))
    assert len(set(seen)) == shapes and (shapes > 1 or len(seen) == max(map(reference.local.steps, clients)))
    for one, other in zip(outcomes, Sequential(reference).train(1, jobs), strict=True):
        assert_states_close(one.model, other.model)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)


class Louder(FedProx):
    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        return super().loss(local, params, batch) * len(batch.labels)


class Same(FedProx):
    def eval_state(self, state: Tensors) -> Tensors:
        return state


def test_what_looks_at_more_than_the_cross_entropy_or_across_samples_is_left_alone() -> None:
    reference, _ = trainer()
    for entry, padded in ((FedProx, True), (Louder, False), (Same, True), (Undeclared, False)):
        reference.method = entry()
        assert can_pad(reference) == padded
    reference.method = FedProx()
    reference.other_statistics = True
    assert not can_pad(reference)
    assert not DropoutBits(nn.Sequential(nn.Flatten(0, 1), nn.Dropout(0.5)), torch.zeros(1, 3, 4)).by_sample
    assert trainer("fedavg", "norm_net")[0].other_statistics is False


@given(st.lists(st.lists(st.integers(1, 5), max_size=12), max_size=9), st.booleans())
def test_every_step_is_taken_once_and_in_order(sizes: list[list[int]], pads: bool) -> None:
    turns = list(take_turns(sizes, pads))
    for client, own in enumerate(sizes):
        assert [turn[client] for turn in turns if turn[client] is not None] == list(range(len(own)))
    taken = [{sizes[one][at] for one, at in enumerate(turn) if at is not None} for turn in turns]
    assert all(taken) and (pads or all(len(one) == 1 for one in taken))
    full = len(turns) if pads else sum(one == {5} for one in taken)
    assert full == max((len(own) if pads else own.count(5) for own in sizes), default=0)


# --- stacked: functions in forms of ours have the values and gradients of PyTorch's ----------------------------------

QKV = [torch.randn(3, 2, length, 5, generator=torch.Generator().manual_seed(length)).double() for length in (4, 6, 6)]


def norm(x: Tensor, *own: Tensor) -> Tensor:
    return F.layer_norm(x, (5,), *own, eps=0.1)


@pytest.mark.parametrize(
    ("form", "shapes"),
    [
        (norm, []),
        (norm, [(5,)]),
        (norm, [(5,), (5,)]),
        (F.linear, [(6, 5)]),
        (F.linear, [(6, 5), (6,)]),
        (F.scaled_dot_product_attention, QKV),
        (lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), QKV),
        (lambda *qkv: F.scaled_dot_product_attention(*qkv, scale=0.5), QKV),
    ],
)
def test_rewritten_layers(form: Any, shapes: list[Any]) -> None:
    torch.manual_seed(0)
    given = QKV if shapes is QKV else [torch.randn(3, *shape).double() for shape in [(4, 2, 5), *shapes]]
    slopes = vmap(grad(lambda *given: form(*given).sin().sum(), tuple(range(len(given)))))
    with sdpa_kernel(SDPBackend.MATH):
        expected = slopes(*given)
        with Substitute(REWRITTEN):
            torch.testing.assert_close(slopes(*given), expected, atol=1e-12, rtol=1e-12)


def test_batch_norm_takes_its_statistics_over_what_has_weight() -> None:
    torch.manual_seed(0)
    x, counts = torch.randn(2, 6, 3, 4).double(), (4, 2)
    weight = torch.tensor([[1.0] * count + [0.0] * (6 - count) for count in counts]).double()
    running, affine = [torch.randn(2, 3).double(), torch.rand(2, 3).double()], [torch.rand(3).double() for _ in "wb"]

    def normalised(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = mean.clone(), variance.clone()
        return weighted_batch_norm(weight, x, mean, variance, *affine, training=True, momentum=0.3), mean, variance

    found = vmap(normalised)(x, *running, weight)
    for client, count in enumerate(counts):
        mean, variance = (one[client].clone() for one in running)
        expected = F.batch_norm(x[client, :count], mean, variance, *affine, training=True, momentum=0.3)
        torch.testing.assert_close(found[0][client, :count], expected)
        torch.testing.assert_close((found[1][client], found[2][client]), (mean, variance))
