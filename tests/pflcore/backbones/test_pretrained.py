"""Weights from a file: what is read, what is refused in one line, and what a model then begins with."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.tiny import CLASSES, backbone, inputs_for
from torch import Tensor, nn

from pflcore.backbones import BACKBONES, Backbone, _pretrained, read_weights
from pflcore.errors import UserError

NAMES = sorted(BACKBONES.names())


def with_file(name: str, path: Path) -> Backbone:
    return replace(backbone(name), pretrained=str(path))


def trained(name: str) -> dict[str, Tensor]:
    """A state as no seed begins with."""
    model = made(backbone(name), CLASSES, 9)
    return {key: tensor + 1 for key, tensor in model.state_dict().items()}


def made(net: Backbone, classes: int, seed: int) -> nn.Module:
    shape = tuple(inputs_for(net, 1).shape[1:])
    return net.create(shape, classes, seed)[0]


def written(path: Path, state: dict[str, Tensor]) -> Path:
    if path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    else:
        torch.save(state, path)
    return path


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        act()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("file", ["w.safetensors", "w.pth"])
def test_a_model_begins_with_what_is_in_the_file(tmp_path: Path, name: str, file: str) -> None:
    state = trained(name)
    model = made(with_file(name, written(tmp_path / file, state)), CLASSES, 0)
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
    assert getattr(model, "notes", None) == ()


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_a_state_dict_beside_the_state_of_its_training(tmp_path: Path, wrapper: str) -> None:
    state = {name: tensor.half() for name, tensor in trained("tiny_vit").items()}
    torch.save({wrapper: state, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "w.bin")
    model = made(with_file("tiny_vit", tmp_path / "w.bin"), CLASSES, 0)
    assert all(torch.equal(tensor, state[name].float()) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["tiny_vit", "resnet50", "timm_model"])
def test_a_classifier_of_other_classes_begins_anew_and_that_is_said(tmp_path: Path, name: str) -> None:
    if name == "resnet50":  # whose classifier is called fc
        state = {key: tensor for key, tensor in trained(name).items() if not key.startswith("fc.")}
        told = "since the file has none"
    else:
        state, told = trained(name), f"since that of the file has {CLASSES} classes"
    path = written(tmp_path / "w.safetensors", state)
    model, scratch = made(with_file(name, path), CLASSES + 3, 5), made(backbone(name), CLASSES + 3, 5)
    begun = scratch.state_dict()
    anew = {key for key, tensor in model.state_dict().items() if torch.equal(tensor, begun[key])}
    assert anew and all(key.startswith(("head.", "fc.")) for key in anew)
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items() if key not in anew)
    (note,) = getattr(model, "notes")  # noqa: B009 - a module's attributes have no types
    assert note == f"{path}: the classifier begins anew, {told}"


def test_other_weights_are_named_and_counted(tmp_path: Path) -> None:
    state = trained("tiny_vit")
    lost = [name for name in state if name.startswith("blocks.1.")]
    wrong = {name: tensor for name, tensor in state.items() if name not in lost}
    wrong |= {"pos_embed": torch.ones(1, 9, 8), "dist_token": torch.ones(8), "norm.bias": torch.full((8,), torch.nan)}
    wrong |= {"norm.weight": torch.ones(8, dtype=torch.int64)}
    told = refused(lambda: made(with_file("tiny_vit", written(tmp_path / "w.pth", wrong)), CLASSES, 0))
    assert told == (
        f"backbone tiny_vit: {tmp_path / 'w.pth'}: not the weights of this model: {len(lost)} missing "
        f"({lost[0]}, {lost[1]}, {lost[2]}, …); 1 of another shape (pos_embed 1×9×8 instead of 1×5×8); "
        "1 of another kind of number (norm.weight); 1 not finite (norm.bias); 1 unknown to the model (dist_token)"
    )


def test_what_is_absent_cut_short_or_something_else(tmp_path: Path) -> None:
    assert "no such file" in refused(lambda: read_weights(tmp_path / "none.pth"))
    assert "not a file of weights by its name" in refused(lambda: read_weights(tmp_path / "w.onnx"))
    for file in ("w.safetensors", "w.pth"):
        path = written(tmp_path / file, trained("tiny_vit"))
        whole = path.read_bytes()
        for cut in (0, 7, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:cut])
            assert "truncated" in refused(lambda path=path: read_weights(path))  # type: ignore[misc]
    written(tmp_path / "w.pth", trained("tiny_vit")).rename(tmp_path / "named.safetensors")
    assert "no safetensors" in refused(lambda: read_weights(tmp_path / "named.safetensors"))
    for content in ([torch.ones(2)], {}, {"w": 1.0}, {1: torch.ones(2)}, {"w": torch.eye(3).to_sparse()}):
        torch.save(content, tmp_path / "w.pth")
        assert "no state dict" in refused(lambda: read_weights(tmp_path / "w.pth"))


class Hostile:
    """Runs a command when it is unpickled without restriction."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def test_a_pickle_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    torch.save({"w": torch.ones(2), "more": Hostile(f"touch {harm}")}, tmp_path / "w.pth")
    assert "could run code" in refused(lambda: read_weights(tmp_path / "w.pth"))
    (tmp_path / "plain.bin").write_bytes(pickle.dumps(Hostile(f"touch {harm}")))
    assert "not what torch.save writes" in refused(lambda: read_weights(tmp_path / "plain.bin"))
    assert not harm.exists()


def test_sizes_are_bounded_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pretrained, "LIMIT", 4000)
    read = []
    monkeypatch.setattr(torch, "load", lambda *_, **__: read.append(1))
    monkeypatch.setattr(_pretrained, "load_file", lambda *_: read.append(1))
    for file in ("w.pth", "w.safetensors"):
        path = written(tmp_path / file, {"w": torch.ones(2000)})
        assert "more than the 4,000" in refused(lambda path=path: read_weights(path))  # type: ignore[misc]
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 100_000)
    assert (tmp_path / "bomb.pth").stat().st_size < 4000
    assert "100,000 bytes" in refused(lambda: read_weights(tmp_path / "bomb.pth"))
    assert not read


def test_a_view_that_is_larger_than_its_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pretrained, "LIMIT", 4000)
    torch.save({"w": torch.ones(1).expand(2000)}, tmp_path / "w.pth")
    assert "8,000 bytes" in refused(lambda: read_weights(tmp_path / "w.pth"))
