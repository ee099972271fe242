"""What a method is said to cost, against counts by hand."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import pytest
from support.tiny import CLASSES, SHAPE, backbone, federation, method, run, training
from torch import nn

from pflcore.backbones import Backbone


@dataclass(frozen=True, kw_only=True)
class Linear(Backbone):
    groups: ClassVar[dict[str, str]] = {"fc": r"fc\.", "head": r"head\."}

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(
            OrderedDict(flat=nn.Flatten(), fc=nn.Linear(64, 7), relu=nn.ReLU(), head=nn.Linear(7, classes))
        )


FORWARD = 64 * 7 + 7 * CLASSES
# Weights of both layers get gradients, and the output of the first one.
STEP = FORWARD + FORWARD + 7 * CLASSES


@pytest.mark.parametrize(("name", "factor"), [("fedavg", 1), ("fedprox", 1), ("ditto", 2), ("apfl", 2), ("pfedme", 5)])
def test_multiply_adds_of_a_step(name: str, factor: int) -> None:
    assert run(method(name), Linear()).cost.macs == factor * STEP


@pytest.mark.parametrize("sizes", [(1, 7, 9), (3, 7, 9)])
def test_samples_of_which_there_are_few_are_taken_again(sizes: tuple[int, ...]) -> None:
    assert run(method("fedavg"), Linear(), federation(sizes)).cost.macs == STEP


def test_a_convolution_and_attention_are_counted() -> None:
    assert run(method("fedavg"), backbone("convnet")).cost.macs > 3 * 8 * 8 * 3 * 9  # the first convolution alone
    shallow, deep = (run(method("fedavg"), backbone("tiny_vit", depth=depth)).cost.macs for depth in (1, 2))
    tokens, dim, inner, mlp = (SHAPE[1] // 4) ** 2 + 1, 8, 8, 12
    block = tokens * (dim * 3 * inner + inner * dim + 2 * dim * mlp) + 2 * tokens * tokens * inner
    assert deep - shallow == 3 * block  # forward, and twice that backward


def test_numbers_that_are_held() -> None:
    model = sum(parameter.numel() for parameter in Linear().create(SHAPE, CLASSES, 0)[0].parameters())
    head = 7 * CLASSES + CLASSES
    costs = {name: run(method(name), Linear()).cost for name in ("fedavg", "fedper", "local", "ditto", "apfl")}
    assert (costs["fedavg"].stored, costs["fedavg"].received, costs["fedavg"].server) == (0, model, model)
    assert (costs["fedper"].stored, costs["fedper"].received) == (head, model - head)
    assert (costs["local"].stored, costs["local"].received, costs["local"].server) == (model, 0, 0)
    assert (costs["ditto"].stored, costs["apfl"].stored) == (model, model + 1)
    assert costs["fedavg"].sent_up == costs["fedavg"].sent_down == 4 * model


def test_the_server_of_fedtp_holds_its_hypernetwork() -> None:
    cost = run(method("fedtp"), backbone("tiny_vit"), training=training(rounds=1)).cost
    embedding, hidden, layers, clients, qkv, blocks = 4, 6, 2, 3, 8 * 3 * 8, 2
    mlp = embedding * hidden + hidden + (layers - 1) * (hidden * hidden + hidden)
    hyper = clients * embedding + mlp + blocks * (hidden * qkv + qkv)
    assert cost.server == cost.received - blocks * qkv + hyper and cost.stored == 0
