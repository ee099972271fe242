"""Cohorts of uneven clients, and all pairs of method and backbone that fit, for tests of executors."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch

from pflcore.backbones import BACKBONES
from pflcore.engine.phases import make_trainer
from pflcore.methods import METHODS
from pflcore.seeds import sequence
from support.tiny import NormNet, assert_states_close, backbone, fits, method, pairs, run, suited, training

# Clients of several sizes: one smaller than a batch, one of whole batches, the others with a last partial one.
UNEVEN = ((13, 3, 10, 7, 22), (5, 2, 6, 1, 9))
# Two clients have a last batch of one sample.
LARGER = ((17, 9, 16, 13, 22), (5, 2, 6, 1, 9))
# A deep net multiplies rounding, and batch norm over two samples most of all, as in halves of batches or in mixtures of
# all others: smaller steps in larger batches tell whether executors compute the same.
DELICATE = {"alexnet_bn", "lenet_bn", "resnet50", "timm_model", "vit"}
HALVED = {("per_fedavg", "norm_net"), ("pfedla_layerwise", "norm_net"), ("heurpfedla", "norm_net")}
# How far rounding may drive the weights of a method apart. FedNova multiplies the update of a client of few steps
# by nine, pFedMe takes five steps where others take one, SCAFFOLD divides what clients moved by their steps and rate,
# and the plain means of FedBABU, of IFCA and of CFL's clusters count a client of few samples in full, or alone.
AMPLIFIED = {"fednova": 2e-5, "pfedme": 5e-6, "fedbabu": 2e-5, "scaffold": 2e-5, "ifca": 5e-5, "cfl": 1e-4}


@cache
def backbones():
    dropout = {"tiny_vit": {"dropout": 0.2}}
    return {name: backbone(name, **dropout.get(name, {})) for name in BACKBONES.names()} | {"norm_net": NormNet()}


# Which negatives a detector's loss counts turns over with rounding; tests/pflcore/engine/test_measuring.py has theirs.
PAIRS = [
    (one, net)
    for one, net in [*pairs(), *((one, "norm_net") for one in METHODS.names())]
    if backbones()[net].predicts == "classes" and fits(method(one), backbones()[net])
]
FIRST = [next(pair for pair in PAIRS if pair[0] == name) for name in METHODS.names()]


def trainer(name="fedavg", net="convnet", **changes):
    """A trainer of uneven clients, and the model as it begins."""
    data = suited(backbones()[net], *UNEVEN)
    model, groups = backbones()[net].create(data.shape, data.classes, 3)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    return make_trainer(model, groups, data, method(name), training(**changes), 3), state


def uneven_run(name, net, executor="auto", place=lambda data: data, **changes):
    """Two rounds of a pair, with momentum and decay, on uneven clients; `place` puts data on a device."""
    delicate = net in DELICATE or (name, net) in HALVED
    larger = delicate or net == "norm_net"
    special = ({"batch_size": 8} if larger else {}) | ({"lr": 0.001} if delicate else {})
    usual = {"sample_rate": 0.8, "momentum": 0.5, "weight_decay": 1e-3}
    settings = training(**{**usual, **special, **changes.pop("training", {})})
    data = place(suited(backbones()[net], *(LARGER if larger else UNEVEN)))
    return run(method(name), backbones()[net], data, training=settings, executor=executor, **changes)


def assert_close(actual, expected, atol=1e-6):
    """Equal but for the rounding of float32 sums that are taken in another order."""
    for name in ("round", "client", "correct", "last", "total"):
        assert getattr(actual, name).tolist() == getattr(expected, name).tolist(), name
    assert_states_close(actual.weights, expected.weights, atol)
    np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-5, atol=atol)


# --- on the pretended GPU --------------------------------------------------------------------------------------------


def on_gpu(data):
    """The data on the device, samples included."""
    return replace(data, **{name: getattr(data, name).to("cuda") for name in ("inputs", "labels", "mean", "std")})


def on_host(result):
    """The result with its weights on the host."""
    return replace(result, weights={name: tensor.cpu() for name, tensor in result.weights.items()})


def draw_as_gpus_do(bits, samples, seed, *ids):
    """Dropout's numbers on the host as they are drawn on the device, which has another generator than the host."""
    if not bits.per_sample:
        return bits.bits[:0]
    state = int(sequence(seed, "dropout", *ids).generate_state(1, np.uint64)[0]) // 2
    words = torch.empty(-(-bits.per_sample * samples // 4), dtype=torch.int64)
    words.random_(-(2**63), None, generator=torch.Generator().manual_seed(state))
    return words.view(torch.int16)[: bits.per_sample * samples]
