"""Cohorts of uneven clients, and all pairs of method and backbone that fit, for tests of executors."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from typing import Any

from pflcore.backbones import BACKBONES, Backbone
from pflcore.engine import Result
from pflcore.engine.trainer import Trainer
from pflcore.groups import Tensors
from pflcore.methods import METHODS
from support.tiers import first_of_each, quick
from support.tiny import NormNet, backbone, federation, fits, method, pairs, result_bytes, run, suited, training

# Clients of several sizes: one smaller than a batch, one of whole batches, the others with a last partial one.
UNEVEN = ((13, 3, 10, 7, 22), (5, 2, 6, 1, 9))
DROPOUT = {"tiny_vit": {"dropout": 0.2}}


@cache
def backbones() -> dict[str, Backbone]:
    return {name: backbone(name, **DROPOUT.get(name, {})) for name in BACKBONES.names()} | {"norm_net": NormNet()}


CANDIDATES = [*pairs(), *((one, "norm_net") for one in METHODS.names())]
PAIRS = [(one, net) for one, net in CANDIDATES if fits(method(one), backbones()[net])]
MATRIX = first_of_each(PAIRS)
QUICK = quick(MATRIX)
FIRST = [next(pair for pair in PAIRS if pair[0] == name) for name in METHODS.names()]
# A deep net multiplies rounding, and batch norm over two samples most of all (their difference is all that it leaves):
# smaller steps in larger batches tell whether executors compute the same. Two clients have a last batch of one sample.
DELICATE = {"alexnet_bn", "lenet_bn", "resnet50", "timm_model", "vit"}
# Halves of batches go through batch norm, and one mixture depends on all others.
HALVED = {("per_fedavg", "norm_net"), ("pfedla_layerwise", "norm_net")}
LARGER = ((17, 9, 16, 13, 22), (5, 2, 6, 1, 9))


def trainer(name: str = "fedavg", net: str = "convnet", **changes: object) -> tuple[Trainer, Tensors]:
    data = federation(*UNEVEN)
    model, groups = backbones()[net].create(data.shape, data.classes, 3)
    settings = replace(training(), **changes)  # type: ignore[arg-type]
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    return Trainer(model, groups, data, method(name), settings, 3), state


def uneven_run(name: str, net: str, executor: str = "auto", **changes: Any) -> Result:
    """Two rounds of a pair, with momentum and decay, on uneven clients."""
    delicate = net in DELICATE or (name, net) in HALVED
    special = {"batch_size": 8, "lr": 0.001} if delicate else {}
    settings = training(sample_rate=0.8, momentum=0.5, weight_decay=1e-3, **special, **changes.pop("training", {}))
    chosen = backbones()[net]
    data = suited(chosen, *(LARGER if delicate else UNEVEN))
    arguments = {"training": settings, "executor": executor, "data": data, **changes}
    return run(method(name), chosen, **arguments)


def digest(result: Result) -> str:
    return hashlib.sha256(b"".join(result_bytes(result).values())).hexdigest()
