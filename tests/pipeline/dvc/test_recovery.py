"""What is damaged, lost or in the way is made good, by ``pfl run`` and ``dvc repro`` alike, without a question."""

import re
import shutil

import pytest
from support.damage import cut, flip
from support.project import make_project, results

from pipeline.dvc.program import in_cache
from pipeline.running.board import Board, status_path
from pipeline.running.options import RunOptions
from pipeline.running.runner import run_specs


@pytest.fixture
def project(reproduced, monkeypatch):
    """A project that is up to date."""
    for name, value in reproduced.environment(PFL_DEVICE="cpu").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(reproduced.root)
    return reproduced


def heal(project, program):
    """Call a program, which must be content in the end; return the kinds of stages that it executed."""
    if program == "dvc":
        done = project.repro()
        assert done.code == 0, done.output
        return {re.split("[-@]", name)[0] for name in done.ran}
    assert run_specs(project.workspace(), RunOptions(jobs=1)) == 0
    return {entry.kind for entry in Board.load(status_path(project.workspace())).of_state("done")}


def add_a_remark(path):
    text = path.read_text(encoding="utf-8")
    path.unlink()
    path.write_text(f"{text}\nA remark.\n", encoding="utf-8")


DAMAGE = {
    "artifacts/data/*.parquet": flip,
    "artifacts/runs/fedper-*/rounds.parquet": flip,
    "artifacts/tables/tiny/values.parquet": cut,
    "reports/tiny/report.md": add_a_remark,
    "reports/tiny/figures/curves.svg": lambda path: path.unlink(),
}


@pytest.mark.parametrize("program", [pytest.param("dvc", marks=pytest.mark.matrix), "pfl"])
def test_damage_of_all_kinds_is_mended_from_the_cache(project, program, capfd):
    mine, before = project.write("reports/tiny/report.aux", "LaTeX's leftovers"), results(project)
    for pattern, damage in DAMAGE.items():
        (path,) = project.root.glob(pattern)
        damage(path)
    assert results(project) != before
    assert heal(project, program) == set()
    assert results(project) == before and mine.read_text() == "LaTeX's leftovers"
    if program == "pfl":  # which sets a changed report aside
        (kept,) = project.root.glob(".pfl/replaced/*/reports/tiny/report.md")
        assert kept.read_text(encoding="utf-8").endswith("A remark.\n")
        assert f"that version is kept as {kept.relative_to(project.root)}" in capfd.readouterr().err


@pytest.mark.matrix
@pytest.mark.parametrize("program", ["dvc", "pfl"])
def test_a_lost_cache_is_filled_again(project, program):
    before = results(project)
    shutil.rmtree(project.root / ".dvc/cache")
    (rounds,) = project.root.glob("artifacts/runs/fedper-*/rounds.parquet")
    flip(rounds)  # which nothing can bring back
    # To DVC, what depends on the flipped file is as it was recorded only when the file is, which is after the guard.
    assert heal(project, program) == ({"guard", "train", "evaluate"} if program == "dvc" else {"train"})
    assert results(project) == before and "up to date" in project.call("dvc", "status").stdout
    shutil.rmtree(project.root / "artifacts")  # and what is lost now comes from there
    assert heal(project, program) == set() and results(project) == before


def test_where_the_cache_is(tmp_path):
    project, object_of_a = make_project(tmp_path), "files/md5/0c/c175b9c0f1b6a831c399e269772661"
    project.write(f".dvc/cache/{object_of_a}", "a")
    assert in_cache(tmp_path, "a") and not in_cache(tmp_path, "b")
    project.write(".dvc/config", "[core]\n    remote = x\n[cache]\n    dir = ../other\n")
    assert not in_cache(tmp_path, "a")
    project.write(f"other/{object_of_a}", "a")
    assert in_cache(tmp_path, "a")
