"""Kept results in a real project: kept, cloned, listed, shown without training, and refused when they are not valid."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support.project import Project, spec
from support.report_demo import RECORD, write_run

from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import curve
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.graph import Stage
from pipeline.ledger import Entry, Ledger
from pipeline.results import keep as module
from pipeline.results.keep import Recorded, keep, time_of
from pipeline.results.listing import CURRENT, lines
from pipeline.spec.run import Run
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


@pytest.mark.matrix
def test_a_clone_shows_the_table_without_training(kept: Project, tmp_path: Path) -> None:
    clone = Project(tmp_path / "clone")  # what git would carry: specs and results
    for name in ("specs", "results", ".dvc"):
        shutil.copytree(kept.root / name, clone.root / name, ignore=shutil.ignore_patterns("cache", "tmp"))
    for name in ("pyproject.toml", ".dvcignore"):
        shutil.copy(kept.root / name, clone.root)
    done = pfl(clone, "run")
    assert done.returncode == 0, done.stderr
    assert not [stage for stage in clone.stages() if ":train@" in stage or ":data" in stage]
    # The table as it was, to the byte; but for the lines that say where its numbers come from.
    before, after = ((project.root / "reports/tiny/report.md").read_text("utf-8") for project in (kept, clone))
    said = f"kept results: 2 of 2 runs, {entries(kept)['fedavg'].obtained}"
    assert after.partition("\n## ")[0].replace(f"- {said}\n", "").strip() == before.partition("\n## ")[0].strip()
    for kind in ("html", "tex"):
        assert said in (clone.root / f"reports/tiny/report.{kind}").read_text("utf-8")
    rows = [(project.root / "reports/tiny/table.csv").read_text("utf-8").splitlines() for project in (kept, clone)]
    assert [row + entries(kept)["fedper"].obtained for row in rows[0][1:]] == rows[1][1:]
    again = clone.repro()
    assert again.code == 0 and again.ran == [], again.output


def test_what_is_not_up_to_date_is_not_kept(reproduced: Project) -> None:
    rounds = next(reproduced.root.glob("artifacts/runs/fedper-*/rounds.parquet"))
    rounds.chmod(0o644)
    rounds.write_bytes(rounds.read_bytes()[:-1] + b"x")
    kept = keep(reproduced.workspace(), "tiny")
    assert [run.partition("-")[0] for run in kept.runs] == ["fedavg"] and kept.left == {"are not up to date here": 1}
    reproduced.write("specs/tiny.yaml", spec(training=", momentum: 0.5"))  # asks for other runs
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
    assert states["fedper"].accuracy == f"{curve(entry.rounds())[1][-1]:.2f}"
    (path,) = Ledger(kept.root).files()
    path.write_text(path.read_text(encoding="utf-8").replace('"loss": [', '"loss": [9', 1), encoding="utf-8")
    with pytest.raises(UserError, match="edited by hand"):
        compile_workspace(kept.workspace())


@pytest.mark.matrix
def test_commands(reproduced: Project) -> None:
    done = pfl(reproduced, "results", "keep", "tiny")
    assert done.returncode == 0 and done.stdout.startswith("tiny: 2 runs kept in results/tiny.jsonl"), done.stderr
    assert "2 were before" in pfl(reproduced, "results", "keep", "tiny").stdout
    entry = entries(reproduced)["fedavg"]
    shown = pfl(reproduced, "results", "show", entry.run.id).stdout
    assert f"run: {entry.run.id}\n" in shown and "lr: 0.1\n" in shown and "accuracy %" in shown
    missing = pfl(reproduced, "results", "show", entry.run.id[:-1] + "x")
    assert missing.returncode == 2 and f"did you mean '{entry.run.id}'" in missing.stderr
    done = pfl(reproduced, "verify", "tiny", "--cells", "1")
    assert done.returncode == 0 and "1 of 1 runs verified" in done.stdout, done.stdout + done.stderr
    assert "the same, every count" in done.stdout
    forged = copy.deepcopy(entry)
    forged.measurements["test"]["correct"][-1][0] -= 1
    Ledger(reproduced.root).write("tiny", [forged], {})
    caught = pfl(reproduced, "verify", "tiny", "--cell", "FedAvg")
    assert caught.returncode == 1 and "DIFFERS, on the same kind of machine" in caught.stdout, caught.stderr
    dropped = pfl(reproduced, "results", "drop", "tiny")
    assert dropped.stdout.startswith("2 results dropped\n") and not Ledger(reproduced.root).files()
    # It had been trained here, and DVC remembers.
    again = reproduced.repro()
    assert again.code == 0 and not [stage for stage in again.ran if stage.startswith("train-")], again.output


class ByHand:
    """A compilation of a run whose lock files are written by hand: data → train, and a guard before both."""

    def __init__(self, root: Path, **record: Any) -> None:
        self.root, self.run = root, Run(RECORD | record)
        self.out = run_path(self.run.id, "rounds.parquet")
        guard = Stage("dvc.yaml", "guard", "pfl stage guard", (), ("guard.txt",))
        data = Stage("stages/data/dvc.yaml", "d", "pfl stage data", ("guard.txt", "in"), ("data.parquet",))
        train = Stage("stages/f/dvc.yaml", "t", "pfl stage train", ("data.parquet", "guard.txt"), (self.out, "b"))
        self.compilation: Any = SimpleNamespace(
            stages=[guard, data, train],
            runs={self.run.id: self.run},
            tables={"tiny": SimpleNamespace(runs=[self.run.id])},
            kept=set[str](),
            made_by={self.run.id: {"engine": "abc"}},
        )
        write_run(root, self.run.id, 80.0)
        self.lock("data", "d", "pfl stage data", {"in": "0", "guard.txt": "2"}, {"data.parquet": "1"})
        self.trained()

    def trained(self, command: str = "pfl stage train", **deps: str) -> None:
        made = hashlib.md5((self.root / self.out).read_bytes()).hexdigest()
        self.lock("f", "t", command, deps or {"data.parquet": "1"}, {self.out: made})

    def lock(self, folder: str, name: str, cmd: str, deps: dict[str, str], outs: dict[str, str]) -> None:
        """What DVC recorded of a stage when it last ran."""
        sides = {"deps": deps, "outs": outs}
        entry = {name: [{"path": path, "md5": md5} for path, md5 in own.items()] for name, own in sides.items()}
        write_text(self.root / f"stages/{folder}/dvc.lock", yaml.safe_dump({"stages": {name: {"cmd": cmd, **entry}}}))

    @property
    def current(self) -> bool:
        return Recorded(self.root, self.compilation).is_current(self.run)


def test_what_was_made_otherwise_or_is_not_there_is_not_current(tmp_path: Path) -> None:
    study = ByHand(tmp_path)
    assert study.current
    recorded = Recorded(tmp_path, study.compilation)
    assert not any(map(recorded.holds, ("b", "guard.txt", "data.parquet"))), "not recorded, or not there"
    for deps in ({"data.parquet": "3"}, {"other": "1"}):
        study.trained(**deps)
        assert not study.current
    study.trained("pfl stage train --seal 1")
    assert not study.current
    study.trained()
    path = tmp_path / study.out
    content = path.read_bytes()
    path.write_bytes(content + b"x")
    assert not study.current
    path.write_bytes(content)
    assert study.current
    study.lock("data", "d", "pfl stage data other", {"in": "0"}, {"data.parquet": "1"})
    assert not study.current, "what it was made of would be another now"


@pytest.mark.parametrize(
    "record", [{}, {"analyses": [{"name": "adaptation"}]}, {"training": {"rounds": 100, "save_weights": True}}]
)
def test_what_becomes_of_a_run(record: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, workspace = ByHand(tmp_path, **record), Workspace(tmp_path, tmp_path, "paper")
    monkeypatch.setattr(module, "compile_workspace", lambda workspace, specs: study.compilation)
    found, entry = keep(workspace, "tiny"), Ledger(tmp_path).get(study.run.id)
    left = {"have more to keep than accuracies (analyses, weights)": 1} if record else {}
    assert (found.runs, found.left, found.before) == ([] if record else [study.run.id], left, 0)
    assert (entry is None) == bool(record)
    if entry:
        assert entry.run == study.run and entry.made_by == {"engine": "abc"} and entry.seconds is None
        assert entry.facts["torch"] == "2.11.0" and entry.facts["macs"] == 3456789
        assert entry.measurements["test"]["total"] == [500] * 8 and entry.measurements["test"]["round"][0] == 10
    study.compilation.kept.add(study.run.id)
    assert keep(workspace, "tiny").before == 1


def test_the_time_of_a_run_that_was_resumed_is_that_of_all_its_rounds(tmp_path: Path) -> None:
    path = tmp_path / "timing.json"
    for more, seconds in (("", 30.9), (', "core_seconds": 8.0', 20.0)):  # of cores, whatever else the machine did
        write_text(path, f'{{"seconds": 12.34, "device": "cpu", "rounds": 40{more}}}')
        os.utime(path, (0, 86_400 * 365.25 * 50))
        assert time_of(path, 100) == ("2020-01-01", seconds)
    write_text(path, '{"seconds": 12.34, "device": "cpu", "rounds": 0}')
    assert time_of(path, 100)[1] is None and time_of(tmp_path / "none", 100)[1] is None
