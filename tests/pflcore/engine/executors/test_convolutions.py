"""Which form stacked convolutions have: forced, or measured once on an accelerator and gone by ever after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cohorts import trainer
from support.pretend_device import pretend_cuda
from support.pretend_device.runs import on_gpu, on_host
from support.tiny import assert_states_close, backbone, federation, method, result_bytes, run, training
from torch import Tensor, nn

from pflcore.engine import Result
from pflcore.engine.executors import convolutions, replay
from pflcore.engine.executors.convolutions import COLUMNS, FORMS, Known, Layer, forms, layers_of, measured
from pflcore.engine.executors.unfolding import unfolded_conv2d
from pflcore.errors import UserError

CPU = torch.device("cpu")
IMAGES = torch.randn(2, 3, 8, 8)
FIRST = Layer(False, 3, (8, 8), 4, (5, 5), (1, 1), (2, 2), (1, 1))
LAYER = FIRST._replace(inner=True)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """Shapes of filters that were multiplied by unfolded patches."""
    seen: list[tuple[int, ...]] = []

    def noted(images: Tensor, weight: Tensor, *options: Any) -> Tensor:
        seen.append(tuple(weight.shape))
        return unfolded_conv2d(images, weight, *options)

    monkeypatch.setitem(FORMS, "unfolded", noted)
    yield seen


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of measurements, in a home of its own; what is measured says that all but first layers be unfolded."""
    monkeypatch.delenv("PFL_CONVOLUTIONS")
    monkeypatch.setenv("HOME", str(tmp_path))

    def milliseconds(form: object, layer: Layer, *_: object) -> float:
        return 1.5 if not layer.inner else 2.0 if form is FORMS["grouped"] else 1.0

    monkeypatch.setattr(convolutions, "measured", milliseconds)
    return tmp_path / ".cache/pfl/convolutions.csv"


def on_pretended(executor: str = "stacked") -> Result:
    with pretend_cuda(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "_PATIENCE", 0)
        return on_host(run(method("fedavg"), backbone("convnet"), on_gpu(federation()), executor=executor))


@pytest.mark.parametrize("net", ["convnet", "lenet_bn", "resnet50"])
def test_both_forms_train_the_same(net: str, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = training(rounds=1, local_steps=2)  # what batch norm makes of two samples drives roundings far apart
    grouped = run(method("fedavg"), backbone(net), executor="stacked", training=settings)
    assert not calls
    monkeypatch.setenv("PFL_CONVOLUTIONS", "unfolded")
    unfolded = run(method("fedavg"), backbone(net), executor="stacked", training=settings)
    assert len(set(calls)) > 1
    assert_states_close(unfolded.weights, grouped.weights, atol=1e-5)
    assert result_bytes(unfolded) != result_bytes(grouped)


def test_one_at_a_time_has_no_forms(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_CONVOLUTIONS", "unfolded")
    run(method("fedavg"), backbone("convnet"), executor="sequential")
    assert not calls


def test_a_model_has_its_own_form_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_CONVOLUTIONS", "unfolded")
    reference, _ = trainer()
    layers = [module for module in reference.model.modules() if isinstance(module, nn.Conv2d)]
    with pytest.raises(KeyError), forms(reference):
        assert layers and all("forward" in vars(layer) for layer in layers)
        raise KeyError
    assert not any("forward" in vars(layer) for layer in layers)


def test_no_other_form_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_CONVOLUTIONS", "winograd")
    with pytest.raises(UserError, match="'winograd' must be grouped or unfolded"):
        run(method("fedavg"), backbone("convnet"), executor="stacked")


@no_gpu
def test_a_gpu_measures_once(at_home: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = on_pretended()
    assert set(calls) == {(4, 3, 3, 3)}  # the second layer; the first gains nothing
    lines = at_home.read_text().splitlines()
    assert lines[0] == ",".join(COLUMNS) and len(lines) == 3
    assert "pretend GPU" in lines[1] and "first, " in lines[1] and lines[2].endswith(",2,1")
    monkeypatch.setattr(convolutions, "measured", None)  # not called again
    assert result_bytes(on_pretended()) == result_bytes(first)
    expected = run(method("fedavg"), backbone("convnet"), executor="sequential")
    assert_states_close(first.weights, expected.weights, atol=1e-5)


@no_gpu
def test_a_cpu_measures_nothing(at_home: Path, calls: list[Any]) -> None:
    run(method("fedavg"), backbone("convnet"), executor="stacked")
    assert not calls and not at_home.exists()


@no_gpu
@pytest.mark.parametrize("form", FORMS)
def test_what_is_measured_is_computed_and_recorded(form: str) -> None:
    with pretend_cuda() as events:
        assert measured(FORMS[form], LAYER, torch.device("cuda", 0), "fp32") > 0
    assert events.total("replays") > convolutions._REPEAT and events.total("waits") > 2 * convolutions._REPEAT


def test_what_is_written_counts(at_home: Path) -> None:
    assert Known(at_home, CPU, "fp32").unfolds(LAYER)
    assert not Known(at_home, CPU, "fp32").unfolds(FIRST)
    text = at_home.read_text()
    at_home.write_text(f"{text.replace(',2,1', ',2,1.9')}what is no measurement,,,,a,b\n{text}")
    known = Known(at_home, CPU, "fp32")
    assert not known.unfolds(LAYER)  # the first line of a layer; too little to gain
    assert known.unfolds(LAYER) is Known(at_home, CPU, "fp32").unfolds(LAYER)
    assert Known(at_home, CPU, "bf16").unfolds(LAYER)  # another precision, measured anew


def test_a_home_that_cannot_be_written(at_home: Path) -> None:
    at_home.parent.parent.write_text("in the way")
    with pytest.warns(UserWarning, match="cannot be kept .* they stay grouped"):
        assert not Known(at_home, CPU, "fp32").unfolds(LAYER)


def test_layers_that_can_be_unfolded() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, (5, 3), (2, 1), (2, 1), (1, 2)),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 6, 1, bias=False),
    ).train()
    layers = layers_of(model, IMAGES[:1])
    assert [str(layer) for layer in layers.values()] == [
        "first, 3x8x8 to 4, kernel 5x3, stride 2x1, padding 2x1, dilation 1x2",
        "4x2x4 to 6, kernel 1x1, stride 1x1, padding 0x0, dilation 1x1",
    ]
    assert list(layers) == [model[0], model[4]]
    assert model.training and model[1].num_batches_tracked == 0
    assert [layer.numbers for layer in layers.values()] == [4 * 6 * 3 * 15, 2 * 4 * 4]
