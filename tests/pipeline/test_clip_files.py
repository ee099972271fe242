"""Image encoders of OpenCLIP: their files become weights of timm's models as docs/datasets.md says."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.markdown import ROOT

from pflcore.backbones import BACKBONES

(RECIPE,) = re.findall(r"```python\n(import timm\n.*?)```", (ROOT / "docs/datasets.md").read_text("utf-8"), re.DOTALL)
SMALL = "vit_xsmall_patch16_clip_224"
# OpenCLIP's names of what timm names otherwise; the first that occurs in a name counts.
NAMES = {
    "patch_embed.proj": "conv1",
    "pos_embed": "positional_embedding",
    "cls_token": "class_embedding",
    "norm_pre": "ln_pre",
    "attn.qkv.": "attn.in_proj_",
    "attn.proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "norm1": "ln_1",
    "norm2": "ln_2",
    "norm": "ln_post",
}


def as_open_clip(state):
    """The entries of timm's model under OpenCLIP's names and in its shapes, and one of its text encoder."""
    written = {"logit_scale": torch.ones(())}
    for name, tensor in state.items():
        if name.startswith("head."):
            continue
        old = next(old for old in NAMES if old in name)
        new = name.replace(old, NAMES[old]).replace("blocks.", "transformer.resblocks.")
        written[f"visual.{new}"] = tensor.flatten(0, -2) if old == "pos_embed" else tensor
    written["visual.class_embedding"] = state["cls_token"].flatten()
    return {**written, "visual.proj": state["head.weight"].T.contiguous()}


def test_a_file_of_open_clip_is_read_through_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights").mkdir()
    backbone = BACKBONES.create("timm_model", model=SMALL)
    model, _ = backbone.create((3, 224, 224), 512, 5)
    save_file(as_open_clip(model.state_dict()), "weights/open_clip_model.safetensors")
    exec(compile(RECIPE.replace("vit_base_patch16_clip_224", SMALL), "docs/datasets.md", "exec"), {})
    assert load_file("weights/clip.safetensors").keys() == model.state_dict().keys()
    read, _ = BACKBONES.create("timm_model", model=SMALL, pretrained="weights/clip.safetensors").create(
        (3, 224, 224), 10, 6
    )
    ours = read.state_dict()
    assert all(torch.equal(ours[name], one) for name, one in model.state_dict().items() if not name.startswith("head."))
    assert "has 512 classes" in read.notes[0]
