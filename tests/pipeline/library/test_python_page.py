"""docs/python.md and docs/results.ipynb: every block and every cell is executed, on a small study of the same names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from support.project import Project, make_project

import pipeline

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/python.md").read_text("utf-8")
NOTEBOOK = json.loads((ROOT / "docs/results.ipynb").read_text("utf-8"))

SMALL = """\
title: Small
grid:
  base:
    dataset: digits
    clients: 10
    backbone: {name: tiny_vit, depth: 1, dim: 8, heads: 1, head_dim: 8, mlp_dim: 8, patch: 4}
    training: {rounds: 2, sample_rate: 0.3, local_epochs: 1, batch_size: 64, lr: 0.1}
    evaluation: {every: 1, window: 1, curve_every: 1}
  axes:
    method: {FedAvg: fedavg, FedTP: {name: fedtp, embedding: 4, hidden: 6, layers: 1}}
    partition: {pathological: {name: pathological, classes_per_client: 2, validation_share: 0.2}}
    seed: [0, 1]
tune:
  space: {training.lr: [0.05, 0.2]}
  trial: {training: {rounds: 1}}
table: {rows: [method], columns: [partition], average_over: [seed]}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = make_project(Path(tmp_path_factory.mktemp("small")), {"specs/quickstart.yaml": SMALL}, ["quickstart"])
    made.compile()
    done = made.repro(PFL_DEVICE="cpu")  # no weights are saved: models come from last checkpoints
    assert done.code == 0, done.output
    return made


@pytest.fixture
def there(small: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(small.root)
    monkeypatch.setenv("PFL_DEVICE", "cpu")
    matplotlib.use("agg")
    return small


@pytest.mark.matrix
def test_every_block_of_the_page_runs(there: Project, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/python.md", "exec"), names)
    printed = capsys.readouterr().out
    frame = names["frame"]
    assert set(frame["method"]) == {"FedAvg", "FedTP"} and re.search(r"^FedTP +0 +\d+\.\d+$", printed, re.MULTILINE)
    measured = frame.query("method == 'FedTP' and seed == 0 and client == 7 and round == 2 and population == 'test'")
    assert f"tensor({measured['correct'].item()}) of {measured['total'].item()}\n" in printed
    assert len(names["own"].results) == 15
    study = pipeline.open()  # models of tuned runs have what was chosen
    runs = study.runs("quickstart")
    assert [set(chosen) for chosen in runs["chosen"]] == [{"training.lr"}] * 4
    assert study.trained(runs["run"].iloc[0]).training.lr == runs["chosen"].iloc[0]["training.lr"]


@pytest.mark.matrix
def test_every_cell_of_the_notebook_runs(there: Project) -> None:
    names: dict[str, Any] = {}
    code = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    for cell in code:
        exec(compile(cell, "docs/results.ipynb", "exec"), names)
    assert names["last"]["accuracy"].between(0, 100).all() and len(names["last"]) == 4
    held = pipeline.open().partition("quickstart").query("seed == 0 and client == 7 and split == 'test'")
    assert sorted(names["labels"].tolist()) == sorted(held["label"])


def test_the_notebook_has_no_outputs() -> None:
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in NOTEBOOK["cells"])
    assert NOTEBOOK["nbformat"] == 4 and {cell["cell_type"] for cell in NOTEBOOK["cells"]} == {"markdown", "code"}
