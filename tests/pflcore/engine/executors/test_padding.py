"""Small batches are filled up where a client's step stays what it is; others go together by their size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cohorts import UNEVEN, backbones
from support.tiny import TEXT, assert_states_close, method, suited, training
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from pflcore.client_view import CLASS_WEIGHTS
from pflcore.engine.client import Trainer, balanced
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked, can_pad, take_turns
from pflcore.engine.executors.vectorised import Weighted
from pflcore.engine.phases import make_trainer
from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView
from pflcore.methods.fedprox import FedProx
from pflcore.methods.simple import FedAvg


def made(name: str, net: str, **changes: Any) -> tuple[Trainer, Tensors]:
    data = suited(backbones()[net], *UNEVEN)
    model, groups = backbones()[net].create(data.shape, data.classes, 3)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    return make_trainer(model, groups, data, method(name), training(momentum=0.5, **changes), 3), state


class Undeclared(FedAvg):
    """Does not say of its loss what it sees."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        return super().loss(local, params, batch)


@pytest.mark.parametrize(
    ("name", "net", "weighted", "shapes"),
    [
        ("fedavg", "convnet", False, 1),
        ("fedavg", "convnet", True, 1),
        ("fedavg", "tiny_vit", True, 1),
        ("fedavg", TEXT, False, 1),
        ("fedavg", "norm_net", False, 1),
        ("undeclared", "convnet", False, 3),
    ],
)
def test_uneven_clients_step_side_by_side(name: str, net: str, weighted: bool, shapes: int) -> None:
    trainer, state = made("fedavg", net, **({"batch_size": 6} if net == "norm_net" else {}))
    if name == "undeclared":
        trainer.method = Undeclared()
    jobs = []
    for client in range(trainer.data.clients):
        weights = {CLASS_WEIGHTS: balanced(trainer.data.class_counts(client))} if weighted else {}
        jobs.append((client, {**state, **weights}))
    stacked, seen = Stacked(trainer, 8), []
    replay = stacked.replay

    def watched(*arguments: Any) -> Any:
        seen.append(arguments[4].shape)  # of the inputs
        return replay(*arguments)

    stacked.replay = watched  # type: ignore[assignment]
    outcomes = list(stacked.train(1, jobs))
    assert len(set(seen)) == shapes
    if shapes == 1:
        assert len(seen) == max(map(trainer.steps, range(trainer.data.clients)))
    for one, other in zip(outcomes, Sequential(trainer).train(1, jobs), strict=True):
        assert_states_close(one.model, other.model)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)


@pytest.mark.parametrize(("name", "padded"), [("fedavg", True), ("fedproto", False), ("moon", False)])
def test_a_loss_that_looks_at_more_than_the_cross_entropy_is_left_alone(name: str, padded: bool) -> None:
    assert can_pad(made(name, "norm_net")[0]) == padded


def test_who_overrides_a_loss_has_to_say_it_anew() -> None:
    class Louder(FedProx):
        def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
            return super().loss(local, params, batch) * len(batch.labels)

    class Same(FedProx):
        def personalised(self, state: Tensors) -> Tensors:
            return state

    trainer, _ = made("fedprox", "convnet")
    assert can_pad(trainer)
    for kind, expected in ((Louder, False), (Same, True)):
        trainer.method = kind()
        assert can_pad(trainer) == expected


def test_layers_that_look_across_samples_are_left_alone() -> None:
    data = suited(backbones()["convnet"], *UNEVEN)
    model, groups = backbones()["convnet"].create(data.shape, data.classes, 3)
    model.register_buffer("mean", torch.zeros(1))
    assert not can_pad(make_trainer(model, groups, data, method("fedavg"), training(), 3))
    trainer, _ = made("fedavg", "convnet")
    trainer.noise = DropoutBits(nn.Sequential(nn.Flatten(0, 1), nn.Dropout(0.5)), torch.zeros(1, 3, 4))
    assert not can_pad(trainer)


def test_the_samples_of_a_batch_that_is_filled_up_have_the_masks_of_the_batch() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(6, 5), nn.Dropout(0.25))
    noise = DropoutBits(model, torch.zeros(1, 2, 3))
    model.train()
    bits = noise.draw(3, 1)

    def outputs(bits: Tensor, x: Tensor) -> Tensor:
        noise.load(bits)
        return model(x)

    x = torch.rand(7, 2, 3)
    torch.testing.assert_close(outputs(noise.fill(bits, 3, 7), x)[:3], outputs(bits, x[:3]))


def test_batch_norm_takes_its_statistics_over_what_has_weight() -> None:
    torch.manual_seed(0)
    x, counts = torch.randn(2, 6, 3, 4).double(), (4, 2)
    weight = torch.tensor([[1.0] * count + [0.0] * (6 - count) for count in counts]).double()
    running, affine = [torch.randn(2, 3).double(), torch.rand(2, 3).double()], [torch.rand(3).double() for _ in "wb"]

    def normalised(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = mean.clone(), variance.clone()
        with Weighted(weight):
            return F.batch_norm(x, mean, variance, *affine, training=True, momentum=0.3), mean, variance

    found = vmap(normalised)(x, *running, weight)
    for client, count in enumerate(counts):
        mean, variance = (one[client].clone() for one in running)
        expected = F.batch_norm(x[client, :count], mean, variance, *affine, training=True, momentum=0.3)
        torch.testing.assert_close(found[0][client, :count], expected)
        torch.testing.assert_close((found[1][client], found[2][client]), (mean, variance))


# --- who takes a step when -------------------------------------------------------------------------------------------


def test_batches_that_are_filled_up_are_taken_step_by_step() -> None:
    assert list(take_turns([[4, 1], [4, 4, 2], [], [3]], True)) == [
        [0, 0, None, 0],
        [1, 1, None, None],
        [None, 2] + 2 * [None],
    ]
    assert list(take_turns([], True)) == []


def test_clients_take_the_rest_of_their_epochs_while_others_wait() -> None:
    sizes = [[4, 4, 2, 4, 4, 2], [4, 2, 4, 2], [3, 3]]
    turns = [[(one, at) for one, at in enumerate(turn) if at is not None] for turn in take_turns(sizes, False)]
    assert turns == [
        [(2, 0)],
        [(2, 1)],
        [(0, 0), (1, 0)],
        [(1, 1)],
        [(0, 1), (1, 2)],
        [(0, 2), (1, 3)],
        [(0, 3)],
        [(0, 4)],
        [(0, 5)],
    ]


@given(st.lists(st.lists(st.integers(1, 5), max_size=12), max_size=9), st.booleans())
def test_every_step_is_taken_once_in_order_and_full_batches_go_together(sizes: list[list[int]], pads: bool) -> None:
    turns = list(take_turns(sizes, pads))
    for client, own in enumerate(sizes):
        assert [turn[client] for turn in turns if turn[client] is not None] == list(range(len(own)))
    taken = [{sizes[one][at] for one, at in enumerate(turn) if at is not None} for turn in turns]
    assert all(taken) and (pads or all(len(one) == 1 for one in taken))
    if pads:
        assert len(turns) == max(map(len, sizes), default=0)
    else:
        assert sum(one == {5} for one in taken) == max((own.count(5) for own in sizes), default=0)
