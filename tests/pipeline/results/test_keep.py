"""Kept results in a real project: kept, cloned, listed, shown without training, and refused when they are not valid."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.project import Project, spec, tree

from pipeline.compile.compiler import compile_workspace
from pipeline.ledger.entry import Entry, read_entry
from pipeline.ledger.ledger import Ledger
from pipeline.results.keep import keep
from pipeline.results.listing import CURRENT, final_accuracy, lines


def pfl(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.call("pfl", *arguments, PFL_DEVICE="cpu")


def entries(project: Project) -> dict[str, Entry]:
    """By the name of the method."""
    return {entry.run.method: entry for entry in map(read_entry, Ledger(project.root).paths())}


@pytest.fixture
def kept(reproduced: Project) -> Project:
    assert len(keep(reproduced.workspace(), ["tiny"]).paths) == 2
    return reproduced


def clone(project: Project, folder: Path) -> Project:
    """What git would carry: specs and results."""
    for name in ("specs", "results", ".dvc", "pyproject.toml"):
        place = project.root / name
        ignored = shutil.ignore_patterns("cache", "tmp")
        (shutil.copytree if place.is_dir() else shutil.copy)(
            place, _made(folder) / name, **({"ignore": ignored} if place.is_dir() else {})
        )
    shutil.copy(project.root / ".dvcignore", folder)
    return Project(folder)


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def test_a_clone_shows_the_table_without_training(kept: Project, tmp_path: Path) -> None:
    copy = clone(kept, tmp_path / "clone")
    done = pfl(copy, "run")
    assert done.returncode == 0, done.stderr
    assert not [stage for stage in copy.stages() if ":train-" in stage or ":data" in stage]
    # The table as it was, to the byte; but for the lines that say where its numbers come from.
    before, after = ((project.root / "reports/tiny/report.md").read_text("utf-8") for project in (kept, copy))
    table = before.partition("\n## ")[0].strip()
    told = f"Kept results (see Provenance): 2 of 2 runs, obtained on {entries(kept)['fedavg'].obtained}."
    assert after.partition("\n## ")[0].replace(f" {told}", "").strip() == table
    for kind in ("html", "tex"):
        assert "2 of 2 runs, obtained" in (copy.root / f"reports/tiny/report.{kind}").read_text("utf-8")
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
    kept = keep(reproduced.workspace(), ["tiny", "later"])
    assert [path.stem.partition("-")[0] for path in kept.paths] == ["fedavg"]
    assert kept.left == {"are not up to date here": 2}
    # An edited spec asks for other runs.
    reproduced.write("specs/tiny.yaml", spec(training=", momentum: 0.5"))
    assert not keep(reproduced.workspace(), ["tiny"]).paths


def test_other_settings_and_other_code_are_not_shown(kept: Project) -> None:
    first = compile_workspace(kept.workspace())
    assert first.kept == set(first.runs)
    kept.write("specs/tiny.yaml", spec("{FedAvg: fedavg}", training=", momentum: 0.5"))
    assert not compile_workspace(kept.workspace()).kept
    kept.write("specs/tiny.yaml", spec())
    entry = entries(kept)["fedper"]
    made_by = {**entry.made_by, "method.fedper": "0" * 12}
    Entry(entry.run, made_by, entry.obtained, None, entry.facts, entry.measurements).write(
        Ledger(kept.root).path(entry.run)
    )
    compilation = compile_workspace(kept.workspace())
    assert [run.partition("-")[0] for run in compilation.kept] == ["fedavg"]
    assert sorted(stage.kind for stage in compilation.stages if stage.run) == [
        "evaluate",
        "evaluate",
        "recall",
        "train",
    ]
    plain = compile_workspace(kept.workspace(), ledger=False)
    states = {line.run.partition("-")[0]: line for line in lines(Ledger(kept.root), plain)}
    assert states["fedavg"].state == CURRENT and states["fedper"].state == "made by other code: method.fedper"
    assert states["fedper"].accuracy == final_accuracy(entry) != ""


def test_a_tampered_digit(kept: Project) -> None:
    path = Ledger(kept.root).path(entries(kept)["fedper"].run)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("accuracy ", "accuracy 9", 1), encoding="utf-8")
    listed = pfl(kept, "results", "list")
    assert listed.returncode == 0 and "edited by hand, or cut" in listed.stdout
    assert "2 kept results, 1 of them current" in listed.stdout
    before = tree(kept.root / "stages")
    refused = pfl(kept, "run")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and "edited by hand" in refused.stderr
    assert tree(kept.root / "stages") == before


def test_commands(reproduced: Project) -> None:
    done = pfl(reproduced, "results", "keep", "tiny")
    assert done.returncode == 0 and done.stdout.startswith("2 runs kept in "), done.stderr
    assert "2 were before" in pfl(reproduced, "results", "keep", "tiny").stdout
    run = entries(reproduced)["fedavg"].run.id
    shown = pfl(reproduced, "results", "show", run).stdout
    assert f"run: {run}\n" in shown and "lr: 0.1\n" in shown and "accuracy %" in shown
    missing = pfl(reproduced, "results", "show", run[:-1] + "x")
    assert missing.returncode == 2 and f"did you mean '{run}'" in missing.stderr
    assert reproduced.repro().code == 0
    dropped = pfl(reproduced, "results", "drop", "tiny")
    assert dropped.stdout.startswith("2 runs dropped\n") and not (reproduced.root / "results").exists()
    # It had been trained here, and DVC remembers.
    again = reproduced.repro()
    assert again.code == 0 and not [stage for stage in again.ran if stage.startswith("train-")], again.output


@pytest.mark.matrix
def test_verify(kept: Project) -> None:
    done = pfl(kept, "verify", "tiny", "--cells", "1")
    assert done.returncode == 0 and "1 of 1 runs verified" in done.stdout, done.stdout + done.stderr
    assert "the same, every count" in done.stdout
    entry = entries(kept)["fedavg"]
    head, _, numbers = entry.measurements.rpartition(": ")
    first, _, others = numbers.partition(" ")
    forged = Entry(entry.run, entry.made_by, entry.obtained, None, entry.facts, f"{head}: {int(first) - 1} {others}")
    forged.write(Ledger(kept.root).path(entry.run))
    caught = pfl(kept, "verify", "tiny", "--cell", "FedAvg")
    assert caught.returncode == 1 and "DIFFERS, on the same kind of machine" in caught.stdout, caught.stderr
    unknown = pfl(kept, "verify", "tiny", "--cell", "FedAv")
    assert unknown.returncode == 2 and "did you mean 'FedAvg'" in unknown.stderr


def test_results_on_other_data_are_not_mixed_in_silence(kept: Project, tmp_path: Path) -> None:
    entry = entries(kept)["fedper"]
    facts = {**entry.facts, "dataset_hash": "0" * 64}
    Entry(entry.run, entry.made_by, entry.obtained, None, facts, entry.measurements).write(
        Ledger(kept.root).path(entry.run)
    )
    copy = clone(kept, tmp_path / "clone")
    assert pfl(copy, "run").returncode == 0
    report = (copy.root / "reports/tiny/report.md").read_text("utf-8")
    assert (
        f"NOT COMPARABLE: not all runs had the same data of {entry.run.data_id.replace('_', chr(92) + '_')}" in report
    )
