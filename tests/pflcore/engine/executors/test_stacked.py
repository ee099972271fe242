"""Stacked clients: what there is memory for, who steps with whom, and functions in forms of ours."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cohorts import trainer
from support.tiny import TEXT, assert_states_close
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pflcore.client_view import CLASS_WEIGHTS
from pflcore.engine.client import Trainer, balanced
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked, can_pad, schedule
from pflcore.engine.executors.vectorised import REWRITTEN, vectorisable
from pflcore.engine.forward import Substitute
from pflcore.engine.linear import split_linear
from pflcore.memory import TooLittleMemory
from pflcore.methods.corrections import FedProx
from pflcore.methods.simple import FedAvg


def test_a_stack_that_does_not_fit_is_made_smaller(monkeypatch):
    (reference, state), limit, widths = trainer(), 2, []
    train = Stacked.train_stack

    def short(self, round_, jobs, part):
        widths.append(len(jobs))
        if len(jobs) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore")
        return train(self, round_, jobs, part)

    monkeypatch.setattr(Stacked, "train_stack", short)
    stacked, jobs = Stacked(reference, 8), [(client, state) for client in range(5)]
    for outcome, other in zip(stacked.train(1, jobs), Sequential(reference).train(1, jobs), strict=True):
        assert outcome.client == other.client
        assert_states_close(outcome.model, other.model)
    assert widths == [5, 2, 2, 1]
    limit = 0
    with pytest.raises(TooLittleMemory, match=r"^not enough memory on cpu for one client \(CUDA"):
        list(stacked.train(1, jobs))


@pytest.mark.parametrize("words", ["CUDA out of memory.", "CUDA error: out of memory\nmore"])
def test_measuring_takes_fewer_samples_at_once_where_memory_is_short(words, monkeypatch):
    reference, state = trainer()
    jobs = [(client, state) for client in range(5)]
    expected = Sequential(reference).score_shared(state), Sequential(reference).score_each(jobs)
    predict, limit, tried, stacked = Trainer.predict, 3, [], Stacked(reference, 8)

    def short(self, state, inputs):
        tried.append(len(inputs))
        if len(inputs) > limit:
            raise RuntimeError(words)
        return predict(self, state, inputs)

    monkeypatch.setattr(Trainer, "predict", short)
    for actual, other in zip((stacked.score_shared(state), stacked.score_each(jobs)), expected, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-5)
    assert max(tried) > 3 and stacked.width == 8
    limit = 0
    for measure, states in ((stacked.score_shared, state), (stacked.score_each, jobs)):
        with pytest.raises(TooLittleMemory, match="not enough memory on cpu for one client"):
            measure(states)


class Undeclared(FedAvg):
    """Does not say of its loss what it sees."""

    def loss(self, local, params, batch):
        return super().loss(local, params, batch)


@pytest.mark.parametrize(
    "entry, net, weighted",
    [
        (FedAvg, "convnet", True),
        *((FedAvg, net, False) for net in ("tiny_vit", TEXT, "norm_net")),
        (Undeclared, "convnet", False),
    ],
)
def test_uneven_clients_step_side_by_side(entry, net, weighted):
    reference, state = trainer("fedavg", net, momentum=0.5, **({"batch_size": 6} if net == "norm_net" else {}))
    reference.method, clients, jobs, seen = entry(), range(reference.data.clients), [], []
    for client in clients:
        weights = {CLASS_WEIGHTS: balanced(reference.data.class_counts(client))} if weighted else {}
        jobs.append((client, {**state, **weights}))
    stacked = Stacked(reference, 8)
    replay = stacked.replay

    def watched(*arguments):
        seen.append(arguments[4].shape)  # of the inputs
        return replay(*arguments)

    stacked.replay = watched
    outcomes = list(stacked.train(1, jobs))
    if entry is Undeclared:  # only batches of equal size, 5, 3 or 2, go together
        assert len(set(seen)) == 3
    else:  # a batch of one size, and a stack of five clients, or of half of these where the others have finished
        assert len({shape[1] for shape in seen}) == 1
        steps = [reference.local.steps(1, client) for client in clients]
        active = [sum(count > step for count in steps) for step in range(max(steps))]
        assert [shape[0] for shape in seen] == [
            min(width for width in (5, 3, 2, 1) if width >= clients) for clients in active
        ]
        assert seen[0][0] == 5 and seen[-1][0] < 5
    for actual, other in zip(outcomes, Sequential(reference).train(1, jobs), strict=True):
        assert_states_close(actual.model, other.model)
        assert actual.loss == pytest.approx(other.loss, rel=1e-5)


@pytest.mark.parametrize("passes", [0.5, 0.4, 0.3, 0.1])
def test_clients_without_a_step_in_a_part_of_a_round_stay_as_they_are(passes):
    reference, state = trainer()
    reference.local = replace(reference.local, passes=passes)
    jobs = [(client, state) for client in range(reference.data.clients)]
    steps = [reference.local.steps(1, client) for client, _ in jobs]
    assert 0 in steps
    pairs = zip(Stacked(reference, 8).train(1, jobs), Sequential(reference).train(1, jobs), strict=True)
    for count, (actual, other) in zip(steps, pairs, strict=True):
        assert_states_close(actual.model, other.model if count else state)
        assert actual.loss == pytest.approx(other.loss, rel=1e-5)


class Louder(FedProx):
    def loss(self, local, params, batch):
        return super().loss(local, params, batch) * len(batch.labels)


def test_what_looks_at_more_than_the_cross_entropy_or_across_samples_is_left_alone():
    reference, _ = trainer()
    for entry, padded in ((Louder, False), (Undeclared, False), (FedProx, True)):
        reference.method = entry()
        assert can_pad(reference) == padded
    reference.other_statistics = True
    assert not can_pad(reference)
    assert not DropoutBits(nn.Sequential(nn.Flatten(0, 1), nn.Dropout(0.5)), torch.zeros(1, 3, 4)).by_sample
    assert trainer("fedavg", "norm_net")[0].other_statistics is False


@given(st.lists(st.lists(st.integers(1, 5), max_size=12), max_size=9), st.booleans())
def test_every_step_is_taken_once_and_in_order(sizes, pads):
    turns = list(schedule(sizes, pads))
    for client, client_sizes in enumerate(sizes):
        assert [turn[client] for turn in turns if turn[client] is not None] == list(range(len(client_sizes)))
    groups = [{sizes[client][step] for client, step in enumerate(turn) if step is not None} for turn in turns]
    assert all(groups) and (pads or all(len(group) == 1 for group in groups))
    full = len(turns) if pads else sum(group == {5} for group in groups)
    assert full == max((len(client_sizes) if pads else client_sizes.count(5) for client_sizes in sizes), default=0)


QKV = [(2, 4, 5), (2, 6, 5), (2, 6, 5)]


def norm(x, *weights):
    return F.layer_norm(x, (5,), *weights, eps=0.1)


@pytest.mark.parametrize(
    "form, shapes",
    [
        *((norm, [(4, 2, 5), *weights]) for weights in ([], [(5,)], [(5,), (5,)])),
        *((F.linear, [(4, 2, 5), *weights]) for weights in ([(6, 5)], [(6, 5), (6,)])),
        (split_linear, [(4, 256, 5), (6, 5)]),
        (F.scaled_dot_product_attention, QKV),
        (lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), QKV),
        (lambda *qkv: F.scaled_dot_product_attention(*qkv, scale=0.5), QKV),
    ],
)
def test_rewritten_layers(form, shapes):
    """First and second slopes, of (clients, …), equal PyTorch's."""
    torch.manual_seed(0)
    arguments = [torch.randn(3, *shape).double() for shape in shapes]
    every = tuple(range(len(arguments)))

    def first(layer):
        return grad(lambda *tensors: layer(*tensors).sin().sum(), every)

    def second(layer):
        return grad(lambda *tensors: sum(slope.cos().sum() for slope in first(layer)(*tensors)), every)

    plain = F.linear if form is split_linear else form
    with sdpa_kernel(SDPBackend.MATH):
        for order in (first, second):
            expected = vmap(order(plain))(*arguments)
            with Substitute(REWRITTEN):
                torch.testing.assert_close(vmap(order(form))(*arguments), expected, atol=1e-12, rtol=1e-12)


def test_fused_attention_of_clients_who_share_keys():
    """First and second slopes of a fused kernel in single precision equal those of the formula in double precision."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(3, 2, 4, 7, 8)

    def slopes(attend, *qkv):
        return vmap(grad(lambda *tensors: attend(*tensors).sin().sum(), (0, 1, 2)), in_dims=(0, None, 0))(*qkv)

    def formula(q, k, v):
        return (q @ k.mT / 8**0.5).softmax(-1) @ v

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def second(attend, *qkv):
        def first(*tensors):
            return grad(lambda *directions: attend(*directions).sin().sum(), 1)(*tensors).cos().sum()

        return vmap(grad(first, (0, 1, 2)), in_dims=(0, None, 0))(*qkv)

    double = q.double(), k.double(), v.double()
    expected = slopes(formula, *double) + second(formula, *double)
    with vectorisable():
        actual = slopes(attend, q, k, v)
        actual += second(attend, q, k, v)
    for result, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(result.double(), other, atol=1e-5, rtol=1e-5)
