"""Kept results in a real project: kept, cloned, listed, shown without training, and refused when they are not valid."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support.project import Project, spec

from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import curve
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Entry, Ledger
from pipeline.results.keep import CURRENT, Recorded, keep, lines, time_of
from pipeline.workspace import run_path


def pfl(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.call("pfl", *arguments, PFL_DEVICE="cpu")


def entries(project: Project) -> dict[str, Entry]:
    """By the name of the method."""
    return {entry.run.method: entry for entry in Ledger(project.root).entries()}


@pytest.mark.matrix
def test_a_clone_shows_the_table_without_training_and_verifies_it(reproduced: Project, tmp_path: Path) -> None:
    done = pfl(reproduced, "results", "keep", "tiny")
    assert done.returncode == 0 and done.stdout.startswith("tiny: 2 runs kept in results/tiny.jsonl"), done.stderr
    assert "2 were before" in pfl(reproduced, "results", "keep", "tiny").stdout
    clone = Project(tmp_path / "clone")  # what git would carry: specs and results
    for name in ("specs", "results", ".dvc"):
        shutil.copytree(reproduced.root / name, clone.root / name, ignore=shutil.ignore_patterns("cache", "tmp"))
    for name in ("pyproject.toml", ".dvcignore"):
        shutil.copy(reproduced.root / name, clone.root)
    done = pfl(clone, "run")
    assert done.returncode == 0, done.stderr
    assert not [stage for stage in clone.stages() if ":train@" in stage or ":data" in stage]
    # The table as it was, to the byte; but for the lines that say where its numbers come from.
    pages = [(project.root / "reports/tiny/report.md").read_text("utf-8") for project in (reproduced, clone)]
    entry = entries(reproduced)["fedavg"]
    said = f"kept results: 2 of 2 runs, on {entry.obtained}"
    before, after = (page.partition("\n## ")[0].replace(f"- {said}\n", "").strip() for page in pages)
    assert after == before and said in pages[1]
    tables = [(project.root / "reports/tiny/table.csv").read_text("utf-8") for project in (reproduced, clone)]
    rows, shown = (table.splitlines()[1:] for table in tables)
    assert [row + entry.obtained for row in rows] == shown
    # What the commands say of it.
    curve_of_it = pfl(reproduced, "results", "show", entry.run.id).stdout
    assert f"run: {entry.run.id}\n" in curve_of_it and "lr: 0.1\n" in curve_of_it and "accuracy %" in curve_of_it
    missing = pfl(reproduced, "results", "show", entry.run.id[:-1] + "x")
    assert missing.returncode == 2 and f"did you mean '{entry.run.id}'" in missing.stderr
    done = pfl(reproduced, "verify", "tiny", "--cells", "1")
    assert done.returncode == 0 and "the same, every count" in done.stdout, done.stdout + done.stderr
    forged = copy.deepcopy(entry)
    forged.measurements["test"]["correct"][-1][0] -= 1
    Ledger(reproduced.root).write("tiny", [forged], {})
    caught = pfl(reproduced, "verify", "tiny", "--cell", "FedAvg")
    assert caught.returncode == 1 and "DIFFERS, on the same kind of machine" in caught.stdout, caught.stderr
    assert pfl(reproduced, "results", "drop", "tiny").stdout.startswith("2 results dropped\n")
    # It had been trained here, and DVC remembers.
    again = reproduced.repro()
    assert again.code == 0 and not [stage for stage in again.ran if stage.startswith("train-")], again.output


def test_what_was_made_otherwise_or_is_not_there_is_not_kept(reproduced: Project) -> None:
    workspace = reproduced.workspace()
    compilation = compile_workspace(workspace, ["tiny"])
    (lock,) = reproduced.root.glob("stages/federations/*/dvc.lock")
    text = lock.read_text(encoding="utf-8")
    runs = {run.method: run for run in compilation.runs.values()}
    rounds = workspace.root / run_path(runs["fedper"].id, "rounds.parquet")

    def current() -> list[str]:
        found = Recorded(workspace.root, compilation)
        return [name for name, run in sorted(runs.items()) if found.is_current(run)]

    assert current() == ["fedavg", "fedper"]
    document = yaml.safe_load(text)
    train = next(stage for name, stage in document["stages"].items() if "fedper" in name)
    partition = next(dep for dep in train["deps"] if dep["path"].startswith("artifacts/partitions/"))
    for part, name, value in ((train, "cmd", f"{train['cmd']} --seal 1"), (partition, "md5", "0" * 32)):
        before, part[name] = part[name], value
        lock.write_text(yaml.safe_dump(document), encoding="utf-8")
        assert current() == ["fedavg"], name
        part[name] = before
    lock.write_text(text, encoding="utf-8")
    rounds.chmod(0o644)
    rounds.write_bytes(rounds.read_bytes()[:-1] + b"x")
    kept = keep(workspace, "tiny")
    assert kept.runs == [runs["fedavg"].id] and kept.left == {"are not up to date here": 1}
    assert keep(workspace, "tiny").before == 1
    reproduced.write("specs/weights.yaml", spec(training=", save_weights: true"))
    assert keep(workspace, "weights").left == {"have more to keep than accuracies (analyses, weights)": 2}


def test_other_settings_and_other_code_are_not_shown(reproduced: Project) -> None:
    assert len(keep(reproduced.workspace(), "tiny").runs) == 2
    first = compile_workspace(reproduced.workspace())
    assert first.kept == set(first.runs)
    reproduced.write("specs/tiny.yaml", spec("{FedAvg: fedavg}", training=", momentum: 0.5"))
    assert not compile_workspace(reproduced.workspace()).kept
    reproduced.write("specs/tiny.yaml", spec())
    entry = entries(reproduced)["fedper"]
    Ledger(reproduced.root).write("tiny", [replace(entry, made_by={**entry.made_by, "method.fedper": "0"})], {})
    compilation = compile_workspace(reproduced.workspace())
    assert [run.partition("-")[0] for run in compilation.kept] == ["fedavg"]
    kinds = sorted(stage.kind for stage in compilation.stages if stage.kind in ("evaluate", "recall", "train"))
    assert kinds == ["evaluate", "recall", "train"]
    plain = compile_workspace(reproduced.workspace(), ledger=False)
    states = {line.run.partition("-")[0]: line for line in lines(Ledger(reproduced.root), plain)}
    assert states["fedavg"].state == CURRENT
    assert states["fedper"].state == "made by other versions: method.fedper (0 → 1)"
    assert states["fedper"].accuracy == f"{curve(entry.rounds())[1][-1]:.2f}"
    (path,) = Ledger(reproduced.root).files()
    path.write_text(path.read_text(encoding="utf-8").replace('"loss": [', '"loss": [9', 1), encoding="utf-8")
    with pytest.raises(UserError, match="edited by hand"):
        compile_workspace(reproduced.workspace())


def test_the_time_of_a_run_that_was_resumed_is_that_of_all_its_rounds(tmp_path: Path) -> None:
    path = tmp_path / "timing.json"
    for more, seconds in (("", 30.9), (', "core_seconds": 8.0', 20.0)):  # of cores, whatever else the machine did
        write_text(path, f'{{"seconds": 12.34, "device": "cpu", "rounds": 40{more}}}')
        os.utime(path, (0, 86_400 * 365.25 * 50))
        assert time_of(path, 100) == ("2020-01-01", seconds)
    assert time_of(tmp_path / "none", 100)[1] is None
