"""Pretrained weights in specs: part of a run by what is in the file, needed by who trains and by nobody else."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.markdown import ROOT
from support.project import VIT, Project, make_project, spec

from pflcore.backbones import BACKBONES
from pflcore.errors import UserError
from pipeline.stages import weights

FILE, OTHER = "files/vit.safetensors", "elsewhere/copy.safetensors"


def naming(path: str | None) -> str:
    backbone = VIT.replace("}", f", pretrained: {path}}}") if path else VIT
    return spec("[fedavg, local]", backbone=backbone, training=", save_weights: true")


def state(seed: int = 7, classes: int = 10) -> dict[str, torch.Tensor]:
    backbone = BACKBONES.create("tiny_vit", depth=1, dim=8, heads=1, head_dim=8, mlp_dim=8, patch=4)
    return dict(backbone.create((1, 8, 8), classes, seed)[0].state_dict())


def place(project: Project, path: str, **content: int) -> None:
    file = project.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(state(**content), file) if file.suffix == ".safetensors" else torch.save(state(**content), file)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path, {"specs/a.yaml": naming(FILE)}, ["a"])
    place(made, FILE)
    return made


def ids(project: Project) -> list[str]:
    return sorted(project.compiled().runs)


def test_a_run_is_named_by_what_is_in_the_file_which_training_alone_needs(project: Project) -> None:
    compilation, before = project.compiled(), ids(project)
    record, *_ = compilation.runs.values()
    assert record.pretrained and record.pretrained.startswith("sha256:") and FILE not in str(record.record)
    by_kind = {kind: [one for one in compilation.stages if one.kind == kind] for kind in ("weights", "train", "guard")}
    (read,), (guard,) = by_kind["weights"], by_kind["guard"]
    assert all(read.outs[0] in train.deps for train in by_kind["train"]) and len(by_kind["train"]) == 2
    assert FILE not in read.deps and FILE not in read.command and {FILE, "specs"} <= {*guard.deps}
    place(project, OTHER)
    (project.root / FILE).unlink()
    project.write("specs/a.yaml", naming(OTHER))
    assert ids(project) == before
    place(project, OTHER, seed=8)
    assert not set(ids(project)) & set(before)
    project.write("specs/a.yaml", naming(None))
    plain = ids(project)
    project.write("specs/a.yaml", naming("null"))
    assert ids(project) == plain and not project.compiled().weights  # runs from scratch keep their ids


def test_a_link_out_of_the_project_is_refused(project: Project, tmp_path_factory) -> None:
    """As is any other path that leads elsewhere, what stages write, and what cannot be tuned."""
    (project.root / "out").symlink_to(tmp_path_factory.mktemp("other"))
    outside = ("../w.pth", "/etc/w.pth", "a/../../w.pth", "${x}/w.pth", "a//w.pth", "-w.pth", "a\\\\w.pth", "out/w.pth")
    line = r"^specs/a\.yaml:7: grid\.base\.backbone\.pretrained: .* must be a path inside the project"
    refused = {naming(f'"{path}"'): line for path in outside}
    refused[naming("artifacts/runs/x/weights.safetensors")] = r"lies in artifacts/, .*; copy it to a folder of its own$"
    held = naming(FILE).replace("partition: iid", "partition: {name: iid, validation_share: 0.2}")
    refused[f"{held}tune: {{space: {{backbone.pretrained: [{FILE}, null]}}, seeds: [7]}}\n"] = "cannot be tuned"
    for text, message in refused.items():
        project.write("specs/a.yaml", text)
        with pytest.raises(UserError, match=message):
            project.compiled()


def test_a_file_that_changed_since_is_not_read_and_an_absent_one_a_mistake_of_who_runs_it(project: Project) -> None:
    def refuses(message: str, found: dict[str, str]) -> None:
        ((content, path),) = found.items()
        with pytest.raises(UserError, match=message):
            weights.run({"path": path, "content": content}, project.root / "out.safetensors", project.root)

    found = project.compiled().weights
    place(project, FILE, seed=8)
    refuses(r"was changed after the specs were compiled; run `pfl compile`$", found)
    (project.root / FILE).unlink()
    compilation = project.compiled()
    assert {run.pretrained for run in compilation.runs.values()} == {f"absent:{FILE}"}
    assert not any(FILE in stage.deps for stage in compilation.stages)
    refuses(f"{FILE}: no such file of pretrained weights", compilation.weights)
    assert not (project.root / "out.safetensors").exists()


@pytest.mark.matrix
def test_training_begins_there_and_a_changed_file_trains_anew(project: Project) -> None:
    """The models of a run of no learning are those in the file, however it was written."""
    project.write("specs/a.yaml", naming("files/vit.pth").replace("lr: 0.1", "lr: 1.0e-30"))
    for seed in (7, 8):
        place(project, "files/vit.pth", seed=seed)
        project.succeed("pfl", "run", "a")
        (run,) = (name for name in ids(project) if name.startswith("fedavg"))
        left = load_file(project.root / f"artifacts/runs/{run}/weights.safetensors")
        assert all(torch.allclose(left[name], tensor) for name, tensor in state(seed=seed).items())
    place(project, "files/vit.pth", classes=4)
    assert project.repro().code != 0  # the guard compiles, and asks to be called again
    done = project.repro(PFL_DEVICE="cpu")
    assert done.code == 0 and len([name for name in done.ran if name.startswith("train")]) == 2, done.output
    assert "the classifier begins anew" in done.output and project.repro().ran == []


# Image encoders of OpenCLIP: their files become weights of timm's models as docs/datasets.md says.

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
