"""Image encoders of OpenCLIP: their files become weights of timm's models as docs/datasets.md says."""

import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from support.markdown import ROOT

from pflcore.backbones import BACKBONES

(RECIPE,) = re.findall(r"```python\n(import timm\n.*?)```", (ROOT / "docs/datasets.md").read_text("utf-8"), re.DOTALL)
SMALL = "vit_xsmall_patch16_clip_224"
# What timm names as OpenCLIP names it; the first that is in a name is replaced.
NAMES = """patch_embed.proj=conv1 pos_embed=positional_embedding cls_token=class_embedding norm_pre=ln_pre norm1=ln_1
attn.qkv.=attn.in_proj_ attn.proj=attn.out_proj mlp.fc1=mlp.c_fc mlp.fc2=mlp.c_proj norm2=ln_2 norm=ln_post"""


def as_open_clip(name, tensor):
    """An entry of timm's model under OpenCLIP's name and in its shape."""
    ours, theirs = next(one.split("=") for one in NAMES.split() if one.split("=")[0] in name)
    tensor = tensor.squeeze(0) if ours == "pos_embed" else tensor.flatten() if ours == "cls_token" else tensor
    return f"visual.{name.replace(ours, theirs).replace('blocks.', 'transformer.resblocks.')}", tensor


def test_a_file_of_open_clip_is_read_through_timm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("weights").mkdir()
    state = BACKBONES.create("timm_model", model=SMALL).create((3, 224, 224), 512, 5)[0].state_dict()
    written = dict(as_open_clip(name, one) for name, one in state.items() if not name.startswith("head."))
    written |= {"logit_scale": torch.ones(()), "visual.proj": state["head.weight"].T.contiguous()}
    save_file(written, "weights/open_clip_model.safetensors")
    exec(compile(RECIPE.replace("vit_base_patch16_clip_224", SMALL), "docs/datasets.md", "exec"), {})
    backbone = BACKBONES.create("timm_model", model=SMALL, pretrained="weights/clip.safetensors")
    read, _ = backbone.create((3, 224, 224), 10, 6)
    ours = read.state_dict()
    assert all(torch.equal(ours[name], one) for name, one in state.items() if not name.startswith("head."))
    assert "has 512 classes" in read.notes[0]
