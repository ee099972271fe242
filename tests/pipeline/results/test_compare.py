"""`pfl compare` in a real project with git: what was changed between two commits or two specs, and what that did."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.project import Project, make_project, spec
from support.report_demo import RECORD, cell, table

from pflcore.errors import UserError
from pipeline.report.table.cells import Cell
from pipeline.report.table.layout import Layout
from pipeline.report.table.measured import Measured, Value
from pipeline.report.table.results import Results
from pipeline.results import compare as module
from pipeline.results.compare import CHANCE, DIFFERS, NOT_RUN, ONE_SEED, ONE_SIDE, SAME, compare
from pipeline.spec.run import Run
from pipeline.workspace import Workspace

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


class Side:
    """One side of a comparison without artifacts: cells by method, with runs by seed that have a learning rate."""

    def __init__(self, name: str, axes: dict[str, str] | None = None) -> None:
        self.name, self.more, self.cells = name, axes or {}, list[Cell]()
        self.runs: dict[str, Measured] = {}
        self.code: dict[str, dict[str, str]] = {}

    def add(
        self, label: str, by_seed: dict[int, float], lr: float = 0.1, code: str = "", more: str = "", **facts: str
    ) -> Side:
        ids = []
        for seed in by_seed:
            run = f"{self.name}-{label}{more}-{seed}"
            record = {**RECORD, "seed": seed, "training": {"rounds": 100, "lr": lr}}
            self.runs[run] = Measured(run, Run(record), {}, facts, Path())
            self.code[run] = {"train": "1", "method.x": code} if code else {}
            ids.append(run)
        values = [value for value in by_seed.values() if value >= 0]
        obtained = Value(sum(values) / len(values)) if values else None
        labels = {"method": label, **({"size": more} if more else {})}
        told = {seed: value for seed, value in by_seed.items() if value >= 0}
        self.cells.append(Cell(labels, tuple(ids), obtained, len(values), None, False, "", None, "", by_seed=told))
        return self

    def revision(self) -> module.Revision:
        cells = [cell(one.labels, list(one.runs)) for one in self.cells]
        resolved = table(cells, list(self.cells[0].labels), [], decimals=1)
        return module.Revision(
            self.name, Results(resolved, Path(), self.runs, self.cells, Layout(resolved, self.cells)), self.code
        )


def compared(first: Side, second: Side) -> module.Comparison:
    one, other = first.revision(), second.revision()
    return module.Comparison(one, other, module._cells(one, other))


def test_what_becomes_of_a_cell() -> None:
    first, second = Side("one"), Side("other")
    far = {seed: 80.0 + seed % 3 for seed in range(6)}
    near = {seed: 81.2 + (-1) ** seed for seed in range(6)}
    for label, before, after in (
        ("same", far, far),
        ("differs", far, {seed: value - 9.0 + (-1) ** seed / 2 for seed, value in far.items()}),
        ("chance", far, near),
        ("seed", {0: 80.0}, {0: 80.5}),
        ("other seed", {0: 80.0}, {1: 80.0}),
        ("first", far, {0: -1}),
        ("second", {0: -1}, far),
        ("neither", {0: -1}, {0: -1}),
    ):
        first.add(label, before)
        second.add(label, after)
    found = compared(first.add("only here", far), second.add("only there", {0: 70.25}))
    assert [(one.cell, one.first, one.second, one.difference, one.verdict) for one in found.cells] == [
        ("same", "81.0", "81.0", "+0.0", SAME),
        ("differs", "81.0", "72.0", "\N{MINUS SIGN}9.0", DIFFERS),
        ("chance", "81.0", "81.2", "+0.2", CHANCE),
        ("seed", "80.0", "80.5", "+0.5", ONE_SEED),
        ("other seed", "80.0", "80.0", "+0.0", ONE_SEED),
        ("first", "81.0", "—", "", ONE_SIDE),
        ("second", "—", "81.0", "", ONE_SIDE),
        ("neither", "—", "—", "", NOT_RUN),
        ("only here", "81.0", "—", "", ONE_SIDE),
        ("only there", "—", "70.2", "", ONE_SIDE),
    ]
    assert not any(one.why for one in found.cells)
    assert found.words == "10 cells: 1 the same, 1 within noise, 1 differs, 2 one seed, 4 on one side only, 1 not run"


def test_why_runs_of_the_same_seed_differ() -> None:
    def why(**changes: Any) -> str:
        before: dict[str, Any] = {"lr": 0.1, "code": "a", "torch": "2", "device": "cpu", "dataset_hash": "d"}
        first, second = Side("one").add("x", {0: 80.0, 1: 81.0}, **before), Side("other")
        seeds = changes.pop("seeds", {1: 80.0, 0: 81.0})
        return compared(first, second.add("x", seeds, **{**before, **changes})).cells[0].why

    assert why() == ""
    assert why(lr=0.25) == "training.lr: 0.1 → 0.25"
    assert why(code="b") == "other code: method.x" and why(code="") == "", "of which nothing is known"
    assert why(torch="3") == "another PyTorch" and why(device="cuda") == "another device"
    assert why(dataset_hash="e", partition_hash="p") == "other data; another partition"
    assert why(lr=0.25, code="b", torch="3") == "training.lr: 0.1 → 0.25; other code: method.x; another PyTorch"
    assert why(lr=0.25, seeds={2: 80.0}) == "", "there are no two of one seed"


def test_axes_of_one_side_alone_have_one_label_there() -> None:
    first, second = Side("one").add("x", {0: 80.0}).add("y", {0: 70.0}), Side("other").add("x", {0: 81.0}, more="big")
    assert [(one.cell, one.verdict) for one in compared(first, second).cells] == [("x", ONE_SEED), ("y", ONE_SIDE)]
    second.add("x", {0: 82.0}, more="small")
    with pytest.raises(UserError, match=r"^other: several cells for x; the other side has no axis size$"):
        compared(first, second)
    with pytest.raises(UserError, match=r"^one and other have no cell in common$"):
        compared(first, Side("other").add("z", {0: 1.0}))


def test_the_other_side_is_the_spec_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def side(workspace: Workspace, word: str, scratch: Path) -> module.Revision:
        asked.append((word, scratch.name))
        return Side(word).add("x", {0: 80.0}).revision()

    monkeypatch.setattr(module, "_side", side)
    workspace = Workspace(tmp_path, tmp_path, "paper")
    compare(workspace, "a/b@HEAD~2", None)
    compare(workspace, "a/b", "c@v1")
    assert asked == [("a/b@HEAD~2", "first"), ("a/b", "second"), ("a/b", "first"), ("c@v1", "second")]
    assert "a/b" in (tmp_path / module.PAGE).read_text(encoding="utf-8")
    for other in (None, "a/b"):
        with pytest.raises(UserError, match=r"^a/b: both sides are the same; .* commit as in a/b@HEAD~1$"):
            compare(workspace, "a/b", other)


def test_a_spec_as_it_is_now_has_the_code_that_dvc_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two federations, of which the name of one begins like that of the other."""
    runs = {"r": "fed", "s": "fed2"}
    for number, (run, federation) in enumerate(runs.items()):
        deps = [{"path": f"stages/code/{name}.txt", "md5": f"{number}{name}"} for name in ("train", "method.x")]
        stage = {"deps": [*deps, {"path": "artifacts/p.parquet", "md5": "p"}]}
        lock = tmp_path / f"stages/federations/{federation}/dvc.lock"
        lock.parent.mkdir(parents=True)
        lock.write_text(json.dumps({"stages": {f"train-{run}": stage, "train-other": {"deps": deps[:1]}}}))
    resolved = SimpleNamespace(runs=runs)
    compilation = SimpleNamespace(table=lambda spec: resolved, every_run={"r": 1})
    monkeypatch.setattr(module, "find_specs", lambda specs: {"tiny": None})
    monkeypatch.setattr(module, "compile_workspace", lambda workspace, specs: compilation)
    monkeypatch.setattr(Results, "read", lambda *arguments: arguments)
    workspace = Workspace(tmp_path, tmp_path, "paper")
    found = module._side(workspace, "tiny", tmp_path / "scratch")
    assert (found.name, found.absent, found.results) == ("tiny", 0, (resolved, {"r": 1}, tmp_path))
    assert found.code == {
        "r": {"train": "0train", "method.x": "0method.x"},
        "s": {"train": "1train", "method.x": "1method.x"},
    }
    with pytest.raises(UserError, match=r"^unknown spec 'tinny'; did you mean 'tiny'\?$"):
        module._side(workspace, "tinny", tmp_path)


def test_what_the_cache_has_lost_is_counted(repository: Project) -> None:
    shutil.rmtree(repository.root / ".dvc/cache")
    seen = compare(repository.workspace(), "tiny@HEAD", "tiny")
    assert seen.first.absent == 6 and [cell.verdict for cell in seen.cells] == [ONE_SIDE] * 2
    assert NOT_RUN not in seen.words and ONE_SEED not in seen.words
