"""Weights from a file: what is read, what is refused in one line, and what a model then begins with."""

import pickle
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from support.mistakes import line_of
from support.official import Hostile, write_zip
from support.tiny import CLASSES, backbone, inputs_for

from pflcore.backbones import BACKBONES, _pretrained, read_weights
from pflcore.errors import UserError


def build_model(name, classes, seed, file=None):
    net = replace(backbone(name), pretrained=str(file) if file else None)
    return net.create(tuple(inputs_for(net, 1).shape[1:]), classes, seed)[0]


def trained(name):
    """A state as no seed begins with."""
    return {key: tensor + 1 for key, tensor in build_model(name, CLASSES, 9).state_dict().items()}


def written(path, state):
    (save_file if path.suffix == ".safetensors" else torch.save)(state, path)
    return path


refused = partial(line_of, read_weights)


@pytest.mark.parametrize("name", BACKBONES.names())
def test_a_model_begins_with_what_is_in_the_file(tmp_path, name):
    state = trained(name)
    for file in ("w.safetensors", "w.pth"):
        model = build_model(name, CLASSES, 0, written(tmp_path / file, state))
        assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
        assert model.notes == ()


@pytest.mark.parametrize("name", ["tiny_vit", "resnet50"])
def test_a_classifier_of_other_classes_begins_anew_and_that_is_said(tmp_path, name):
    state, reason = trained(name), f"since that of the file has {CLASSES} classes"
    if name == "resnet50":  # whose classifier is called fc
        state, reason = {k: value for k, value in state.items() if not k.startswith("fc.")}, "since the file has none"
    # Beside the state of its training.
    path = written(tmp_path / "w.bin", {"model": state, "epoch": 3, "optimizer": {"lr": 0.1}})
    model, begun = build_model(name, CLASSES + 3, 5, path), build_model(name, CLASSES + 3, 5).state_dict()
    initial = {key for key, tensor in model.state_dict().items() if torch.equal(tensor, begun[key])}
    assert initial and all(key.startswith(("head.", "fc.")) for key in initial)
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items() if key not in initial)
    assert model.notes == (f"{path}: the classifier begins anew, {reason}",)


def test_other_weights_are_named_and_counted(tmp_path):
    state = trained("tiny_vit")
    missing = [name for name in state if name.startswith("blocks.1.")]
    wrong = {name: tensor for name, tensor in state.items() if name not in missing}
    wrong |= {"pos_embed": torch.ones(1, 9, 8), "dist_token": torch.ones(8), "norm.bias": torch.full((8,), torch.nan)}
    wrong |= {"norm.weight": torch.ones(8, dtype=torch.int64)}
    with pytest.raises(UserError, match=r"^backbone tiny_vit: .*w\.pth: not the weights of this model: ") as error:
        build_model("tiny_vit", CLASSES, 0, written(tmp_path / "w.pth", wrong))
    for words in (f"{len(missing)} missing ({', '.join(missing[:3])}, …)", "(pos_embed 1×9×8 instead of 1×5×8)"):
        assert words in str(error.value)
    for words in ("another kind of number (norm.weight)", "not finite (norm.bias)", "unknown to the model (dist_"):
        assert words in str(error.value)


def test_what_is_absent_or_something_else(tmp_path):
    path = tmp_path / "w.pth"
    assert "no such file" in refused(path) and "not a file of weights by its name" in refused(tmp_path / "w.onnx")
    empty = torch.empty(2, device="meta")  # a shape without numbers
    for content in ([1], {}, {"w": 1.0}, {1: torch.ones(2)}, {"w": torch.eye(3).to_sparse()}, {"w": empty}):
        assert "no state dict" in refused(written(path, content))
    assert "no safetensors" in refused(path.rename(tmp_path / "named.safetensors"))


def test_a_pickle_with_code_in_it_is_not_run(tmp_path):
    harm = tmp_path / "harm"
    assert "could run code" in refused(written(tmp_path / "w.pth", {"w": torch.ones(2), "more": Hostile(harm)}))
    (tmp_path / "plain.bin").write_bytes(pickle.dumps(Hostile(harm)))
    assert "not what torch.save writes" in refused(tmp_path / "plain.bin") and not harm.exists()


def test_sizes_are_bounded_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(_pretrained, "LIMIT", 4000)
    view = torch.ones(1).expand(2000)  # larger than its file
    assert "8,000 bytes" in refused(written(tmp_path / "view.pth", {"w": view}))
    for file in ("w.pth", "w.safetensors"):
        assert "more than the 4,000" in refused(written(tmp_path / file, {"w": torch.ones(2000)}))
    bomb = write_zip(tmp_path / "bomb.pth", {"archive/data.pkl": b"\0" * 100_000})
    assert bomb.stat().st_size < 4000 and "100,000 bytes" in refused(bomb)
