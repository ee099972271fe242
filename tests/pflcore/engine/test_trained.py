"""Models of clients from saved weights: each predicts what the run measured."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import tiny
from support.mistakes import refuses
from support.tiers import few_of
from support.tiny import method
from torch.nn import functional as F

from pflcore.engine.trained import Trained
from pflcore.methods import METHODS
from pflcore.settings import Evaluation

SIZES = (14, 7, 9, 8), (15, 18, 16, 17)
DATA = tiny.federation(*SIZES)
CONVNET, TEXT = tiny.backbone("convnet"), tiny.backbone(tiny.TEXT)
HELD = tiny.holding_back(DATA)
MEMORY = {"knn_grid": (0.0, 0.5, 1.0), "finetune_steps": 3, "finetune_lr": 0.2}
CASES = [
    (method("fedavg", **MEMORY), CONVNET, DATA, {}),
    (method("fedavg", also_personal=("head",), finetune_epochs=2, finetune_groups=("head",)), CONVNET, DATA, {}),
    (method("fedavg", train_only=("head",)), CONVNET, DATA, {}),
    (method("fedper"), TEXT, tiny.texts(*SIZES), {}),
    (method("fedper"), tiny.backbone("convnet1d"), tiny.signals(*SIZES), {}),
    (method("fedper"), CONVNET, replace(HELD, novel=frozenset({2})), {"precision": "bf16"}),
    (method("fedper"), CONVNET, HELD, {"patience": 1}),
]


def measured(entry, net=CONVNET, data=DATA, folder=None, **settings):
    """A short run, its weights saved in a folder, if any; every client's model is right as often as it counted."""
    training, evaluation = tiny.training(lr=0.1, **settings), Evaluation(window=0, curve_every=1)
    result = tiny.run(entry, net, data, training=training, evaluation=evaluation)
    weights = {name: tensor.contiguous() for name, tensor in result.weights.items()}
    if folder:
        save_file(weights, folder / "weights.safetensors")
        weights = folder / "weights.safetensors"
    run = Trained(data, net, entry, training, 3, result.rounds, weights)
    last = (result.round == result.rounds) & ~result.validation
    for client in range(4):
        model = run.client(client)
        inputs, labels = model.samples("test")
        logits = model.predict(inputs)
        (index,) = np.flatnonzero(last & (result.client == client))
        loss = F.cross_entropy(logits.flatten(0, -2).double(), labels.flatten()).item()
        assert loss == pytest.approx(result.loss[index], rel=1e-5)
        right = logits.argmax(-1) == labels
        assert (right.sum(), labels.numel()) == model.measure()[:2] == (result.correct[index], result.total[index])
        assert (right[:, -1] if data.is_text else right).sum() == result.last[index]
    return run


@pytest.mark.parametrize("name", few_of(METHODS.names()))
def test_every_method_predicts_what_was_measured(name, tmp_path):
    measured(method(name), tiny.first_fitting(method(name)), folder=tmp_path)


@pytest.mark.parametrize("entry, net, data, settings", CASES)
def test_other_ways(entry, net, data, settings):
    run = measured(entry, net, data, **settings)
    assert run.client(0).plain == (not entry.remembers)
    assert not data.validation or len(run.client(1).samples("validation")[1]) == 3


def test_a_plain_model_is_its_network_and_can_be_trained():
    """By hand: bytes → (x/255 − mean)/std → the network; and a step of SGD on it changes what it predicts."""
    model = measured(method("ditto"), tiny.backbone("tiny_vit", dropout=0.1)).client(1)
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


IMAGES, TEXTS = torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2, tiny.LENGTH, dtype=torch.int64)
WRONG_IMAGES = {
    "uint8 (2, 3, 8, 8)": IMAGES.expand(2, 3, 8, 8),
    "uint8 (1, 8, 8)": IMAGES[0],
    "float32 (2, 1, 8, 8)": IMAGES.float(),
}
WRONG_TEXTS = {
    f"int64 (2, {tiny.LENGTH + 1})": torch.zeros(2, tiny.LENGTH + 1, dtype=torch.int64),
    f"float32 (2, {tiny.LENGTH})": TEXTS.float(),
    f"{tiny.CLASSES} to {tiny.CLASSES}": TEXTS + tiny.CLASSES,
    "-1 to -1": TEXTS - 1,
}


def test_samples_that_are_not_those_of_the_dataset():
    images, scaled = (measured(method("fedper"), data=data).client(0) for data in (DATA, replace(DATA, size=8)))
    texts = measured(method("fedper"), TEXT, tiny.texts(*SIZES)).client(0)
    for model, samples, expected in ((images, WRONG_IMAGES, "images uint8"), (texts, WRONG_TEXTS, "character numbers")):
        for got, wrong in samples.items():
            refuses(rf"^predict takes {expected} .*, got {re.escape(got)}", model.predict, wrong)
    assert scaled.predict(torch.zeros(2, 1, 5, 9, dtype=torch.uint8)).shape == (2, tiny.CLASSES)
    assert texts.predict(TEXTS[:, :3]).shape == (2, 3, tiny.CLASSES)


def test_what_does_not_fit_is_one_line(tmp_path):
    run = measured(method("fedper"), folder=tmp_path)
    detector = replace(run, backbone=tiny.backbone("mobilenetv2_ssd"), data=tiny.boxed(*SIZES))
    for call, words in (
        (lambda: run.client(4), "^there is no client 4: clients are 0 to 3$"),
        (lambda: run.client(0).samples("validation"), "^split 'validation': there are train, test$"),
        (lambda: replace(run, backbone=tiny.backbone("tiny_vit")).client(0), r"tensors: weights of another run \("),
        (lambda: detector.client(0), "^a detector's predictions are boxes"),
    ):
        refuses(words, call)
    run.weights.write_bytes(b"no such thing")
    refuses("not a readable safetensors file", run.client, 0)
