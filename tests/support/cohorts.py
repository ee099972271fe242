"""Cohorts of uneven clients, and all pairs of method and backbone that fit, for tests of executors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from pflcore.backbones import BACKBONES, Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine import Result
from pflcore.engine.client import Trainer
from pflcore.engine.phases import make_trainer
from pflcore.groups import Tensors
from pflcore.methods import METHODS
from support.tiers import first_of_each, quick
from support.tiny import (
    NormNet,
    assert_states_close,
    backbone,
    federation,
    fits,
    method,
    pairs,
    result_bytes,
    run,
    suited,
    training,
)

# Clients of several sizes: one smaller than a batch, one of whole batches, the others with a last partial one.
UNEVEN = ((13, 3, 10, 7, 22), (5, 2, 6, 1, 9))
DROPOUT = {"tiny_vit": {"dropout": 0.2}}


@cache
def backbones() -> dict[str, Backbone]:
    return {name: backbone(name, **DROPOUT.get(name, {})) for name in BACKBONES.names()} | {"norm_net": NormNet()}


CANDIDATES = [*pairs(), *((one, "norm_net") for one in METHODS.names())]
# Which negatives a detector's loss counts turns over with rounding; tests/pflcore/engine/test_detectors.py has theirs.
CLASSIFIERS = [(one, net) for one, net in CANDIDATES if backbones()[net].predicts == "classes"]
PAIRS = [(one, net) for one, net in CLASSIFIERS if fits(method(one), backbones()[net])]
MATRIX = first_of_each(PAIRS)
QUICK = quick(MATRIX)
FIRST = [next(pair for pair in PAIRS if pair[0] == name) for name in METHODS.names()]
# A deep net multiplies rounding, and batch norm over two samples most of all (their difference is all that it leaves):
# smaller steps in larger batches tell whether executors compute the same. Two clients have a last batch of one sample.
DELICATE = {"alexnet_bn", "lenet_bn", "resnet50", "timm_model", "vit"}
# Halves of batches go through batch norm, and one mixture depends on all others. Larger batches are enough for others
# of the smallest net with batch norm.
HALVED = {("per_fedavg", "norm_net"), ("pfedla_layerwise", "norm_net"), ("heurpfedla", "norm_net")}
LARGER = ((17, 9, 16, 13, 22), (5, 2, 6, 1, 9))


def trainer(name: str = "fedavg", net: str = "convnet", **changes: object) -> tuple[Trainer, Tensors]:
    data = federation(*UNEVEN)
    model, groups = backbones()[net].create(data.shape, data.classes, 3)
    settings = replace(training(), **changes)  # type: ignore[arg-type]
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    return make_trainer(model, groups, data, method(name), settings, 3), state


def uneven_run(
    name: str,
    net: str,
    executor: str = "auto",
    place: Callable[[FederatedData], FederatedData] = lambda data: data,
    **changes: Any,
) -> Result:
    """Two rounds of a pair, with momentum and decay, on uneven clients; `place` puts data on a device."""
    delicate = net in DELICATE or (name, net) in HALVED
    larger = delicate or net == "norm_net"
    special = ({"batch_size": 8} if larger else {}) | ({"lr": 0.001} if delicate else {})
    usual = {"sample_rate": 0.8, "momentum": 0.5, "weight_decay": 1e-3}
    settings = training(**{**usual, **special, **changes.pop("training", {})})
    chosen = backbones()[net]
    data = place(suited(chosen, *(LARGER if larger else UNEVEN)))
    arguments = {"training": settings, "executor": executor, "data": data, **changes}
    return run(method(name), chosen, **arguments)


def digest(result: Result) -> str:
    return hashlib.sha256(b"".join(result_bytes(result).values())).hexdigest()


# FedNova multiplies the update of a client of few steps, and with it what is rounded: by nine in these federations.
# pFedMe takes five steps where others take one.
# FedBABU's plain mean counts clients of few samples in full; initial weights rounded otherwise end 6e-6 apart under it.
# SCAFFOLD divides what clients moved by their steps and the learning rate.
# IFCA's plain mean is often of one client alone; so rounded, its second model ends 8e-6 apart.
# So are CFL's clusters once they are split.
_AMPLIFIED = {"fednova": 2e-5, "pfedme": 5e-6, "fedbabu": 2e-5, "scaffold": 2e-5, "ifca": 5e-5, "cfl": 1e-4}


def amplified(name: str) -> float:
    """How far rounding may drive the weights of a method's runs apart."""
    return _AMPLIFIED.get(name, 1e-6)


def assert_close(actual: Result, expected: Result, atol: float = 1e-6) -> None:
    """Equal but for the rounding of float32 sums that are taken in another order."""
    assert (actual.round.tolist(), actual.client.tolist()) == (expected.round.tolist(), expected.client.tolist())
    assert_states_close(actual.weights, expected.weights, atol)
    np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-5, atol=atol)
    assert np.array_equal(actual.correct, expected.correct) and np.array_equal(actual.total, expected.total)
