"""``benchmarks/gpu_cells.py`` end to end on a CPU, beside a `pfl run` of the same spec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.project import Project, make_project, spec

from pflcore.data.assignment import Assignment
from pflcore.data.federation import FederatedData
from pflcore.data.noise import Noise
from pflcore.data.samples import Samples
from pipeline.ledger.entry import read_entry
from pipeline.ledger.ledger import Ledger

if TYPE_CHECKING:
    from cells.folder import Cell

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
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


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(BENCHMARKS), "PFL_WORKERS": "1", "PFL_THREADS": "1"}


def here(project: Project, *words: object) -> subprocess.CompletedProcess[str]:
    """`pack` or `collect` in a project."""
    command = [sys.executable, BENCHMARKS / "gpu_cells.py", *map(str, words)]
    return subprocess.run(command, cwd=project.root, env=environment(), capture_output=True, text=True)


def there(cells: Path, out: Path, *words: object) -> subprocess.Popen[str]:
    """`train` on the bare machine, in a folder that is no project."""
    arguments = ["train", "--cells", cells, "--out", out, "--device", "cpu", *words]
    command = [sys.executable, "-c", BARE, BENCHMARKS / "gpu_cells.py", *arguments]
    return subprocess.Popen(
        list(map(str, command)), cwd=cells, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def trained(cells: Path, out: Path, *words: object) -> str:
    process = there(cells, out, *words)
    said, error = process.communicate(timeout=500)
    assert process.returncode == 0, error
    return said


def prepared(folder: Path, seeds: str = "    seed: [0, 1]\n") -> Project:
    """A project whose data and partitions are made, and nothing else."""
    project = make_project(folder, {"specs/tiny.yaml": SPEC + seeds}, default=["tiny"])
    project.compile()
    partitions = [name for name in project.stages() if name.endswith(":partition")]
    done = project.repro(*partitions)
    assert done.code == 0, done.output
    return project


def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.matrix
def test_cells_are_those_of_an_ordinary_run_though_killed_and_continued(tmp_path: Path) -> None:
    project, cells = prepared(tmp_path / "a"), tmp_path / "cells"
    packed = here(project, "pack", "--spec", "tiny", "--out", cells)
    assert packed.returncode == 0 and packed.stdout.startswith("4 cells, "), packed.stderr
    # Killed as soon as there is a checkpoint, …
    process = there(cells, tmp_path / "first", "--every", 0)
    until(lambda: list((tmp_path / "first").glob("under-way-*/round-*")))
    process.kill()
    process.communicate()
    taken = here(project, "collect", "--cells", cells, "--from", tmp_path / "first")
    assert taken.returncode == 0 and "1 under way" in taken.stdout, taken.stderr
    at = [int(path.name.split("-")[1]) for path in cells.glob("under-way-*/round-*")]
    assert at and max(at) < ROUNDS
    # … then continued elsewhere, from what came back.
    said = trained(cells, tmp_path / "second")
    lines = [json.loads(line) for line in (tmp_path / "second/finished.jsonl").read_text().splitlines()]
    assert [line["resumed_from"] for line in lines] == [max(at), 0, 0, 0]
    assert said.count(f"| {ROUNDS} | ") == 4 and said.count("| done |") == 4
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["finished.jsonl"]
    taken = here(project, "collect", "--cells", cells, "--from", tmp_path / "second")
    assert taken.returncode == 0 and taken.stdout.startswith("4 runs taken, 0 under way"), taken.stderr
    assert "is still to be trained" in here(project, "pack", "--spec", "tiny", "--out", cells).stderr
    # The same spec in another project, by `pfl run`.
    other = prepared(tmp_path / "b")
    done = other.call("pfl", "run", PFL_DEVICE="cpu", PFL_WORKERS="1", PFL_THREADS="1")
    assert done.returncode == 0, done.stderr
    rounds = [sorted(one.root.glob("artifacts/runs/*/rounds.parquet")) for one in (project, other)]
    assert len(rounds[0]) == 4 and [path.read_bytes() for path in rounds[0]] == [
        path.read_bytes() for path in rounds[1]
    ]
    # DVC takes them for what they are, and they can be kept.
    kept = project.call("pfl", "results", "keep", "tiny")
    assert kept.returncode == 0, kept.stderr
    entries = [read_entry(path) for path in Ledger(project.root).paths()]
    assert len(entries) == 4 and all(entry.seconds and entry.seconds > 0 for entry in entries)


def stopped(cells: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in this process until a deadline that has come before the first round is over."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from cells.train import Session

    session = Session(cells, data=[], out=out, deadline=1000, every=0, device="cpu", quick=False)
    federation = session._federation

    def late(cell: Cell) -> FederatedData:
        session.ends = 0.0
        return federation(cell)

    monkeypatch.setattr(session, "_federation", late)
    session.run()
    ((row, state, rounds),) = [(row.cell, row.state, row.rounds) for row in session.rows]
    assert row.startswith("tiny: FedPer, ") and (state, rounds) == ("under way", 1)


@pytest.mark.matrix
def test_a_run_stops_before_the_deadline_and_what_other_code_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, cells = prepared(tmp_path / "a", seeds=""), tmp_path / "cells"
    assert "no cell 'Nobody'" in here(project, "pack", "--spec", "tiny", "--out", cells, "--cell", "Nobody").stderr
    packed = here(project, "pack", "--spec", "tiny", "--out", cells, "--cell", "FedPer")
    assert packed.stdout.startswith("1 cells, "), packed.stderr
    said = trained(cells, tmp_path / "quick", "--quick")
    assert "| 2 | " in said and "quick" in said and not (tmp_path / "quick/finished.jsonl").exists()
    # No time for a single checkpoint; then time for no more than the first.
    said = trained(cells, tmp_path / "out", "--every", 60, "--deadline", 59)
    assert not list((tmp_path / "out").iterdir()) and "FedPer" not in said
    stopped(cells, tmp_path / "out", monkeypatch)
    assert [path.name[:12] for path in (tmp_path / "out").glob("under-way-*/round-*")] == ["round-000001"]
    packing = json.loads((cells / "cells.json").read_text())
    packing["sources"]["pflcore.engine.loop"] = "0" * 64
    altered = tmp_path / "altered"
    altered.mkdir()
    (altered / "cells.json").write_text(json.dumps(packing))
    said = trained(altered, tmp_path / "none", "--data", cells)
    assert "pflcore.engine.loop is not the one that the cells were packed with" in said
    assert not (tmp_path / "none/finished.jsonl").exists()
    # Trained for what the workspace does not ask for any more.
    said = trained(cells, tmp_path / "out")
    (line,) = [json.loads(line) for line in (tmp_path / "out/finished.jsonl").read_text().splitlines()]
    assert line["resumed_from"] == 1 and "| done |" in said
    project.write("specs/tiny.yaml", SPEC.replace("lr: 0.1", "lr: 0.2"))
    refused = here(project, "collect", "--cells", cells, "--from", tmp_path / "out")
    assert refused.returncode == 2 and "so not taken; 0 others were" in refused.stderr
    # Trained by the engine of another results version.
    project.write("specs/tiny.yaml", SPEC)
    packing = json.loads((cells / "cells.json").read_text())
    packing["cells"][0]["code"]["stages/code/engine.txt"] = "results version 0-000000\n"
    (cells / "cells.json").write_text(json.dumps(packing))
    trained(cells, tmp_path / "older")
    refused = here(project, "collect", "--cells", cells, "--from", tmp_path / "older")
    assert refused.returncode == 2 and "so not taken; 0 others were" in refused.stderr
    assert not list(project.root.glob("artifacts/runs/*"))


def test_samples_and_partitions_travel_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from cells import folder

    monkeypatch.setattr(folder, "_PIECE", 7 * 12)  # seven images of twelve bytes
    rng = np.random.default_rng(0)
    samples = Samples(
        inputs=rng.integers(0, 256, (17, 3, 2, 2), np.uint8),
        labels=rng.integers(0, 3, 17),
        train=np.arange(17) < 11,
        name="some",
        class_names=("a", "b", "c"),
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.6, 0.7),
        source="drawn",
        size=4,
    )
    folder.write_samples(tmp_path / "one", "some", samples)
    assert len(list((tmp_path / "one/data").iterdir())) == 1 + 3
    (tmp_path / "two/data").mkdir(parents=True)
    (tmp_path / "one/data/some.001.npz").rename(tmp_path / "two/data/some.001.npz")
    again = folder.read_samples([tmp_path / "one", tmp_path / "two"], "some")
    for name in ("inputs", "labels", "train"):
        np.testing.assert_array_equal(getattr(again, name), getattr(samples, name))
    assert again.shape == (3, 4, 4) and (again.mean, again.std) == (samples.mean, samples.std)
    train, test, validation = (
        [np.array(own) for own in side] for side in ([[0, 5], [3]], [[12], [11, 16]], [[1], [2]])
    )
    noise = Noise((0.5, 2.0), True, 7)
    given = Assignment(train, test, "any", 4, True, (1,), noise, validation)
    folder.write_partition(tmp_path, "federation", given)
    found = folder.read_partition([tmp_path], "federation")
    assert (found.scheme, found.seed, found.own_split, found.novel, found.noise) == ("any", 4, True, (1,), noise)
    for side in ("train", "test", "validation"):
        assert [own.tolist() for own in getattr(found, side)] == [own.tolist() for own in getattr(given, side)]
