"""Pretrained weights in specs: part of a run by what is in the file, needed by who trains and by nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.project import Project, make_project, spec, tree

from pflcore.artifacts import read_table
from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS
from pflcore.errors import UserError
from pipeline.stages import weights
from pipeline.workspace import weights_path

PLAIN = "{name: tiny_vit, depth: 1, dim: 8, heads: 1, head_dim: 8, mlp_dim: 8, patch: 4%s}"
FILE, OTHER = "files/vit.safetensors", "elsewhere/copy.safetensors"


def naming(path: str | None) -> str:
    return spec(
        "[fedavg, local]", backbone=PLAIN % (f", pretrained: {path}" if path else ""), training=", save_weights: true"
    )


def state(seed: int = 7, classes: int = 10) -> dict[str, torch.Tensor]:
    backbone = BACKBONES.create("tiny_vit", depth=1, dim=8, heads=1, head_dim=8, mlp_dim=8, patch=4)
    return dict(backbone.create((1, 8, 8), classes, seed)[0].state_dict())


def place(project: Project, path: str, **content: int) -> Path:
    file = project.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(state(**content), file) if file.suffix == ".safetensors" else torch.save(state(**content), file)
    return file


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path, {"specs/a.yaml": naming(FILE)})
    place(made, FILE)
    return made


def ids(project: Project) -> list[str]:
    return sorted(project.compiled().runs)


def test_a_run_is_named_by_what_is_in_the_file_and_not_by_its_place(project: Project) -> None:
    before, (record, *_) = ids(project), project.compiled().runs.values()
    assert record.pretrained and record.pretrained.startswith("sha256:") and FILE not in str(record.record)
    (project.root / OTHER).parent.mkdir()
    (project.root / FILE).rename(project.root / OTHER)
    project.write("specs/a.yaml", naming(OTHER))
    assert ids(project) == before
    place(project, OTHER, seed=8)
    assert not set(ids(project)) & set(before)


def test_runs_from_scratch_keep_their_ids(project: Project) -> None:
    project.write("specs/a.yaml", naming(None))
    plain = ids(project)
    project.write("specs/a.yaml", naming("null"))
    assert ids(project) == plain and not project.compiled().weights


def test_stages_depend_on_what_they_must(project: Project) -> None:
    compilation = project.compiled()
    by_kind = {kind: [one for one in compilation.stages if one.kind == kind] for kind in ("weights", "train", "guard")}
    (read,) = by_kind["weights"]
    assert all(read.outs[0] in train.deps for train in by_kind["train"]) and len(by_kind["train"]) == 2
    assert FILE not in read.deps and FILE in by_kind["guard"][0].deps
    assert "specs" in by_kind["guard"][0].deps and FILE not in read.command


@pytest.mark.matrix
def test_an_absent_file_is_no_mistake_of_a_spec_but_of_who_runs_it(project: Project) -> None:
    (project.root / FILE).unlink()
    assert project.call("pfl", "validate").returncode == 0
    compilation = project.compiled()
    assert {run.pretrained for run in compilation.runs.values()} == {f"absent:{FILE}"}
    assert not any(FILE in stage.deps for stage in compilation.stages)
    done = project.call("pfl", "run", "a", PFL_DEVICE="cpu")
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert f"{FILE}: no such file of pretrained weights" in done.stdout + done.stderr
    assert project.call("pfl", "run", "a", "--profile", "smoke", PFL_DEVICE="cpu").returncode == 0


@pytest.mark.parametrize(
    "path", ["../w.pth", "/etc/w.pth", "a/../../w.pth", "${x}/w.pth", "a//w.pth", "-w.pth", "a\\\\w.pth"]
)
def test_a_path_that_leads_elsewhere_is_one_line(project: Project, path: str) -> None:
    project.write("specs/a.yaml", naming(f'"{path}"'))
    with pytest.raises(
        UserError, match=r"^specs/a\.yaml:7: grid\.base\.backbone\.pretrained: .* must be a path inside"
    ):
        project.compiled()


def test_a_link_out_of_the_project_is_refused(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    (project.root / "out").symlink_to(tmp_path_factory.mktemp("other"))
    project.write("specs/a.yaml", naming("out/w.pth"))
    with pytest.raises(UserError, match="must be a path inside the project"):
        project.compiled()


def test_what_a_run_has_left_has_to_be_copied_first(project: Project) -> None:
    project.write("specs/a.yaml", naming("artifacts/runs/x/weights.safetensors"))
    with pytest.raises(UserError, match=r"lies in artifacts/, where stages write; copy it to a folder of its own$"):
        project.compiled()


def test_it_cannot_be_tuned(project: Project) -> None:
    text = naming(FILE).replace("partition: iid", "partition: {name: iid, validation_share: 0.2}")
    project.write("specs/a.yaml", f"{text}tune: {{space: {{backbone.pretrained: [{FILE}, null]}}, seeds: [7]}}\n")
    with pytest.raises(UserError, match="cannot be tuned"):
        project.compiled()


def test_a_file_that_changed_since_is_not_read(project: Project) -> None:
    compilation = project.compiled()
    project.compile()
    ((content, path),) = compilation.weights.items()
    place(project, FILE, seed=8)
    with pytest.raises(UserError, match=r"was changed after the specs were compiled; run `pfl compile`$"):
        weights.run({"path": path, "content": content}, project.root / "out.safetensors", project.root)
    assert not (project.root / "out.safetensors").exists()


@pytest.mark.matrix
def test_training_begins_there_and_a_changed_file_trains_anew(project: Project) -> None:
    """The models of a run of no learning are those in the file, however it was written."""
    still = naming("files/vit.pth").replace("lr: 0.1", "lr: 1.0e-30")
    project.write("specs/a.yaml", still)
    for seed in (7, 8):
        place(project, "files/vit.pth", seed=seed)
        done = project.call("pfl", "run", "a", PFL_DEVICE="cpu")
        assert done.returncode == 0, done.stdout + done.stderr
        (run,) = (name for name in ids(project) if name.startswith("fedavg"))
        left = load_file(project.root / f"artifacts/runs/{run}/weights.safetensors")
        assert all(torch.allclose(left[name], tensor) for name, tensor in state(seed=seed).items())
    again = tree(project.root / "artifacts")
    assert project.call("pfl", "run", "a").returncode == 0 and tree(project.root / "artifacts") == again


@pytest.mark.matrix
def test_a_classifier_that_begins_anew_is_told(project: Project) -> None:
    place(project, FILE, classes=4)
    done = project.call("pfl", "run", "a", PFL_DEVICE="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    logs = " ".join(path.read_text(encoding="utf-8") for path in (project.root / ".pfl/logs").rglob("*.log"))
    assert "the classifier begins anew, since that of the file has 4 classes" in logs


@pytest.mark.matrix
def test_dvc_notices_a_file_that_changed(project: Project) -> None:
    project.write("pyproject.toml", '[tool.pfl]\ndefault = ["a"]\n')
    project.compile()
    first = project.repro()
    assert first.code == 0 and len([name for name in first.ran if name.startswith("train")]) == 2, first.output
    assert project.repro().ran == []
    place(project, FILE, seed=8)
    assert project.repro().code != 0  # the guard compiles, and asks to be called again
    again = project.repro()
    assert again.code == 0 and len([name for name in again.ran if name.startswith("train")]) == 2, again.output
    assert len(list((project.root / weights_path("x")).parent.iterdir())) == 2


NET = "{name: tiny_vit, depth: 2, dim: 24, heads: 2, head_dim: 12, mlp_dim: 24, patch: 4, dropout: 0.0%s}"
WAYS = """
      Scratch: {name: fedavg, train_only: [head]}
      Head: {name: fedavg, train_only: [head]}
      FedAvg: fedavg
      LoRA: {name: lora, rank: 2}
      Prompts: {name: prompts, count: 2, train_only: [prompt, head]}
      Adapters: {name: adapters, width: 4, train_only: [adapter, head]}
      Prefixes: {name: prefix, kind: tokens, tokens: 2, train_only: [prefix, head]}
