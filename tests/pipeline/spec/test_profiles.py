"""Profiles: every method and dataset shrinks to seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.spec.profiles import smoke_clients
from support.project import Project, make_project, spec
from support.tiny import fits

from pflcore.artifacts import read_table
from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS
from pipeline.compile.generated import write

CONVNET = "{name: convnet, kernel: 3, padding: 1}"
IMAGES = [name for name in DATASETS.names() if len(DATASETS.create(name).shape) == 3]


def published(folder: Path, dataset: str, methods: list[str], partitions: list[str]) -> Project:
    """Return a project whose spec has methods and partitions of a hundred clients, as published."""
    two = "pathological: {name: pathological, classes_per_client: 2}"
    named = ", ".join(two if name == "pathological" else f"{name}: {name}" for name in partitions)
    convolutional = [name for name in methods if not fits(METHODS.create(name), BACKBONES.create("tiny_vit", patch=8))]
    base = "partition: {name: pathological, classes_per_client: 2}, clients: 100, backbone: tiny_vit"
    text = f"grid:\n  base: {{dataset: {dataset}, {base}}}\n"
    text += f"  axes: {{method: [{', '.join(methods)}], partition: {{{named}}}}}\n"
    text += "".join(
        ["  overrides:\n"] * bool(convolutional)
        + [f"    - {{when: {{method: {name}}}, set: {{backbone: {CONVNET}}}}}\n" for name in convolutional]
    )
    return make_project(folder, {"specs/all.yaml": f"{text}table: {{rows: [method], columns: [partition]}}\n"})


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 100))
def test_smoke_clients_are_few_and_keep_a_partition_even(classes: int, each: int, times: int) -> None:
    assert smoke_clients(times, None, classes) == min(times, 8)
    least = next(few for few in range(1, classes + 1) if few * each % classes == 0)
    few = smoke_clients(least * times, each, classes)
    assert 1 <= few <= least * times and few * each % classes == 0


@pytest.mark.parametrize(
    ("dataset", "methods", "partitions"),
    [
        ("digits", METHODS.names(), ["iid", "pathological"]),
        ("cifar10", ["fedavg"], PARTITIONS.names()),
        *(pytest.param(name, ["fedtp"], PARTITIONS.names(), marks=pytest.mark.matrix) for name in DATASETS.names()),
    ],
)
def test_everything_shrinks(tmp_path: Path, dataset: str, methods: list[str], partitions: list[str]) -> None:
    project = published(tmp_path, dataset, methods, partitions)
    runs = project.compiled("smoke").runs
    assert len(runs) == len(methods) * len(partitions) and not runs.keys() & project.compiled().runs.keys()
    for record in (run.record for run in runs.values()):
        assert record["profile"] == "smoke" and record["clients"] <= max(20, DATASETS.create(dataset).classes)
        assert 40 * record["clients"] <= record["dataset"]["stand_in"] <= max(1000, 40 * record["clients"])
        assert record["training"]["rounds"] <= 3 and record["training"]["local_epochs"] == 1
        assert record["training"]["sample_rate"] * record["clients"] == pytest.approx(2)


@pytest.mark.parametrize(
    ("dataset", "methods"),
    [
        ("digits", ["fedavg", "fedtp", "scaffold"]),
        pytest.param("digits", METHODS.names(), marks=pytest.mark.matrix),
        *(pytest.param(name, ["fedavg"], marks=pytest.mark.matrix) for name in IMAGES if name != "digits"),
    ],
)
def test_everything_runs_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, methods: list[str]
) -> None:
    monkeypatch.setenv("PFL_THREADS", "1")  # more would wait for one another, beside other tests
    project = published(tmp_path, dataset, methods, ["iid"])
    compilation = project.compiled("smoke")
    write(project.workspace("smoke"), compilation)
    project.execute(compilation, "smoke")
    root = project.workspace("smoke").root
    tables = [read_table(path, "rounds/2") for path in root.glob("artifacts/runs/*/rounds.parquet")]
    assert len(tables) == len(methods) and all(meta["diverged"] is None for _, meta in tables)
    assert "SMOKE PROFILE" in (root / "reports/all/report.md").read_text(encoding="utf-8")
    assert not (project.root / "artifacts").exists()


def test_what_is_smaller_already_stays(tmp_path: Path) -> None:
    small = spec("[fedavg]", rounds=2).replace("dataset: digits", "dataset: {name: digits, stand_in: 60}")
    (run,) = make_project(tmp_path, {"specs/a.yaml": small}).compiled("smoke").runs.values()
    assert (run.record["dataset"]["stand_in"], run.record["clients"]) == (60, 3)
