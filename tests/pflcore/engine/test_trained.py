"""Models of clients from saved weights: each predicts what the run measured."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import tiny
from support.tiers import six_of
from torch.nn import functional as F

from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine.trained import ClientModel, Trained
from pflcore.errors import UserError
from pflcore.methods import METHODS, Method
from pflcore.settings import Evaluation

SIZES = (14, 7, 9, 8), (15, 18, 16, 17)
DATA = tiny.federation(*SIZES)
CONVNET = tiny.backbone("convnet")
NOVEL = replace(tiny.holding_back(DATA), novel=frozenset({2}))
OPTIONS: list[dict[str, Any]] = [
    {"knn_grid": (0.0, 0.5, 1.0), "finetune_steps": 3, "finetune_lr": 0.2},
    {"also_personal": ("head",), "finetune_epochs": 2, "finetune_groups": ("head",)},
    {"train_only": ("head",)},
]
CASES = [
    *((tiny.method("fedavg", **options), CONVNET, DATA, {}) for options in OPTIONS),
    (tiny.method("fedper"), tiny.backbone(tiny.TEXT), tiny.texts(*SIZES), {}),
    (tiny.method("fedper"), CONVNET, NOVEL, {"precision": "bf16"}),
]


def measured(folder: Path, method: Method, net: Backbone, data: FederatedData, **settings: Any) -> Trained:
    """A short run, its weights saved as the stage does; every client's model is right as often as the run counted."""
    training = tiny.training(lr=0.1, **settings)
    result = tiny.run(method, net, data, training=training)
    path = folder / "weights.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in result.weights.items()}, path)
    run = Trained(data, net, method, training, 3, result.rounds, path)
    last = (result.round == result.rounds) & ~result.validation
    for client in range(data.clients):
        model = run.client(client)
        inputs, labels = model.samples("test")
        logits = model.predict(inputs)
        (at,) = np.flatnonzero(last & (result.client == client))
        loss = F.cross_entropy(logits.flatten(0, -2).double(), labels.flatten()).item()
        assert loss == pytest.approx(result.loss[at], rel=1e-5)
        hits = int((logits.argmax(-1) == labels).sum())
        assert (hits, labels.numel()) == model.measure()[:2] == (result.correct[at], result.total[at])
    return run


@pytest.mark.parametrize("name", six_of(METHODS.names()))
def test_every_method_predicts_what_was_measured(name: str, tmp_path: Path) -> None:
    method = tiny.method(name)
    measured(tmp_path, method, tiny.first_fitting(method), DATA)


@pytest.mark.parametrize(("method", "net", "data", "settings"), CASES)
def test_other_ways(method: Method, net: Backbone, data: FederatedData, settings: Any, tmp_path: Path) -> None:
    run = measured(tmp_path, method, net, data, **settings)
    assert run.client(0).plain == (not method.remembers)
    assert not data.validation or len(run.client(1).samples("validation")[1]) == 3


def test_a_plain_model_is_its_network_and_can_be_trained(tmp_path: Path) -> None:
    """By hand: bytes → (x/255 − mean)/std → the network; and a step of SGD on it changes what it predicts."""
    run = measured(tmp_path, tiny.method("ditto"), tiny.backbone("tiny_vit", dropout=0.1), DATA)
    model = run.client(1)
    assert model.plain and not model.training and not list(model.beside.buffers())
    images, labels = model.samples("train")
    by_hand = model.net((images.float() / 255 - 0.4) / 0.3).detach()
    torch.testing.assert_close(model.predict(images), by_hand)
    model.train()
    F.cross_entropy(model(model.prepared(images)), labels).backward()  # its dropout draws by itself
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= parameter.grad
    assert model.training and not torch.allclose(model.predict(images), by_hand)


def test_a_run_that_may_stop_early(tmp_path: Path) -> None:
    data, training = tiny.holding_back(DATA), tiny.training(lr=0.1, patience=1)
    settings = {"training": training, "evaluation": Evaluation(window=0, curve_every=1)}
    result = tiny.run(tiny.method("fedper"), CONVNET, data, **settings)
    run = Trained(data, CONVNET, tiny.method("fedper"), training, 3, result.rounds, dict(result.weights))
    last = (result.round == result.rounds) & ~result.validation
    for client in range(data.clients):
        (at,) = np.flatnonzero(last & (result.client == client))
        assert run.client(client).measure()[:2] == (result.correct[at], result.total[at])


IMAGES = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
TEXTS = torch.zeros(2, tiny.LENGTH, dtype=torch.int64)
NO_IMAGES = {
    "uint8 (2, 3, 8, 8)": IMAGES.expand(2, 3, 8, 8),
    "uint8 (2, 1, 8, 9)": torch.zeros(2, 1, 8, 9, dtype=torch.uint8),
    "uint8 (1, 8, 8)": IMAGES[0],
    "float32 (2, 1, 8, 8)": IMAGES.float(),
}
NO_TEXTS = {
    f"int64 (2, {tiny.LENGTH + 1})": torch.zeros(2, tiny.LENGTH + 1, dtype=torch.int64),
    f"int64 ({tiny.LENGTH},)": TEXTS[0],
    f"float32 (2, {tiny.LENGTH})": TEXTS.float(),
    f"{tiny.CLASSES} to {tiny.CLASSES}": TEXTS + tiny.CLASSES,
    "-1 to -1": TEXTS - 1,
}


def test_samples_that_are_not_those_of_the_dataset() -> None:
    def model(net: Backbone, data: FederatedData) -> ClientModel:
        result = tiny.run(tiny.method("fedper"), net, data)
        training = tiny.training()
        return Trained(data, net, tiny.method("fedper"), training, 3, result.rounds, dict(result.weights)).client(0)

    of_images = model(CONVNET, DATA)
    of_scaled = model(CONVNET, replace(DATA, size=8))
    of_text = model(tiny.backbone(tiny.TEXT), tiny.texts(*SIZES))
    wanted = f"character numbers \\(n, up to {tiny.LENGTH}\\)|character numbers 0 to {tiny.CLASSES - 1}"
    for given, what, words in ((of_images, NO_IMAGES, r"images uint8 \(n, 1, 8, 8\)"), (of_text, NO_TEXTS, wanted)):
        for got, samples in what.items():
            with pytest.raises(UserError, match=rf"^predict takes ({words}), got {re.escape(got)}"):
                given.predict(samples)
    assert of_scaled.predict(torch.zeros(2, 1, 5, 9, dtype=torch.uint8)).shape == (2, tiny.CLASSES)
    assert of_text.predict(TEXTS[:, :3]).shape == (2, 3, tiny.CLASSES)


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    run = measured(tmp_path, tiny.method("fedper"), CONVNET, DATA)
    detector = replace(run, backbone=tiny.backbone("mobilenetv2_ssd"), data=tiny.boxed(*SIZES))
    for call, words in (
        (lambda: run.client(4), "^there is no client 4: clients are 0 to 3$"),
        (lambda: run.client(0).samples("validation"), "^split 'validation': there are train, test$"),
        (lambda: replace(run, backbone=tiny.backbone("tiny_vit")).client(0), r"tensors: weights of another run \("),
        (lambda: detector.client(0), "^a detector's predictions are boxes"),
    ):
        with pytest.raises(UserError, match=words):
            call()
    run.weights.write_bytes(b"no such thing")  # type: ignore[union-attr]
    with pytest.raises(UserError, match="not a readable safetensors file"):
        run.client(0)
