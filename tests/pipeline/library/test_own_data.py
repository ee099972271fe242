"""Training on one's own tensors: what the engine gives for the same samples, and one line for what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import tiny

import pipeline

CONVNET = {"name": "convnet", **tiny.BACKBONE_OPTIONS["convnet"]}


def clients(parts: list[torch.Tensor]) -> list[tuple[Any, Any]]:
    data = tiny.federation()
    return [(data.inputs[rows], data.labels[rows]) for rows in parts]


def test_it_is_the_engines_run_on_these_samples() -> None:
    data = tiny.federation()
    sides: Any = clients(list(data.train)), clients(list(data.test))
    settings = {"sample_rate": 0.67, "local_epochs": 2, "batch_size": 5, "lr": 0.05, "rounds": 2, "seed": 3}
    given = {"mean": [0.4], "std": [0.3], "classes": tiny.CLASSES, "device": "cpu"}
    own = pipeline.train(*sides, method="fedper", backbone=CONVNET, **settings, **given)
    # The engine on the same federation; its samples lie in another order, which no step sees.
    expected = tiny.run(tiny.method("fedper"), tiny.backbone("convnet"), data)
    for name in ("client", "round", "correct", "total"):
        assert own.results[name].tolist() == getattr(expected, name).tolist()
    np.testing.assert_allclose(own.results["loss"], expected.loss, rtol=1e-6)
    model, last = own.model(1), own.results.query("client == 1 and round == 2")
    images, labels = sides[1][1]
    assert int((model.predict(images).argmax(1) == labels).sum()) == int(last["correct"].iloc[0])
    # Normalisation and classes are those of the training samples where they are not given.
    model = pipeline.train(*sides, backbone=CONVNET, rounds=1, sample_rate=1.0).model(0)
    pixels = np.concatenate([images.numpy() for images, _ in sides[0]]) / 255
    assert (model.mean.item(), model.std.item()) == (pytest.approx(pixels.mean()), pytest.approx(pixels.std()))
    assert model.predict(data.inputs[:2]).shape == (2, tiny.CLASSES)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"train": [(torch.zeros(3, 1, 8, 8), [0, 1, 2])]}, r"^client 0: images must be uint8 \(n, ch.* float32 \("),
        ({"train": [(np.zeros((3, 1, 8, 8), np.uint8), [0, 1])]}, r"^client 0: labels must be 3 whole numbers"),
        ({"test": []}, r"^1 clients have training samples and 0 test samples; give both for each$"),
        ({"method": "fedperr"}, r"^unknown method 'fedperr'; did you mean 'fedper'\?$"),
        ({"method": {"name": "ditto", "lamm": 1}}, r"^method 'ditto' has no option 'lamm'; did you mean 'lam'\?$"),
        ({"batchsize": 4}, r"^training has no setting 'batchsize'; did you mean 'batch_size'\?$"),
    ],
)
def test_what_does_not_fit_is_one_line(change: dict[str, Any], line: str) -> None:
    one = [(np.zeros((3, 1, 8, 8), np.uint8), np.array([0, 1, 2]))]
    with pytest.raises(pipeline.UserError, match=line):
        pipeline.train(**{"train": one, "test": one, "backbone": CONVNET, "rounds": 1, **change})
