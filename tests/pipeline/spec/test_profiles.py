"""Profiles: every method and dataset shrinks to seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.project import Project, make_project, spec
from support.tiny import fits

from pflcore.artifacts import read_table
from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS
from pipeline.compile import generated
from pipeline.compile.compilation import Compilation
from pipeline.spec.profiles import smoke_clients

PAPER = """\
title: Every method as published
grid:
  base:
    dataset: {dataset}
    partition: {{name: pathological, classes_per_client: 2}}
    clients: 100
    backbone: tiny_vit
  axes:
    method: {methods}
    partition: {partitions}
table: {{rows: [method], columns: [partition]}}
"""
CONVNET = "{name: convnet, kernel: 3, padding: 1}"
PARTITION = {"pathological": "{name: pathological, classes_per_client: 2}"}


def published(dataset: str, methods: list[str], partitions: list[str]) -> str:
    named = ", ".join(f"{name}: {PARTITION.get(name, name)}" for name in partitions)
    text = PAPER.format(dataset=dataset, methods=f"[{', '.join(methods)}]", partitions=f"{{{named}}}")
    convolutional = [name for name in methods if not fits(METHODS.create(name), BACKBONES.create("tiny_vit", patch=8))]
    patches = [f"    - {{when: {{method: {name}}}, set: {{backbone: {CONVNET}}}}}\n" for name in convolutional]
    return text.replace("table:", "".join(["  overrides:\n", *patches]) + "table:") if patches else text


def smoke(folder: Path, text: str) -> tuple[Project, Compilation]:
    """A project whose spec is compiled and written under the smoke profile."""
    project = make_project(folder, {"specs/all.yaml": text})
    compilation = project.compiled("smoke")
    generated.write(project.workspace("smoke"), compilation)
    return project, compilation


@given(st.data())
def test_smoke_clients_keep_a_partition_even(data: Any) -> None:
    classes = data.draw(st.integers(1, 200))
    each = data.draw(st.integers(1, classes))
    least = next(few for few in range(1, classes + 1) if few * each % classes == 0)
    clients = least * data.draw(st.integers(1, 100))
    few = smoke_clients(clients, each, classes)
    assert 1 <= few <= clients
    assert few * each % classes == 0


@given(st.integers(1, 10_000), st.integers(1, 200))
def test_smoke_clients_are_few(clients: int, classes: int) -> None:
    assert smoke_clients(clients, None, classes) == min(clients, 8)


@pytest.mark.parametrize(
    "dataset", [name if name == "digits" else pytest.param(name, marks=pytest.mark.matrix) for name in DATASETS.names()]
)
def test_everything_shrinks(tmp_path: Path, dataset: str) -> None:
    methods = METHODS.names() if dataset == "digits" else ["fedavg", "fedtp"]
    text = published(dataset, methods, PARTITIONS.names())
    project, compilation = smoke(tmp_path, text)
    assert len(compilation.runs) == len(methods) * len(PARTITIONS.names())
    for run in compilation.runs.values():
        record = run.record
        assert record["profile"] == "smoke"
        classes = DATASETS.create(dataset).classes
        assert record["clients"] <= max(20, classes)
        assert 40 * record["clients"] <= record["dataset"]["stand_in"] <= max(1000, 40 * record["clients"])
        assert record["training"]["rounds"] <= 3 and record["training"]["local_epochs"] == 1
        assert record["training"]["sample_rate"] * record["clients"] == pytest.approx(2)
    assert not set(compilation.runs) & set(project.compiled().runs)


IMAGES = [name for name in DATASETS.names() if len(DATASETS.create(name).shape) == 3]
SIX = ["fedavg", "fedper", "ditto", "fedtp", "fedproto", "scaffold"]  # of different kinds


@pytest.mark.parametrize(
    ("dataset", "methods"),
    [
        ("digits", SIX),
        pytest.param("digits", [name for name in METHODS.names() if name not in SIX], marks=pytest.mark.matrix),
        *(pytest.param(name, ["fedavg"], marks=pytest.mark.matrix) for name in IMAGES if name != "digits"),
    ],
)
def test_everything_runs_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, methods: list[str]
) -> None:
    monkeypatch.setenv("PFL_THREADS", "1")  # more would wait for one another, beside other tests
    project, compilation = smoke(tmp_path, published(dataset, methods, ["iid"]))
    project.execute(compilation, "smoke")
    root = project.workspace("smoke").root
    rounds = list(root.glob("artifacts/runs/*/rounds.parquet"))
    assert len(rounds) == len(methods)
    for path in rounds:
        table, meta = read_table(path, "rounds/2")
        assert meta["diverged"] is None
        assert table.num_rows >= 5
    report = (root / "reports/all/report.md").read_text(encoding="utf-8")
    assert "SMOKE PROFILE" in report
    assert not (project.root / "artifacts").exists()


def test_what_is_smaller_already_stays(tmp_path: Path) -> None:
    small = spec("[fedavg]", rounds=2).replace("dataset: digits", "dataset: {name: digits, stand_in: 60}")
    project = make_project(tmp_path, {"specs/a.yaml": small})
    (run,) = project.compiled("smoke").runs.values()
    assert run.record["dataset"]["stand_in"] == 60
    assert run.record["clients"] == 3
