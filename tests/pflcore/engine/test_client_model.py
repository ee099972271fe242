"""Models of clients from saved weights: of every method, each predicts what the run measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import tiny
from support.tiers import six_of
from torch import nn
from torch.nn import functional as F

from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine import Result
from pflcore.engine.trained import Trained
from pflcore.errors import UserError
from pflcore.methods import METHODS, Method

SIZES = (14, 7, 9, 8), (15, 18, 16, 17)


def trained(
    folder: Path, method: Method, net: Backbone, data: FederatedData, **settings: Any
) -> tuple[Trained, Result]:
    """A short run, its weights saved as the stage does, and what a fresh process would know of it."""
    training = tiny.training(lr=0.1, **settings)
    result = tiny.run(method, net, data, training=training)
    path = folder / "weights.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in result.weights.items()}, path)
    return Trained(data, net, method, training, 3, result.rounds, path), result


def assert_as_measured(run: Trained, result: Result, data: FederatedData) -> None:
    """Every client's model is right on as many of its test samples as the run counted."""
    last = (result.round == result.rounds) & ~result.validation
    for client in range(data.clients):
        model = run.client(client)
        inputs, labels = model.samples("test")
        logits = model.predict(inputs)
        hits = logits.argmax(-1) == labels
        (at,) = np.flatnonzero(last & (result.client == client))
        loss = F.cross_entropy(logits.flatten(0, -2).double(), labels.flatten()).item()
        assert loss == pytest.approx(result.loss[at], rel=1e-5)
        assert (int(hits.sum()), labels.numel()) == (result.correct[at], result.total[at])
        assert model.measure()[:2] == (result.correct[at], result.total[at])


@pytest.mark.parametrize("name", six_of(METHODS.names()))
def test_every_method_predicts_what_was_measured(name: str, tmp_path: Path) -> None:
    method = tiny.method(name)
    net = tiny.first_fitting(method)
    data = tiny.federation(*SIZES)
    assert_as_measured(*trained(tmp_path, method, net, data), data)


@pytest.mark.parametrize(
    "options",
    [
        {"knn": 0.6, "neighbours": 3},
        {"knn_grid": (0.0, 0.5, 1.0), "finetune_steps": 3, "finetune_lr": 0.2},
        {"also_personal": ("head",), "finetune_epochs": 2, "finetune_groups": ("head",)},
        {"train_only": ("head",)},
    ],
)
def test_memories_tuning_and_frozen_parts(options: dict[str, Any], tmp_path: Path) -> None:
    data = tiny.federation(*SIZES)
    run, result = trained(tmp_path, tiny.method("fedavg", **options), tiny.backbone("convnet"), data)
    assert_as_measured(run, result, data)
    assert run.client(0).plain is not ("knn" in str(options))


def test_texts_validation_novel_clients_and_bfloat16(tmp_path: Path) -> None:
    held = tiny.texts(*SIZES)
    run, result = trained(tmp_path, tiny.method("fedper"), tiny.backbone(tiny.TEXT), held)
    assert_as_measured(run, result, held)
    data = replace(tiny.holding_back(tiny.federation(*SIZES)), novel=frozenset({2}))
    run, result = trained(tmp_path, tiny.method("fedper"), tiny.backbone("convnet"), data, precision="bf16")
    assert_as_measured(run, result, data)
    assert len(run.client(1).samples("validation")[1]) == 3


def test_a_plain_model_is_its_network_and_can_be_trained(tmp_path: Path) -> None:
    """By hand: bytes → (x/255 − mean)/std → the network; and a step of SGD on it changes what it predicts."""
    data = tiny.federation(*SIZES)
    run, _ = trained(tmp_path, tiny.method("ditto"), tiny.backbone("tiny_vit", dropout=0.1), data)
    model = run.client(1)
    assert isinstance(model, nn.Module) and model.plain and not model.training and not list(model.beside.buffers())
    images, labels = model.samples("train")
    by_hand = model.net((images.float() / 255 - 0.4) / 0.3)
    torch.testing.assert_close(model.predict(images), by_hand.detach())
    model.train()
    F.cross_entropy(model(model.prepared(images)), labels).backward()  # its dropout draws by itself
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= parameter.grad
    assert model.training and not torch.allclose(model.predict(images), by_hand.detach())


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    data = tiny.federation(*SIZES)
    run, _ = trained(tmp_path, tiny.method("fedper"), tiny.backbone("convnet"), data)
    model = run.client(0)
    with pytest.raises(UserError, match=r"^there is no client 4: clients are 0 to 3$"):
        run.client(4)
    with pytest.raises(UserError, match=r"^predict takes images uint8 \(n, 1, 8, 8\).* got float32 \(2, 1, 8, 8\)"):
        model.predict(torch.zeros(2, 1, 8, 8))
    with pytest.raises(UserError, match=r"^split 'validation': there are train, test$"):
        model.samples("validation")
    other = replace(run, backbone=tiny.backbone("tiny_vit"))
    with pytest.raises(UserError, match=r"weights\.safetensors: weights of another run \("):
        other.client(0)
    run.weights.write_bytes(b"no such thing")
    with pytest.raises(UserError, match="not a readable safetensors file"):
        run.client(0)


def test_detectors_are_refused(tmp_path: Path) -> None:
    net = tiny.backbone("mobilenetv2_ssd")
    data = tiny.boxed((4, 4), (2, 2))
    run, _ = trained(tmp_path, tiny.method("fedavg"), net, data, rounds=1)
    with pytest.raises(UserError, match=r"^a detector's predictions are boxes"):
        run.client(0)
