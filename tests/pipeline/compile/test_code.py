"""Which code stages depend on: what fingerprints see, whom an edit concerns, and the engine under its version."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support.project import make_project, spec

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pflcore.methods import METHODS
from pflcore.registry import files_of
from pipeline.cli.commands import compile_
from pipeline.compile import compiler, stage_code
from pipeline.compile.compiler import source_folder
from pipeline.compile.engine import RECORD, STAGES, TITLE, Engine, root_of, untested
from pipeline.compile.fingerprint import PACKAGES, Code, text_hash
from pipeline.compile.stage_code import Part, code_of_evaluation, code_of_report, code_of_run, versions
from pipeline.running.options import Request, RunOptions
from pipeline.stages import guard
from pipeline.workspace import CODE

FILES = {
    "pflcore/__init__.py": "",
    "pflcore/base.py": "BASE = 1\n",
    "pflcore/part/__init__.py": "from . import own\n",
    "pflcore/part/own.py": "from .. import base\nfrom ..base import BASE\nimport torch\n",
    "pflcore/part/deep/low.py": "from ... import base\n",  # a package without a file
    "pipeline/__init__.py": "",
    "pipeline/page.py": "import pflcore.base as base, jinja2\n",
    "pipeline/templates/page.md.j2": "# {{ title }}\n",
}
TEMPLATE = "pipeline/templates/page.md.j2"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "source"


def test_modules_of_a_closure_with_their_packages(source: Path) -> None:
    code = Code(source)

    def named(root: str, without: str | None = None) -> list[str]:
        return code.names(code.fingerprint(root, without=without))

    part = ["pflcore", "pflcore.base", "pflcore.part", "pflcore.part.own"]
    assert named("pflcore.part.own") == named("pflcore.part") == part
    assert named("pflcore.part.deep.low") == sorted([*part, "pflcore.part.deep.low"])
    page = ["pflcore", "pflcore.base", "pipeline", "pipeline.page", TEMPLATE]
    assert named("pipeline.page") == page and named("pipeline.page", without="pflcore.base") == page[2:]
    assert named("pflcore.part", without="pflcore.part.own") == [] and named("torch") == []
    assert code.has("pflcore.part.deep.low") and not code.has("pflcore.part.deep") and not code.has("torch")
    forms = ("pflcore import base", ". import base", ".base import BASE", "pflcore.base import BASE")
    for form in ("import pflcore.base", *(f"from {form}" for form in forms)):
        (source / "pflcore/a.py").write_text(f"{form}\n")
        code = Code(source)
        assert code.names(code.fingerprint("pflcore.a")) == ["pflcore", "pflcore.a", "pflcore.base"]


SAME = [
    ("x = [1,\n 2]", "x = [1, 2]  # one"), ("x = 'a'", 'x = "a"'), ("'A docstring.'\nx = 1", "x = 1"),
    ("class A:\n 'A docstring.'\n x = 1", "class A:\n x = 1"),
]  # fmt: skip
OTHER = [
    *(("x = 1", f"x = {value}") for value in ("2", "1.0", "True")), ("x = 'a'", "x = b'a'"), ("x = None", "x = ..."),
    ("x = 1\n'Not a docstring.'", "x = 1"), ("def f(a, /): 0", "def f(a): 0"), ("x: int = 1", "x = 1"),
    ("import a.b", "from a import b"), ("x = '\\ud800'", "x = '\\ud801'"),
]  # fmt: skip


def test_meaning_is_what_is_hashed_and_of_templates_all_their_text(source: Path) -> None:
    def hashed(text: str) -> str:
        (source / "pflcore/base.py").write_text(text, encoding="utf-8")
        return Code(source).fingerprint("pflcore.base")

    assert [pair for pair in (*SAME, *OTHER) if hashed(pair[0]) == hashed(pair[1])] == SAME
    hashed("BASE = 1\n")
    code = Code(source)
    known, here = code.fingerprint("pipeline.page"), {name: path.read_bytes() for name, path in code.modules.items()}
    for change, altered in (
        ({TEMPLATE: b"# {{ title }}\n", "pflcore.base": b"BASE = 1  # one\n", "other": b"X = 2"}, None),
        ({TEMPLATE: b"# {{ title }}\n", "pflcore.base": b"BASE = 2\n"}, "pflcore.base"),
        ({TEMPLATE: b"# {{ title }}"}, TEMPLATE),
        ({}, TEMPLATE),
    ):
        assert code.altered(known, {**here, **change}) == altered


def test_what_was_parsed_is_remembered_by_content(source: Path, tmp_path: Path) -> None:
    known, module = tmp_path / "known.json", source / "pflcore/part/own.py"

    def found(file: Path | None = known) -> str:
        code = Code(source, file)
        fingerprint = code.fingerprint("pflcore.part")
        code.remember()
        return fingerprint

    first = found()
    parsed = known.read_text()
    assert found(None) == first == found() and known.read_text() == parsed
    module.write_text(module.read_text() + "A = 1\n")
    edited = found()
    assert edited != first and len(known.read_text()) > len(parsed)
    known.write_text("{")
    assert found() == edited


# --- a copy of the packages -----------------------------------------------------------------------------------------


class Copy:
    """A project compiled with a copy of the code, which can be edited."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source_folder() / package, self.source / package, ignore=ignored)
        methods = ", ".join(f"{name}: {name}" for name in METHODS.names())
        only_vit = ", ".join(sorted({*METHODS.names()} - {"local", "fedavg", "fedprox", "fedper"}))
        more = f"    backbone: [convnet, tiny_vit]\n  exclude: [{{method: [{only_vit}], backbone: convnet}}]\n"
        self.project = make_project(folder / "project", {"specs/all.yaml": spec(f"{{{methods}}}", more=more)})
        self.originals: dict[Path, str] = {}
        self.before = self.digests()

    def digests(self) -> dict[str, str]:
        """Return ``kind.name`` → digest of each part of the code that the project needs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "source_folder", lambda: self.source)
            known = yaml.safe_load(compiler.compile_workspace(self.project.workspace()).files[CODE])
        engine = known.pop("engine")
        return {"engine": engine} | {f"{kind}.{name}": own[name] for kind, own in known.items() for name in own}

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        path = self.source / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(change(self.originals.setdefault(path, before)), encoding="utf-8")

    def add(self, name: str, line: str = "EDITED = 1") -> None:
        self.edit(name, lambda text: f"{text}\n{line}\n")

    def accept(self) -> None:
        """Record what `make pins` does when the numbers are as known."""
        code = Code(self.source)
        self.edit(RECORD, lambda text: Engine.on_disk(code).text)

    def untested(self) -> str:
        return str(untested(Code(self.source)))

    def concerned(self) -> set[str]:
        """Return whose digests differ from those at the beginning."""
        return {name for name, digest in self.digests().items() if digest != self.before[name]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


@pytest.fixture
def copy(made: Copy) -> Iterator[Copy]:
    yield made
    while made.originals:
        path, text = made.originals.popitem()
        path.write_text(text, encoding="utf-8")


def other_docstrings(text: str) -> str:
    """Return the module with every docstring replaced, and in another layout."""
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Expr(ast.Constant("Said in other words."))
    return "# first\n" + ast.unparse(module).replace("\ndef ", "\n# a comment\n\ndef ")


def test_cosmetics_are_not_seen(copy: Copy) -> None:
    for path in copy.source.rglob("*.py"):
        copy.edit(path.relative_to(copy.source).as_posix(), other_docstrings)
    assert len(copy.originals) > 100 and copy.concerned() == set()


GENERATING = [f"method.{name}" for name in ("fedofa", "fedtp", "fedtp_fedrod", "pfedhn")]  # with pFedHN's hypernetwork
SIMPLE = [f"method.{name}" for name, module in files_of("pflcore.methods").items() if module == "simple"]


@pytest.mark.parametrize(
    ("module", "concerned"),
    [
        ("pflcore/engine/loop.py", []),  # the engine goes by its version
        ("pflcore/methods/simple.py", SIMPLE),
        ("pflcore/operators/hypernetworks.py", GENERATING),
        ("pflcore/partitions/iid.py", ["partition.iid"]),
        ("pipeline/report/templates/page.md.j2", ["stage.describe", "stage.report"]),
        ("pipeline/report/frame.py", ["stage.describe", "stage.evaluate", "stage.report"]),
        ("pipeline/compile/compiler.py", []),
    ],
)
def test_whom_a_module_concerns(copy: Copy, module: str, concerned: list[str]) -> None:
    copy.add(module)
    assert copy.concerned() == set(concerned)


STAGE_MODULES = [root_of(kind) for kind in ("data", "train", "evaluate", "report")]


@pytest.mark.parametrize(
    "root", ["pflcore.methods.fedtp", *(pytest.param(root, marks=pytest.mark.matrix) for root in STAGE_MODULES)]
)
def test_all_that_is_imported_is_in_the_fingerprint(root: str) -> None:
    program = f"import sys, {root}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    imported = {name for name in output.split() if name.partition(".")[0] in PACKAGES}
    assert root in imported and imported <= {*Code.names(Code(source_folder()).fingerprint(root))}


def test_the_code_of_stages_and_the_versions_of_results() -> None:
    entries = {"dataset": "digits", "partition": "iid", "method": "fedper", "backbone": "convnet"}
    run: Any = SimpleNamespace(**entries, analyses=["rollout"])
    other: Any = SimpleNamespace(**{**entries, "method": "own"}, analyses=[])

    def names(parts: list[Part]) -> list[str]:
        return [part.name for part in parts]

    assert names(code_of_run("data", SimpleNamespace(dataset="digits"))) == ["engine", "dataset.digits"]  # type: ignore[arg-type]
    assert names(code_of_run("partition", run)) == ["engine", "partition.iid"]
    train = code_of_run("train", run)
    assert names(train) == ["engine", "method.fedper", "backbone.convnet", "analysis.rollout"]
    assert train[1] == Part("method.fedper", "pflcore.methods.simple", "pipeline.stages.train")
    assert train[0].digest("whatever") == str(ENGINE_VERSION) and train[1].digest("a 1\n") == text_hash("a 1\n")[:12]
    table: Any = SimpleNamespace(counted=True, drawn=["curves", "rollout"])
    counted = names(code_of_evaluation(table, [run, other, run]))
    assert counted == ["stage.evaluate", *names(train), "method.own", "stage.counting"]
    assert names(code_of_report(table)) == ["stage.report", "figure.rollout"]
    # Of an entry of a study its source stands for the version.
    code: Any = SimpleNamespace(outside=lambda root: "study.methods.own 12ab\n" if root.endswith(".own") else "")
    catalog: Any = SimpleNamespace(entry=lambda kind, name: SimpleNamespace(facts={"results_version": len(name)}))
    expected = {"engine": str(ENGINE_VERSION), "dataset.digits": "6", "partition.iid": "3", "backbone.convnet": "7"}
    assert versions(code, catalog, other) == {**expected, "method.own": text_hash("study.methods.own 12ab\n")[:12]}


# --- the engine -----------------------------------------------------------------------------------------------------


def test_the_record_of_the_engine(copy: Copy) -> None:
    code = Code(source_folder())
    engine = Engine.recorded(code)
    assert engine == Engine.on_disk(code) and engine.title == TITLE and untested(code) is None
    for stage in STAGES:
        assert engine.fingerprint(stage) == code.fingerprint(root_of(stage))
    added = "pflcore.more 1234567890123456 train\n"  # as if merged without a conflict
    for damage in (
        lambda text: "",
        lambda text: text.replace("pflcore.seeds ", "pflcore.seed "),
        lambda text: text + added,
    ):
        copy.edit(RECORD, damage)
        with pytest.raises(UserError, match="merged or edited by hand; take one that was committed"):
            copy.untested()
    raised = replace(engine, title="engine version 1").text
    copy.edit(RECORD, lambda text: raised)
    assert copy.untested().startswith("pflcore was edited")
    copy.accept()
    copy.add("pflcore/engine/new.py", "")
    assert copy.untested() == "None"  # nobody imports it
    copy.add("pflcore/engine/loop.py", "import pflcore.engine.new")
    assert copy.untested().startswith("pflcore.engine.loop was edited")
    copy.accept()
    assert copy.untested() == "None"
    (copy.source / "pflcore/engine/new.py").unlink()
    assert copy.untested().startswith("pflcore.engine.new was edited")


def test_an_edited_engine_is_refused_until_it_is_tested_and_then_makes_nothing_stale(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]")}, default=["tiny"])
    workspace = project.workspace()
    project.compile()
    before, stages = project.generated(), project.stages()
    assert f"engine: '{ENGINE_VERSION}'" in before[CODE].decode()
    monkeypatch.setattr(compiler, "source_folder", lambda: copy.source)
    copy.add("pflcore/groups.py")
    copy.accept()
    assert guard.run(workspace).endswith("stages are up to date") and project.generated() == before
    copy.add("pflcore/groups.py", "MORE = 2")
    copy.add("pflcore/methods/simple.py")  # which would be compiled
    message = r"^pflcore\.groups was edited, and results may have changed: type `make pins`"
    monkeypatch.chdir(project.root)
    for refused in (
        lambda: guard.run(workspace),
        lambda: Request.compiled(workspace, RunOptions()),
        lambda: compile_(check=True),
    ):
        with pytest.raises(UserError, match=message):
            refused()
        assert project.generated() == before
    compile_(check=False)
    out, err = capsys.readouterr()
    assert out == "1 runs: 1 code digest changed\n" and err.startswith("pfl: pflcore.groups was edited")
    copy.accept()
    assert Request.compiled(workspace, RunOptions()).specs == ["tiny"] and guard.run(workspace).endswith("up to date")
    with monkeypatch.context() as patch, pytest.raises(UserError, match="1 code digest changed"):
        patch.setattr(stage_code, "ENGINE_VERSION", 99)
        guard.run(workspace)
    changed = {one["cmd"].split()[2] for name, one in project.stages().items() if one != stages[name]}
    assert changed == set(STAGES)  # all that the engine makes
