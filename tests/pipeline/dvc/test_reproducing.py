"""What ``dvc repro`` runs and what it does not; and what is damaged is made good by ``pfl run``."""

from functools import partial

import pytest
from support.damage import cut, flip
from support.mistakes import line_of
from support.project import make_project, results, spec, tree

from pipeline.compile.compiler import GUARD
from pipeline.dvc.program import in_cache
from pipeline.running.board import Board, status_path
from pipeline.running.options import RunOptions
from pipeline.running.runner import run_specs
from pipeline.stages import guard

MORE = "{FedAvg: fedavg, FedPer: fedper, FedProx: fedprox}"
STOPPED = "specs or code changed: 1 run and 1 code digest added, 1 report changed. Compiled; type `dvc repro`"


@pytest.fixture
def project(reproduced, monkeypatch):
    """A project that is up to date, in another place than where it was made."""
    reproduced.enter(monkeypatch, PFL_DEVICE="cpu")
    return reproduced


def test_edits_stop_the_guard_once_and_what_changes_nothing_does_not(tiny):
    stop = partial(line_of, guard.run, tiny.workspace())
    assert guard.run(tiny.workspace()) == "1 specs, 2 runs: stages are up to date"
    token, before = (tiny.root / GUARD).read_bytes(), tiny.generated()
    tiny.write("specs/tiny.yaml", "# A comment.\n\n" + spec().replace("clients: 3", "clients: 3   # three"))
    guard.run(tiny.workspace())
    assert tiny.generated() == before
    tiny.write("dvc.yaml", "stages: {}\n")  # by hand
    assert stop().startswith("specs or code changed: 1 stage file changed.") and tiny.generated() == before
    tiny.write("specs/tiny.yaml", spec(MORE))
    message = stop()
    assert message.startswith(STOPPED) and "\n" not in message
    assert guard.run(tiny.workspace()) == "1 specs, 3 runs: stages are up to date"
    assert (tiny.root / GUARD).read_bytes() == token  # so nothing that comes after it is out of date
    tiny.write("specs/tiny.yaml", spec("[fedpt]"))
    files = tree(tiny.root)
    assert stop().startswith("specs/tiny.yaml:11: grid.axes.method[0]: ") and tree(tiny.root) == files


# --- damage ---------------------------------------------------------------------------------------------------------


def add_a_remark(path):
    text = path.read_text(encoding="utf-8")
    path.unlink()
    path.write_text(f"{text}\nA remark.\n", encoding="utf-8")


def test_damage_of_all_kinds_is_mended_from_the_cache(project, capfd):
    mine, before = project.write("reports/tiny/report.aux", "LaTeX's leftovers"), results(project)
    for pattern, damage in {
        "artifacts/data/*.parquet": flip,
        "artifacts/tables/tiny/values.parquet": cut,
        "reports/tiny/report.md": add_a_remark,
        "reports/tiny/figures/curves.svg": lambda path: path.unlink(),
    }.items():
        (path,) = project.root.glob(pattern)
        damage(path)
    assert results(project) != before
    assert run_specs(project.workspace(), RunOptions(jobs=1)) == 0
    assert not Board.load(status_path(project.workspace())).of_state("done")
    assert results(project) == before and mine.read_text() == "LaTeX's leftovers"
    (kept,) = project.root.glob(".pfl/replaced/*/reports/tiny/report.md")  # a changed report is set aside
    assert kept.read_text(encoding="utf-8").endswith("A remark.\n")
    assert f"that version is kept as {kept.relative_to(project.root)}" in capfd.readouterr().err


def test_where_the_cache_is(tmp_path):
    project, object_of_a = make_project(tmp_path), "files/md5/0c/c175b9c0f1b6a831c399e269772661"
    project.write(f".dvc/cache/{object_of_a}", "a")
    assert in_cache(tmp_path, "a") and not in_cache(tmp_path, "b")
    project.write(".dvc/config", "[core]\n    remote = x\n[cache]\n    dir = ../other\n")
    assert not in_cache(tmp_path, "a")
    project.write(f"other/{object_of_a}", "a")
    assert in_cache(tmp_path, "a")
