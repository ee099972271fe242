"""Kept results of earlier code are taken back where the present code gives the same data and choices."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.project import Project, make_project, spec

from pflcore.errors import UserError
from pipeline.ledger.entry import Entry, read_entry
from pipeline.ledger.ledger import Ledger
from pipeline.results.keep import Recorded, keep
from pipeline.results.renew import Renewed, renew

SPECS = {
    "specs/plain.yaml": spec("{FedAvg: fedavg, FedPer: fedper}", partition="dirichlet"),
    "specs/tuned.yaml": spec("{FedAvg: fedavg}", partition="{name: iid, validation_share: 0.2}")
    + "tune: {space: {training.lr: [0.001, 0.2]}, seeds: [7]}\n",
}
OLD = "0" * 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of which all runs are kept: two plain ones, two trials, and one that is tuned by these."""
    project = make_project(tmp_path_factory.mktemp("renew"), SPECS, default=["plain", "tuned"])
    project.compile()
    project.execute(project.compiled())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorded, "is_current", lambda *_: True)
        assert len(keep(project.workspace(), ["plain", "tuned"]).paths) == 5
    return project


@pytest.fixture
def project(made: Project, tmp_path: Path) -> Project:
    return copied(made, tmp_path)


def copied(made: Project, folder: Path) -> Project:
    copy = make_project(folder, SPECS, default=["plain", "tuned"])
    for path in Ledger(made.root).paths():
        copy.write(str(path.relative_to(made.root)), path.read_bytes())
    return copy


def edit(project: Project, made_by: dict[str, str], *, tuned: bool = False, method: str = "", **facts: Any) -> int:
    """Let kept runs, those of a method and tuned or not, be of other code, and other facts be known; how many."""
    chosen = [entry for entry in all_(project) if bool(entry.run.tuned) == tuned and entry.run.method.endswith(method)]
    for entry in chosen:
        known = {name: digest for name, digest in made_by.items() if name in entry.made_by}
        new = dataclasses.replace(entry, made_by={**entry.made_by, **known}, facts={**entry.facts, **facts})
        new.write(Ledger(project.root).path(entry.run))
    return len(chosen)


def all_(project: Project) -> list[Entry]:
    return [read_entry(path) for path in Ledger(project.root).paths()]


def renewed(project: Project) -> Renewed:
    return renew(project.workspace(), ["plain", "tuned"], lambda _: None)


def test_what_gives_the_same_is_current_again(made: Project, project: Project) -> None:
    data = {"dataset.digits": OLD, "partition.dirichlet": OLD}
    assert edit(project, data) == 4 and edit(project, {**data, "evaluate": OLD, "select": OLD}, tuned=True) == 1
    # The plain ones and, by their data, those which the tuned run waits for.
    assert not project.compiled().kept
    done = renewed(project)
    assert (len(done.paths), done.current, dict(done.left)) == (5, 0, {})
    assert project.compiled().kept == {entry.run.id for entry in all_(project)}
    # Nothing else in the files is another.
    assert [path.read_bytes() for path in Ledger(project.root).paths()] == [
        path.read_bytes() for path in Ledger(made.root).paths()
    ]
    assert renewed(project) == Renewed(current=5)
    assert not (project.root / ".pfl/renew").exists()


def test_code_that_only_training_compares(project: Project) -> None:
    edit(project, {"method.fedper": OLD, "dataset.digits": OLD}, method="fedper")
    done = renewed(project)
    assert (len(done.paths), done.current) == (0, 4)
    assert done.left == {
        "were made by other code of method.fedper, which only training compares (`pfl verify`)": 1,
    }


@pytest.mark.parametrize(
    ("fact", "says"),
    [
        ({"dataset_hash": "1" * 64}, "were trained on another data than the code gives now"),
        ({"partition_hash": "1" * 64}, "were trained on another partition than the code gives now"),
    ],
)
def test_other_data(project: Project, fact: dict[str, str], says: str) -> None:
    edit(project, {"partition.dirichlet": OLD}, method="fedper", **fact)
    before = {path: path.read_bytes() for path in Ledger(project.root).paths()}
    done = renewed(project)
    assert (done.current, done.left, done.paths) == (4, {says: 1}, [])
    assert {path: path.read_bytes() for path in before} == before


def test_another_choice(project: Project) -> None:
    (known,) = (entry.facts["chosen"]["training.lr"] for entry in all_(project) if entry.run.tuned)
    edit(project, {"evaluate": OLD}, tuned=True, chosen={"training.lr": 0.201 - known})
    assert renewed(project).left == {"would be tuned otherwise by the code as it is now": 1}


def test_what_a_killed_one_left_is_no_evidence(project: Project) -> None:
    """A partition where it would be found, whose hash is the one that is known; the code does not make it."""
    (entry,) = (entry for entry in all_(project) if entry.run.method == "fedper")
    left = project.write(f".pfl/renew/{entry.run.federation_id}.parquet", b"false")
    known = hashlib.sha256(left.read_bytes()).hexdigest()
    edit(project, {"partition.dirichlet": OLD}, method="fedper", partition_hash=known)
    assert renewed(project).left == {"were trained on another partition than the code gives now": 1}


def test_code_that_is_edited_meanwhile(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(project, {"dataset.digits": OLD}, method="fedper")
    before = {path: path.read_bytes() for path in Ledger(project.root).paths()}
    answers = iter([None, "pflcore.datasets.digits"])
    monkeypatch.setattr("pflcore.sources.edited", lambda: next(answers))
    with pytest.raises(UserError, match="digits was edited meanwhile"):
        renewed(project)
    assert {path: path.read_bytes() for path in before} == before


def test_nothing_is_kept(project: Project) -> None:
    shutil.rmtree(project.root / "results")
    done = project.call("pfl", "results", "renew", "plain")
    assert done.returncode == 2 and done.stderr == "pfl: none of their runs is kept; see `pfl results list`\n"


def test_trials_that_are_gone(project: Project) -> None:
    edit(project, {"select": OLD}, tuned=True)
    trial = next(entry for entry in all_(project) if entry.run.seed == 7)
    Ledger(project.root).path(trial.run).unlink()
    assert renewed(project).left == {"were tuned by trials that are not kept, or not current": 1}


def test_the_command(project: Project) -> None:
    edit(project, {"dataset.digits": OLD}, method="fedper")
    done = project.call("pfl", "results", "renew", "plain")
    assert done.returncode == 0 and "1 runs renewed, 1 were current\n" in done.stdout, done.stderr
    listed = project.call("pfl", "results", "list").stdout
    assert "5 kept results, 5 of them current" in listed
