"""``benchmarks/gpu_cells.py`` end to end on a CPU, beside a `pfl run` of the same spec."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.project import Project, make_project, spec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
THERE = {**os.environ, "PYTHONPATH": str(BENCHMARKS), "PFL_WORKERS": "1", "PFL_THREADS": "1"}
# What the card's machine lacks cannot be imported there.
BARE = """
import runpy, sys
for name in ("pyarrow", "pydantic", "dvc", "yaml", "typer", "rich", "sklearn", "scipy", "pandas"):
    sys.modules[name] = None
sys.argv[0] = sys.argv[1]
del sys.argv[1]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ROUNDS = 40
SPEC = spec("{FedAvg: fedavg, FedPer: fedper}", rounds=ROUNDS, partition="{name: dirichlet, alpha: 1.0}")


def prepared(folder: Path) -> Project:
    """A project whose data and partitions are made, and nothing else."""
    project = make_project(folder, {"specs/tiny.yaml": SPEC}, default=["tiny"])
    project.compile()
    done = project.repro(*(name for name in project.stages() if name.endswith(":partition")))
    assert done.code == 0, done.output
    return project


def here(project: Project, *words: object) -> str:
    """What `pack` or `collect` says in a project."""
    command = [sys.executable, BENCHMARKS / "gpu_cells.py", *map(str, words)]
    done = subprocess.run(command, cwd=project.root, env=THERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(cells: Path, out: Path, *words: object) -> subprocess.Popen[str]:
    """`train` on the bare machine, in a folder that is no project."""
    words = ("train", "--cells", cells, "--out", out, "--device", "cpu", *words)
    command = [sys.executable, "-c", BARE, BENCHMARKS / "gpu_cells.py", *map(str, words)]
    return subprocess.Popen(command, cwd=cells, env=THERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.matrix
def test_cells_are_those_of_an_ordinary_run_though_killed_and_continued(tmp_path: Path) -> None:
    project, cells, first, second = prepared(tmp_path / "a"), *(tmp_path / name for name in ("cells", "1", "2"))
    assert here(project, "pack", "--spec", "tiny", "--out", cells).startswith("2 cells, ")
    # Killed as soon as there is a checkpoint, …
    process, ends = train(cells, first, "--every", 0), time.monotonic() + 200
    while not list(first.glob("under-way-*/round-*")):
        assert time.monotonic() < ends
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert "1 under way" in here(project, "collect", "--cells", cells, "--from", first)
    # … then continued elsewhere, from what came back.
    process = train(cells, second)
    said, error = process.communicate(timeout=500)
    assert process.returncode == 0 and said.count(f"| {ROUNDS} | ") == said.count("| done |") == 2, error
    assert here(project, "collect", "--cells", cells, "--from", second).startswith("2 runs taken, 0 under way")
    # The same spec in another project, by `pfl run`.
    other = prepared(tmp_path / "b")
    done = other.call("pfl", "run", PFL_DEVICE="cpu", PFL_WORKERS="1", PFL_THREADS="1")
    assert done.returncode == 0, done.stderr
    ours, theirs = (sorted(one.root.glob("artifacts/runs/*/rounds.parquet")) for one in (project, other))
    assert len(ours) == 2 and [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]
    # DVC takes them for what they are, and they can be kept.
    kept = project.call("pfl", "results", "keep", "tiny")
    assert kept.returncode == 0, kept.stderr
