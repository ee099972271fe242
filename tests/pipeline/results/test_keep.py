"""Kept results in a real project: kept, cloned, listed, shown without training, and refused when they are not valid."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support.project import Project, spec, tree
from support.report_demo import RECORD, write_run

from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import curve
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.graph import Stage
from pipeline.ledger import Entry, Ledger
from pipeline.results import keep as module
from pipeline.results.keep import Recorded, keep
from pipeline.results.listing import CURRENT, lines
from pipeline.running.options import RunOptions
from pipeline.running.runner import run_specs
from pipeline.spec.run import Run
from pipeline.timing import read_timing
from pipeline.workspace import Workspace, run_path


def pfl(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.call("pfl", *arguments, PFL_DEVICE="cpu")


def entries(project: Project) -> dict[str, Entry]:
    """By the name of the method."""
    return {entry.run.method: entry for entry in Ledger(project.root).entries()}


@pytest.fixture
def kept(reproduced: Project) -> Project:
    assert len(keep(reproduced.workspace(), "tiny").runs) == 2
    return reproduced


def clone(project: Project, folder: Path) -> Project:
    """What git would carry: specs and results."""
    for name in ("specs", "results", ".dvc"):
        shutil.copytree(project.root / name, folder / name, ignore=shutil.ignore_patterns("cache", "tmp"))
    for name in ("pyproject.toml", ".dvcignore"):
        shutil.copy(project.root / name, folder)
    return Project(folder)


def test_a_clone_shows_the_table_without_training(kept: Project, tmp_path: Path) -> None:
    copy = clone(kept, tmp_path / "clone")
    done = pfl(copy, "run")
    assert done.returncode == 0, done.stderr
    assert not [stage for stage in copy.stages() if ":train@" in stage or ":data" in stage]
    # The table as it was, to the byte; but for the lines that say where its numbers come from.
    before, after = ((project.root / "reports/tiny/report.md").read_text("utf-8") for project in (kept, copy))
    table = before.partition("\n## ")[0].strip()
    told = f"kept results: 2 of 2 runs, {entries(kept)['fedavg'].obtained}"
    assert after.partition("\n## ")[0].replace(f"- {told}\n", "").strip() == table
    for kind in ("html", "tex"):
        assert told in (copy.root / f"reports/tiny/report.{kind}").read_text("utf-8")
    rows = [(project.root / "reports/tiny/table.csv").read_text("utf-8").splitlines() for project in (kept, copy)]
    day = entries(kept)["fedper"].obtained
    assert [row + day for row in rows[0][1:]] == rows[1][1:]
    assert "kept since" in after.partition("## Provenance")[2]
    # DVC sees nothing to do, and what was kept has not been touched.
    again = copy.repro()
    assert again.code == 0 and again.ran == [], again.output


def test_what_is_not_up_to_date_is_not_kept(reproduced: Project) -> None:
    rounds = next(reproduced.root.glob("artifacts/runs/fedper-*/rounds.parquet"))
    rounds.chmod(0o644)
    rounds.write_bytes(rounds.read_bytes()[:-1] + b"x")
    reproduced.write("specs/later.yaml", spec("[ditto]"))
    kept = keep(reproduced.workspace(), "tiny")
    assert [run.partition("-")[0] for run in kept.runs] == ["fedavg"] and kept.left == {"are not up to date here": 1}
    assert keep(reproduced.workspace(), "later").left == {"are not up to date here": 1}
    # An edited spec asks for other runs.
    reproduced.write("specs/tiny.yaml", spec(training=", momentum: 0.5"))
    assert not keep(reproduced.workspace(), "tiny").runs


def test_other_settings_and_other_code_are_not_shown(kept: Project) -> None:
    first = compile_workspace(kept.workspace())
    assert first.kept == set(first.runs)
    kept.write("specs/tiny.yaml", spec("{FedAvg: fedavg}", training=", momentum: 0.5"))
    assert not compile_workspace(kept.workspace()).kept
    kept.write("specs/tiny.yaml", spec())
    entry = entries(kept)["fedper"]
    Ledger(kept.root).write("tiny", [replace(entry, made_by={**entry.made_by, "method.fedper": "0"})], {})
    compilation = compile_workspace(kept.workspace())
    assert [run.partition("-")[0] for run in compilation.kept] == ["fedavg"]
    kinds = sorted(stage.kind for stage in compilation.stages if stage.kind in ("evaluate", "recall", "train"))
    assert kinds == ["evaluate", "recall", "train"]
    plain = compile_workspace(kept.workspace(), ledger=False)
    states = {line.run.partition("-")[0]: line for line in lines(Ledger(kept.root), plain)}
    assert states["fedavg"].state == CURRENT
    assert states["fedper"].state == "made by other versions: method.fedper (0 → 1)"
    _, accuracy, _ = curve(entry.rounds())
    assert states["fedper"].accuracy == f"{accuracy[-1]:.2f}"


def test_a_tampered_digit(kept: Project) -> None:
    (path,) = Ledger(kept.root).files()
    path.write_text(path.read_text(encoding="utf-8").replace('"loss": [', '"loss": [9', 1), encoding="utf-8")
    before = tree(kept.root / "stages")
    for refused in (lambda: show_all(kept), lambda: run_specs(kept.workspace(), RunOptions())):
        with pytest.raises(UserError, match="edited by hand"):
            refused()
    assert tree(kept.root / "stages") == before


def show_all(project: Project) -> None:
    list(lines(Ledger(project.root), compile_workspace(project.workspace(), ledger=False)))


@pytest.mark.matrix
def test_commands(reproduced: Project) -> None:
    done = pfl(reproduced, "results", "keep", "tiny")
    assert done.returncode == 0 and done.stdout.startswith("tiny: 2 runs kept in results/tiny.jsonl"), done.stderr
    assert "2 were before" in pfl(reproduced, "results", "keep", "tiny").stdout
    run = entries(reproduced)["fedavg"].run.id
    shown = pfl(reproduced, "results", "show", run).stdout
    assert f"run: {run}\n" in shown and "lr: 0.1\n" in shown and "accuracy %" in shown
    missing = pfl(reproduced, "results", "show", run[:-1] + "x")
    assert missing.returncode == 2 and f"did you mean '{run}'" in missing.stderr
    assert reproduced.repro().code == 0
    dropped = pfl(reproduced, "results", "drop", "tiny")
    assert dropped.stdout.startswith("2 results dropped\n") and not Ledger(reproduced.root).files()
    # It had been trained here, and DVC remembers.
    again = reproduced.repro()
    assert again.code == 0 and not [stage for stage in again.ran if stage.startswith("train-")], again.output


@pytest.mark.matrix
def test_verify(kept: Project) -> None:
    done = pfl(kept, "verify", "tiny", "--cells", "1")
    assert done.returncode == 0 and "1 of 1 runs verified" in done.stdout, done.stdout + done.stderr
    assert "the same, every count" in done.stdout
    entry = entries(kept)["fedavg"]
    forged = copy.deepcopy(entry)
    forged.measurements["test"]["correct"][-1][0] -= 1
    Ledger(kept.root).write("tiny", [forged], {})
    caught = pfl(kept, "verify", "tiny", "--cell", "FedAvg")
    assert caught.returncode == 1 and "DIFFERS, on the same kind of machine" in caught.stdout, caught.stderr
    unknown = pfl(kept, "verify", "tiny", "--cell", "FedAv")
    assert unknown.returncode == 2 and "did you mean 'FedAvg'" in unknown.stderr


@pytest.mark.matrix
def test_results_on_other_data_are_not_mixed_in_silence(kept: Project, tmp_path: Path) -> None:
    entry = entries(kept)["fedper"]
    facts = {**entry.facts, "dataset_hash": "0" * 64}
    Ledger(kept.root).write("tiny", [replace(entry, facts=facts)], {})
    cloned = clone(kept, tmp_path / "clone")
    assert pfl(cloned, "run").returncode == 0
    report = (cloned.root / "reports/tiny/report.md").read_text("utf-8")
    assert (
        f"NOT COMPARABLE: not all runs had the same data of {entry.run.data_id.replace('_', chr(92) + '_')}" in report
    )


def rounds_of(root: Path, run: str) -> Path:
    return root / run_path(run, "rounds.parquet")


@dataclass
class ByHand:
    """A compilation of a run whose lock files are written by hand: data → train, and a guard before both."""

    root: Path
    record: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run = Run(RECORD | self.record)
        self.out = run_path(self.run.id, "rounds.parquet")
        guard = Stage("dvc.yaml", "guard", "pfl stage guard", (), ("guard.txt",))
        data = Stage("stages/data/dvc.yaml", "d", "pfl stage data d", ("guard.txt", "in"), ("data.parquet",))
        train = Stage("stages/f/dvc.yaml", "t", "pfl stage train t", ("data.parquet", "guard.txt"), (self.out, "b"))
        self.compilation: Any = SimpleNamespace(
            stages=[guard, data, train],
            runs={self.run.id: self.run},
            tables={"tiny": SimpleNamespace(runs=[self.run.id])},
            kept=set[str](),
            made_by={self.run.id: {"engine": "abc"}},
        )
        write_run(self.root, self.run.id, 80.0)
        self.hashes = {"data.parquet": "1" * 32, self.out: hashlib.md5(rounds_of(self.root, self.run.id).read_bytes())}
        self.lock("stages/data", "d", "pfl stage data d", {"in": "0" * 32, "guard.txt": "2" * 32}, ["data.parquet"])
        self.lock("stages/f", "t", "pfl stage train t", {"data.parquet": "1" * 32}, [self.out])

    def lock(self, folder: str, name: str, cmd: str, deps: dict[str, str], outs: list[str]) -> None:
        """What DVC recorded of a stage when it last ran."""
        found = {out: self.hashes[out] for out in outs}
        known = {out: one if isinstance(one, str) else one.hexdigest() for out, one in found.items()}
        entry = {
            "cmd": cmd,
            "deps": [{"path": path, "md5": md5} for path, md5 in deps.items()],
            "outs": [{"path": path, "md5": md5} for path, md5 in known.items()],
        }
        write_text(self.root / folder / "dvc.lock", yaml.safe_dump({"stages": {name: entry}}))

    @property
    def current(self) -> bool:
        return Recorded(self.root, self.compilation).is_current(self.run)


def test_what_was_made_otherwise_or_is_not_there_is_not_current(tmp_path: Path) -> None:
    study = ByHand(tmp_path)
    assert study.current
    recorded = Recorded(tmp_path, study.compilation)
    assert not any(map(recorded.holds, ("b", "guard.txt", "data.parquet"))), "not recorded, or not there"
    train = ("stages/f", "t", "pfl stage train t")
    for deps in ({"data.parquet": "3" * 32}, {"other": "1" * 32}, {}):
        study.lock(*train, deps, [study.out])
        assert not study.current
    study.lock("stages/f", "t", "pfl stage train t --seal 1", {"data.parquet": "1" * 32}, [study.out])
    assert not study.current
    study.lock(*train, {"data.parquet": "1" * 32}, [study.out])
    assert study.current
    path = tmp_path / study.out
    content = path.read_bytes()
    path.write_bytes(content + b"x")
    assert not study.current
    path.unlink()
    assert not study.current
    path.write_bytes(content)
    study.lock("stages/data", "d", "pfl stage data other", {"in": "0" * 32}, ["data.parquet"])
    assert not study.current, "what it was made of would be another now"
    (tmp_path / "stages/data/dvc.lock").unlink()
    assert not study.current


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, ""),
        ({"analyses": [{"name": "adaptation"}]}, "have more to keep than accuracies (analyses, weights)"),
        ({"training": {"rounds": 100, "save_weights": True}}, "have more to keep than accuracies (analyses, weights)"),
    ],
)
def test_what_becomes_of_a_run(
    record: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = ByHand(tmp_path, record)
    monkeypatch.setattr(module, "compile_workspace", lambda workspace, specs: study.compilation)
    workspace = Workspace(tmp_path, tmp_path, "paper")
    found = keep(workspace, "tiny")
    entry = Ledger(tmp_path).get(study.run.id)
    assert (found.runs, found.left) == (([], {reason: 1}) if reason else ([study.run.id], {}))
    assert (entry is None) == bool(reason) and found.before == 0
    if entry:
        assert entry.run == study.run and entry.made_by == {"engine": "abc"} and entry.seconds is None
        assert entry.facts["torch"] == "2.11.0" and entry.facts["macs"] == 3456789
        assert entry.measurements["test"]["total"] == [500] * 8 and entry.measurements["test"]["round"][0] == 10
    study.compilation.kept.add(study.run.id)
    again = keep(workspace, "tiny")
    assert (again.runs, again.before, again.left) == ([], 1, {})


def test_the_time_of_a_run_that_was_resumed_is_that_of_all_its_rounds(tmp_path: Path) -> None:
    path = tmp_path / "timing.json"
    for more, seconds in (("", 30.9), (', "core_seconds": 8.0', 20.0)):  # of cores, whatever else the machine did
        write_text(path, f'{{"seconds": 12.34, "device": "cpu", "rounds": 40{more}}}')
        os.utime(path, (0, 86_400 * 365.25 * 50))
        assert module._time(path, read_timing(path), 100) == ("2020-01-01", seconds)
    write_text(path, '{"seconds": 12.34, "device": "cpu", "rounds": 0}')
    assert [module._time(one, read_timing(one), 100)[1] for one in (path, tmp_path / "none")] == [None, None]
