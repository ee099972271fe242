"""Small federations, models and runs, for tests of the core: a round takes milliseconds."""

import copy
import itertools
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

from pflcore.backbones import BACKBONES, Backbone
from pflcore.data.federation import FederatedData
from pflcore.data.samples import Boxes
from pflcore.engine import CheckpointFolder, train
from pflcore.engine.phases import groups_of as trained_groups
from pflcore.engine.phases import roles_of
from pflcore.errors import UserError
from pflcore.groups import add_prefix
from pflcore.method import COMMON, Federation
from pflcore.methods import METHODS, Method
from pflcore.seeds import generator
from pflcore.settings import Evaluation, Training

SHAPE, CLASSES = (1, 8, 8), 4
EVERY_ROUND = Evaluation(every=1, window=100)
EXECUTORS = ("sequential", "pooled", "stacked")

# What makes an entry small and fit for 8×8 images; an entry that is not named here gets the options of its `smoke`.
BACKBONE_OPTIONS = {
    "alexnet_bn": {"width": 4, "hidden": 16, "grid": 1, "kernel": 3, "stride": 1, "padding": 1, "pool_padding": 1},
    "convnet1d": {"channels": (3, 4), "hidden": (8,), "kernel": 3},
    "convnet": {"channels": (3, 4), "hidden": (8,), "kernel": 3, "padding": 1},
    "lenet": {"kernel": 3, "padding": 1},
    "lenet_bn": {"kernel": 3, "padding": 1},
    "vit": {"patch": 8},
    "tiny_vit": {"depth": 2, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12, "patch": 4},
}
FAST = ("convnet", "tiny_vit")
TEXT = "language_transformer"
LENGTH = 6  # of a text
SIGNALS = (2, 12)  # channels, times
_SMALL, _SERVER = {"embedding": 4, "hidden": 4, "layers": 2}, {"server_momentum": 0.5}
METHOD_OPTIONS = {
    "fedbabu": {"finetune_steps": None},
    "fedcp": {"lam": 0.2},
    "feddbe": {"kappa": 1.0},
    "fedofa": {**_SMALL, **_SERVER, "heads": 2, "percent": 50.0, "server_lr": 0.5, "server_clip": 0.2},
    "fedtp": {**_SMALL, "hidden": 6},
    "fedtp_fedrod": {**_SMALL, "hidden": 6},
    "pfedhn": {**_SMALL, **_SERVER, "server_lr": 1.0, "server_clip": 0.5},
    "heurpfedla": {"embedding": 4, "hidden": 6},
    "pfedla_layerwise": {"embedding": 4, "hidden": 6},
}


def backbone(name, **options):
    entry = BACKBONES.get(name)
    return BACKBONES.create(name, **{**entry.smoke, **BACKBONE_OPTIONS.get(name, {}), **options})


def method(name, **options):
    entry = METHODS.get(name)
    return METHODS.create(name, **{**entry.smoke, **METHOD_OPTIONS.get(name, {}), **options})


def training(**options):
    """Two of three clients per round, several batches per client, the last one smaller."""
    return Training(**{"rounds": 2, "sample_rate": 0.67, "local_epochs": 2, "batch_size": 5, "lr": 0.05, **options})


def federation(train_sizes=(14, 7, 9), test_sizes=(5, 8, 6), *, device="cpu"):
    """Random images with random labels; the rows of the clients are scattered."""
    rng, sizes = generator(0, "tiny federation"), [*train_sizes, *test_sizes]
    parts = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    images, labels = rng.integers(0, 256, (sum(sizes), *SHAPE), np.uint8), rng.integers(0, CLASSES, sum(sizes))
    sides = parts[: len(train_sizes)], parts[len(train_sizes) :]
    return FederatedData.from_arrays(images, labels, *sides, [0.4], [0.3], CLASSES, torch.device(device))


