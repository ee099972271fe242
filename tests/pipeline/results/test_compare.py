"""`pfl compare` in a real project with git: what was changed between two commits or two specs, and what that did."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.project import Project, make_project, spec

from pflcore.errors import UserError
from pipeline.report.table.measured import Value
from pipeline.results import compare as module
from pipeline.results.compare import CHANCE, DIFFERS, NOT_RUN, ONE_SEED, ONE_SIDE, SAME, compare

SEEDS = "    seed: [0, 1, 2]\ntable: {rows: [method], columns: [], average_over: [seed], metric: final}\n"


def git(project: Project, *arguments: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@y")
    done = subprocess.run(["git", *who, *arguments], cwd=project.root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(project: Project) -> None:
    git(project, "add", "-f", "specs", "stages", "dvc.yaml", "pyproject.toml", ".dvc/config")
    git(project, "commit", "-qm", "x")


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two methods with three seeds, run and committed; not to be changed."""
    project = make_project(
        tmp_path_factory.mktemp("compare") / "a", {"specs/tiny.yaml": spec(more=SEEDS)}, default=["tiny"]
    )
    git(project, "init", "-q")
    done = project.call("pfl", "run", PFL_DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    commit(project)
    return project


@pytest.fixture
def repository(committed: Project, tmp_path: Path) -> Project:
    """A copy of it."""
    shutil.copytree(committed.root, tmp_path / "a", symlinks=True)
    return Project(tmp_path / "a")


def test_an_edit_of_settings_shows_in_the_cells_that_it_is_about(repository: Project) -> None:
    text = spec("{FedAvg: fedavg, FedPer: {name: fedper, training: {lr: 0.02}}, Local: local}", more=SEEDS)
    repository.write("specs/tiny.yaml", text)
    done = repository.call("pfl", "run", PFL_DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    seen = compare(repository.workspace(), "tiny@HEAD", None)
    cells = {cell.cell: cell for cell in seen.cells}
    assert list(cells) == ["FedAvg", "FedPer", "Local"]
    assert (cells["FedAvg"].verdict, cells["FedAvg"].why, cells["FedAvg"].difference) == (SAME, "", "+0.00")
    assert cells["FedPer"].why == "training.lr: 0.1 → 0.02" and cells["FedPer"].verdict in (DIFFERS, CHANCE)
    first, second = (float(text.partition("±")[0]) for text in (cells["FedPer"].first, cells["FedPer"].second))
    assert float(cells["FedPer"].difference.replace("\N{MINUS SIGN}", "-")) == pytest.approx(second - first, abs=0.011)
    assert (cells["Local"].verdict, cells["Local"].first) == (ONE_SIDE, "—")
    told = repository.call("pfl", "compare", "tiny@HEAD")
    assert told.returncode == 0 and "training.lr: 0.1 → 0.02" in told.stdout
    page = (repository.root / "reports/compare.html").read_text(encoding="utf-8")
    assert page.index("FedPer") < page.index("FedAvg")  # what differs comes first
    # The other way round, and two commits, neither of them the present one.
    commit(repository)
    repository.write("specs/tiny.yaml", "broken: [")
    back = compare(repository.workspace(), "tiny@HEAD", "tiny@HEAD~1")
    assert {cell.cell: cell.why for cell in back.cells}["FedPer"] == "training.lr: 0.02 → 0.1"


def test_two_specs_are_matched_by_the_axes_that_they_share(repository: Project) -> None:
    more = "    seed: [0]\n    training.lr: [0.05]\n"
    repository.write("specs/other.yaml", spec(more=more))
    seen = compare(repository.workspace(), "tiny", "other")
    assert [cell.verdict for cell in seen.cells] == [ONE_SIDE, ONE_SIDE]  # nothing of it has been run
    assert [cell.why for cell in seen.cells] == ["training.lr: 0.1 → 0.05"] * 2
    repository.write("specs/other.yaml", spec(more=more.replace("[0.05]", "[0.05, 0.2]")))
    with pytest.raises(UserError, match="other: several cells for FedAvg; the other side has no axis"):
        compare(repository.workspace(), "tiny", "other")


def test_edited_code_is_named(repository: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the lock files say it: of the runs of a method another hash of its fingerprint is recorded."""
    side = module._side

    def edited(*arguments: object) -> module.Revision:
        found = side(*arguments)  # type: ignore[arg-type]
        if "@" in found.name:
            return found
        code = {
            run: {**files, "method.fedper": "other"} if "fedper" in run else files for run, files in found.code.items()
        }
        assert all(files.keys() >= {"method.fedper"} for run, files in found.code.items() if "fedper" in run)
        return module.Revision(found.name, found.results, code)

    monkeypatch.setattr(module, "_side", edited)
    seen = compare(repository.workspace(), "tiny@HEAD", "tiny")
    assert [cell.why for cell in seen.cells] == ["", "other code: method.fedper"]


def test_what_cannot_be_compared_is_one_line(repository: Project) -> None:
    for words, line in (
        (("tiny@HEAD~7",), "'HEAD~7' is no commit of this repository"),
        (("tiny@--output=x",), "'--output=x' is no commit of this repository"),
        (("tiny",), "tiny: both sides are the same"),
        (("tinny", "tiny"), "unknown spec 'tinny'; did you mean 'tiny'?"),
        (("tinny@HEAD", "tiny"), "tinny@HEAD: no stages/tables/tinny.json in it"),
    ):
        done = repository.call("pfl", "compare", *words)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(f"pfl: {line}"), done.stderr
        assert done.stderr.count("\n") == 1


def test_a_commit_cannot_make_files_outside(repository: Project) -> None:
    table = repository.root / "stages/tables/tiny.json"
    name = next(iter(json.loads(table.read_text("utf-8"))["runs"]))
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace(name, "../../../../outside"), encoding="utf-8")
    commit(repository)
    table.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"tiny@HEAD: .* names runs as no run is named"):
        compare(repository.workspace(), "tiny@HEAD", "tiny")
    # Nor can its lock files name what is copied, or where to.
    secret = repository.write("secret", "secret")
    originals = {
        lock: lock.read_text(encoding="utf-8") for lock in repository.root.glob("stages/federations/*/dvc.lock")
    }
    replaced = 0
    for lock, text in originals.items():
        for path, md5 in re.findall(r"path: (artifacts/runs/\S+/rounds.parquet)\n\s+hash: md5\n\s+md5: (\w+)", text):
            lock.write_text(
                lock.read_text("utf-8").replace(md5, f"../../../../{secret.name}").replace(path, f"../{path}"), "utf-8"
            )
            replaced += 1
    assert replaced
    commit(repository)
    for lock, text in originals.items():
        lock.write_text(text, encoding="utf-8")
    seen = compare(repository.workspace(), "tiny@HEAD", "tiny")
    assert all(cell.verdict in (SAME, ONE_SIDE) for cell in seen.cells)
    assert not list(repository.root.parent.glob("artifacts"))


def test_numbers_that_have_no_seeds_are_compared_by_value() -> None:
    a, b = (module.Cell({}, ("r",), Value(mean), 1, None, False, "", None, "") for mean in (1.0, 2.0))
    assert module._compared("x", a, a, None, "", 2).verdict == SAME
    assert module._compared("x", a, b, None, "", 2).verdict != SAME


def test_what_the_cache_has_lost_is_counted(repository: Project) -> None:
    shutil.rmtree(repository.root / ".dvc/cache")
    seen = compare(repository.workspace(), "tiny@HEAD", "tiny")
    assert seen.first.absent == 6 and [cell.verdict for cell in seen.cells] == [ONE_SIDE] * 2
    assert NOT_RUN not in seen.words and ONE_SEED not in seen.words
