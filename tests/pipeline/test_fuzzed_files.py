"""Damaged copies of what the pipeline reads: specs, published values, records, artifacts, kept results, locks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.fuzzing import fuzz
from support.project import Project, make_project, spec

from pflcore.artifacts import read_meta, read_table
from pipeline.dvc.program import read_lock
from pipeline.ledger import Ledger
from pipeline.papers.paper import read_contents
from pipeline.results.keep import keep
from pipeline.running.board import Board, StageState
from pipeline.spec.published import read_published
from pipeline.spec.table import read_resolved
from pipeline.timing import read_timing

FEW, MANY = 20, 3000
Reader = Callable[[Path], object]


def _sealed_lines(path: Path, content: bytes) -> tuple[Path, bytes]:
    """Kept results with the digests of what is in their lines, where that is JSON at all."""
    lines = []
    for line in content.splitlines():
        with suppress(ValueError, AttributeError, KeyError, RecursionError):
            kind, *_ = known = json.loads(line)
            head, _ = {kind: known.pop(kind)}, known.pop("digest")
            digest = hashlib.sha256(json.dumps(known, ensure_ascii=False).encode()).hexdigest()[:16]
            line = json.dumps({**head, "digest": digest, **known}, ensure_ascii=False).encode()
        lines.append(line)
    return path, b"\n".join(lines)


@pytest.fixture(params=[FEW, pytest.param(MANY, marks=pytest.mark.matrix)])
def copies(request: pytest.FixtureRequest) -> int:
    """How many damaged copies are read."""
    number: int = request.param
    return number


# What is read → the file of a reproduced project, and what reads it.
FILES: dict[str, tuple[str, Reader]] = {
    "resolved table": ("stages/tables/tiny.json", read_resolved),
    "lock": ("stages/federations/*/dvc.lock", read_lock),
    "rounds": ("artifacts/runs/*/rounds.parquet", lambda path: read_table(path, "rounds/2")),
    "facts of rounds": ("artifacts/runs/*/rounds.parquet", lambda path: read_meta(path, "rounds/2")),
    "frame": ("artifacts/tables/*/values.parquet", lambda path: read_table(path, "frame.values/1")),
    "timing": (".pfl/timings/*.json", read_timing),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_a_project(name: str, copies: int, original: Project, tmp_path: Path) -> None:
    pattern, reader = FILES[name]
    source = min(original.root.glob(pattern))
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes())
    refused = fuzz(path, reader, copies=copies, seed=1)
    assert refused > 0 or name == "timing"  # which nothing depends on


def test_kept_results(copies: int, reproduced: Project) -> None:
    assert len(keep(reproduced.workspace(), "tiny").runs) == 2

    def read(path: Path) -> None:
        for entry in Ledger(path.parent.parent).entries():
            entry.rounds()

    path = reproduced.root / "results/tiny.jsonl"
    assert fuzz(path, read, copies=copies, seed=2) > copies // 2
    assert fuzz(path, read, copies=copies, seed=3, seal=_sealed_lines) > 0


def test_the_state_of_a_run(copies: int, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    Board("tiny", entries={"train a": StageState("train a", "train", "a")}, path=path).save(now=True)
    assert Board.load(path)
    assert fuzz(path, Board.load, copies=copies, seed=10) > 0


PUBLISHED = 'method,share,mean,std,quoted,note\nFedAvg,0.5,61.25,0.3,,\n"Fed, Per",1,72.5,,yes,a note\n'
CONTENTS = "place,holds,specs,reason\nTable I,all,tiny,\nFigure 2,a curve,,not here\n"


def test_published_values(copies: int, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(PUBLISHED)
    refused = fuzz(path, lambda path: read_published(path, "table.csv", ["method", "share"]), copies=2 * copies, seed=6)
    assert refused > copies // 2


def test_contents_of_a_paper(copies: int, tmp_path: Path) -> None:
    path = tmp_path / "paper/contents.csv"
    path.parent.mkdir()
    path.write_text(CONTENTS)
    assert fuzz(path, lambda path: read_contents(path.parent.parent, "paper", ["tiny"]), copies=copies, seed=7) > 0


SPEC = spec("{FedAvg: fedavg, FedPer: {name: fedper, averaging: samples}}").replace(
    "table:", "claims: [{text: a, better: {method: FedPer}, than: others}]\ntable:"
)


def test_specs(copies: int, tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": SPEC}, default=["tiny"])
    assert fuzz(project.root / "specs/tiny.yaml", lambda _: project.compiled(), copies=copies, seed=8) > copies // 2


def test_settings_of_the_project(copies: int, tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": SPEC}, default=["tiny"])
    assert fuzz(project.root / "pyproject.toml", lambda _: project.compiled(), copies=copies, seed=9) > 0