def holding_back(data):
    """The last three training samples of each client held back for validation."""
    train, validation = zip(*((rows[:-3], rows[-3:]) for rows in data.train), strict=True)
    return replace(data, train=train, validation=validation)


def texts(*sizes):
    """As :func:`federation`, of random texts."""
    rng, held = generator(0, "tiny texts"), federation(*sizes)
    characters = rng.integers(0, CLASSES, (len(held.labels), LENGTH + 1), np.uint8)
    return replace(held, inputs=torch.from_numpy(characters))


def signals(*sizes):
    """As :func:`federation`, of random signals."""
    rng, held = generator(0, "tiny signals"), federation(*sizes)
    drawn = rng.standard_normal((len(held.labels), *SIGNALS), np.float32) * 3 + 1
    return replace(held, inputs=torch.from_numpy(drawn), mean=torch.tensor([[[1.0], [1.2]]]), std=torch.tensor([3.0]))


def boxed(*sizes):
    """As :func:`federation`, with up to three boxes on each image."""
    rng, held = generator(0, "tiny boxes"), federation(*sizes)
    count = rng.integers(1, 4, len(held.labels))
    left_top = rng.uniform(0, 0.5, (int(count.sum()), 2))
    labels = rng.integers(0, CLASSES, len(left_top))
    corners = np.concatenate([left_top, left_top + rng.uniform(0.2, 0.5, left_top.shape)], 1).astype(np.float32)
    boxes = Boxes(counts=count, labels=labels, corners=corners, difficult=rng.random(len(left_top)) < 0.1)
    return replace(held, boxes=torch.from_numpy(boxes.padded()))


def suited(net, *sizes):
    """Samples that the backbone takes."""
    if net.predicts == "boxes":
        return boxed(*sizes)
    return {"text": texts, "arrays": signals}.get(net.takes, federation)(*sizes)


def shape_for(net):
    """The shape of an input of a model."""
    return {"text": (LENGTH,), "arrays": SIGNALS}.get(net.takes, SHAPE)


def inputs_for(net, count):
    """Random inputs of a model."""
    shape = (count, *shape_for(net))
    return torch.randint(CLASSES, shape) if net.takes == "text" else torch.randn(shape)


def create(net, seed=0, method=None):
    """The model and its groups, with what the method adds."""
    model, groups = net.create(shape_for(net), CLASSES, seed, method.extend if method else None)
    return model, trained_groups(method, groups) if method else groups


def run(method, backbone, data=None, **changes):
    """One run of two rounds, measured after each; `changes` are arguments of :func:`train`."""
    careful = {"lr": 0.001} if backbone.predicts == "boxes" else {}
    settings = {"training": training(**careful), "evaluation": EVERY_ROUND, "seed": 3, **changes}
    return train(data=data or suited(backbone), backbone=backbone, method=method, **settings)


def run_by_all(method, backbone, **changes):
    """What :func:`run` gives with each executor: the same bytes; of stacked clients the same losses but for 0.1 %."""
    first, pooled, stacked = (run(method, backbone, executor=one, **changes) for one in EXECUTORS)
    assert result_bytes(first) == result_bytes(pooled)
    np.testing.assert_allclose(stacked.loss, first.loss, rtol=1e-3)
    return first


def stop_in(last):
    """What ends a run in a round, before its state is stored."""

    def on_round(progress):
        if progress.round == last:
            raise InterruptedError

    return on_round


def continued(made, folder):
    """What is left by a run that was stopped in its second round and went on; `made` takes arguments of :func:`run`."""
    with CheckpointFolder(folder, "me", pytest.fail) as checkpoints:
        with suppress(InterruptedError):
            made(checkpoints=checkpoints, checkpoint_every=0, on_round=stop_in(2))
        result = made(checkpoints=checkpoints)
    assert result.resumed_from == 1
    return result