"""


def pretrain() -> dict[str, torch.Tensor]:
    """A Transformer after a moment of plain training on handwritten digits in one place."""
    net = dict(depth=2, dim=24, heads=2, head_dim=12, mlp_dim=24, patch=4, dropout=0.0)
    model, _ = BACKBONES.create("tiny_vit", **net).create((1, 8, 8), 10, 0)
    samples = DATASETS.create("digits").load(Path())
    rows = torch.from_numpy(samples.train.nonzero()[0])
    mean, std = samples.mean[0], samples.std[0]
    images = (torch.from_numpy(samples.inputs)[rows].float() / 255 - mean) / std
    labels = torch.from_numpy(samples.labels)[rows].long()
    adam, order = torch.optim.Adam(model.parameters(), 5e-3), torch.Generator().manual_seed(0)
    for _ in range(120):
        batch = torch.randint(len(rows), (128,), generator=order)
        adam.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        adam.step()
    return dict(model.state_dict())


@pytest.mark.matrix
def test_ways_of_tuning_a_transformer_that_was_trained_before(tmp_path: Path) -> None:
    """All begin where the file is and stay ahead of a random body; what they send is what they train and share."""
    project, weights = make_project(tmp_path, {}), pretrain()
    (project.root / "files").mkdir()
    save_file(weights, project.root / "files/vit.safetensors")
    torch.save({"state_dict": weights, "epoch": 1}, project.root / "files/vit.pth")
    found = {}
    for name in ("vit.safetensors", "vit.pth"):
        text = spec(WAYS, backbone=NET % f", pretrained: files/{name}", training=", save_weights: true")
        scratch = "  overrides: [{when: {method: Scratch}, set: {backbone: {pretrained: null}}}]\n"
        project.write("specs/ways.yaml", text.replace("lr: 0.1", "lr: 0.05") + scratch)
        done = project.call("pfl", "run", "ways", PFL_DEVICE="cpu")
        assert done.returncode == 0, done.stdout + done.stderr
        table = project.compiled().tables["ways"]
        runs = {cell.labels["method"]: cell.runs[0] for cell in table.cells}
        found[name] = {label: rounds(project, run) for label, run in runs.items()}
    first, again = found.values()
    for label, (correct, total, header) in first.items():
        assert correct == again[label][0]
        assert (sum(correct) / sum(total) > 0.85) is (label != "Scratch"), (label, sum(correct) / sum(total))
        sent = header["communicated_up"]
        head, lora = 10 * 24 + 10, 2 * 2 * 2 * (24 * 2)
        every = sum(tensor.numel() for tensor in weights.values())
        expected = {"Scratch": head, "Head": head, "FedAvg": every, "LoRA": head + lora}
        assert sent == 4 * expected.get(label, 0), label


def rounds(project: Project, run: str) -> tuple[list[int], list[int], dict[str, Any]]:
    table, header = read_table(project.root / f"artifacts/runs/{run}/rounds.parquet", "rounds/2")
    last = table.filter(pc.equal(table["round"], 2))
    return last["correct"].to_pylist(), last["total"].to_pylist(), header