def result_bytes(result):
    """All that a run leaves behind, by the name of the part, but not which checkpoint it continued from."""
    arrays = ("round", "client", "correct", "total", "loss", "train_loss", "last", "validation")
    parts = {name: repr(getattr(result, name).dtype).encode() + getattr(result, name).tobytes() for name in arrays}
    facts = (str(result.diverged), result.parameters, result.cost)
    parts |= {name: values.tobytes() for name, values in result.further.items()}
    return {**parts, "facts": repr(facts).encode(), "weights": save(result.weights)}


def sampled(seed, round_, clients, training):
    """The clients that a round samples."""
    drawn = generator(seed, "sampling", round_).choice(clients, size=training.cohort_size(clients), replace=False)
    return sorted(drawn.tolist())


def normalised(data, rows):
    return (data.inputs[rows].to(torch.float32) / 255 - data.mean) / data.std


def pairs():
    """(method, backbone): every method on two fast backbones and one of text, every backbone under plain averaging."""
    every = list(itertools.product(METHODS.names(), FAST)) + [(name, TEXT) for name in METHODS.names()]
    return every + [("fedavg", name) for name in BACKBONES.names() if name not in (*FAST, TEXT)]


@cache
def _groups(backbone, extending):
    with torch.device("meta"):  # names are all that matters
        return create(backbone, 0, extending)[1]


def groups_of(backbone, method=None):
    return _groups(backbone, method if method and type(method).extend is not Method.extend else None)


def fits(method, backbone):
    """Whether the backbone has the groups that the method names, and a place for its modules."""
    try:
        method.roles(groups_of(backbone, method))
    except UserError:
        return False
    return True


def facts(method, backbone):
    """What a method builds its state from: the initial model, the roles, and the facts of a federation of three."""
    model, groups = create(backbone, 0, method)
    head = tuple(name for name, group in groups.group_of.items() if group == "head")
    initial, roles = dict(model.state_dict()), roles_of(method, groups)
    own = {"classes": CLASSES, "features": initial[head[0]].shape[-1], "head": head, "total_rounds": 2}
    return initial, roles, known(3, 3, initial, roles, **own, parameters=groups.parameters)


def known(clients, seed, initial, roles, **more):
    """The facts of a federation in which the entries that `roles` says are generated."""
    generated = {name: tuple(initial[name].shape) for name in initial if name in roles.generated}
    return Federation(clients, seed, generated=generated, **more)


def exchanged(method, backbone):
    """Names of all that a client exchanges with the server, and their bytes."""
    initial, roles, known = facts(method, backbone)
    entries = {**initial, **add_prefix(COMMON, method.init_shared(initial, roles, known))}
    names = roles.shared | roles.generated | {name for name in entries if name not in initial}
    return {name: entries[name].nbytes for name in names}


def first_fitting(method):
    """A backbone for a test that is about the method: one of the fastest, if it fits."""
    return next(one for one in map(backbone, (*FAST, *BACKBONES.names())) if fits(method, one))


def spied(method, seen):
    """The same method, which also appends the updates of every round to `seen`."""

    class Spied(type(method)):
        def update_server(self, server, roles, updates):
            seen.append(copy.deepcopy(list(updates)))
            return super().update_server(server, roles, updates)

    return Spied(**{field.name: getattr(method, field.name) for field in fields(method)})


def assert_states_close(actual, expected, atol=1e-6):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-4, atol=atol, msg=lambda text, name=name: name + text)


@dataclass(frozen=True, kw_only=True)
class NormNet(Backbone):
    """A linear net with batch norm, the smallest with buffers."""

    groups: ClassVar[dict[str, str]] = {"fc": r"fc\.", "norm": r"norm\.", "head": r"head\."}

    def build(self, shape, classes):
        modules = {"flatten": nn.Flatten(), "fc": nn.Linear(shape[0] * shape[1] * shape[2], 6)}
        modules |= {"norm": nn.BatchNorm1d(6), "relu": nn.ReLU(), "head": nn.Linear(6, classes)}
        return nn.Sequential(OrderedDict(modules))
