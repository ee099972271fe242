"""Fingerprints of code: what they see, what they do not see, and whom an edit concerns."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
from support.project import Project, make_project, spec

from pflcore.methods import METHODS
from pipeline.compile import compiler, fingerprint
from pipeline.compile.compiler import compile_workspace, source_folder
from pipeline.compile.engine import RECORD, Engine
from pipeline.compile.fingerprint import PACKAGES, Code


def other_docstrings(text: str) -> str:
    """The module with every docstring replaced."""
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Expr(ast.Constant("Said in other words."))
    return ast.unparse(module)


FORMS: dict[str, Callable[[str], str]] = {
    "comments": lambda text: "# first\n" + text.replace("\ndef ", "\n# a comment\ndef ") + "\n# last\n",
    "blank lines": lambda text: text.replace("\n\n", "\n\n\n\n"),
    "layout": lambda text: ast.unparse(ast.parse(text)),
    "docstrings": other_docstrings,
}


def grid() -> str:
    """All methods on the backbones they can use; two partitions."""
    everywhere = {"local", "fedavg", "fedprox", "fedper"}
    methods = ", ".join(f"{name}: {name}" for name in METHODS.names())
    only_vit = ", ".join(sorted(set(METHODS.names()) - everywhere))
    more = f"""\
    backbone: [convnet, tiny_vit]
    partition: [iid, dirichlet]
  exclude:
    - {{method: [{only_vit}], backbone: convnet}}
table: {{rows: [method], columns: [backbone, partition]}}
"""
    return spec(f"{{{methods}}}", more=more)


@pytest.mark.parametrize(
    "imported",
    ["from pflcore import b", "from . import b", "import pflcore.b", "from .b import B", "from pflcore.b import B"],
)
def test_every_form_of_an_import_is_followed(imported: str, tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "pflcore/a.py").write_text(f"{imported}\n")

    def found(text: str) -> str:
        (tmp_path / "pflcore/b.py").write_text(text)
        return Code(tmp_path).fingerprint("pflcore.a")

    assert "pflcore.b " in found("B = 1\n") and found("B = 1\n") != found("B = 2\n")


def test_what_was_parsed_is_remembered_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, known = tmp_path / "source", tmp_path / "known.json"
    for package in PACKAGES:
        (source / package).mkdir(parents=True)
        (source / package / "__init__.py").touch()
    module = source / "pflcore" / "a.py"
    module.write_text("import pflcore.b\n")
    (source / "pflcore" / "b.py").write_text("B = 1\n")

    def read() -> tuple[str, int]:
        parsed: list[bytes] = []
        monkeypatch.setattr(fingerprint, "_meaning", lambda text: parsed.append(text) or meaning(text))
        code = Code(source, known)
        found = code.fingerprint("pflcore.a")
        code.remember()
        return found, len(parsed)

    meaning = fingerprint._meaning
    assert read() == (first := Code(source).fingerprint("pflcore.a"), 3)
    assert read() == (first, 0)
    module.write_text("import pflcore.b\nA = 1\n")
    before = known.read_text()
    edited, parsed = read()
    assert edited != first and parsed == 1
    assert set(json.loads(known.read_text())) > set(json.loads(before))  # what others use is not forgotten
    for damage in ("", "[]", '{"1 x": 3}', "\udcff"):
        known.write_text(damage, errors="surrogateescape")
        assert read()[0] == edited


def fingerprints(project: Project) -> dict[str, str]:
    """Name → text of each fingerprint that a project needs."""
    files = compile_workspace(project.workspace()).files
    return {Path(name).stem: text for name, text in files.items() if name.startswith("stages/code/")}


@cache
def code() -> dict[str, bytes]:
    """The project's packages."""
    names = ("*.py", "*.j2")
    paths = [path for package in PACKAGES for name in names for path in (source_folder() / package).rglob(name)]
    paths += [source_folder() / RECORD]
    return {path.relative_to(source_folder()).as_posix(): path.read_bytes() for path in paths}


class Copy:
    """A project compiled with a copy of the code, which can be edited."""

    before: ClassVar[dict[str, str]] = {}

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source = folder / "source"
        for name, content in code().items():
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        monkeypatch.setattr(compiler, "source_folder", lambda: self.source)
        self.project = make_project(folder / "project", {"specs/all.yaml": grid()})
        if not self.before:  # the same for all copies
            self.before.update(fingerprints(self.project))

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        path = self.source / name
        before = path.read_text(encoding="utf-8")
        assert change(before) != before
        path.write_text(change(before), encoding="utf-8")

    def concerned(self) -> set[str]:
        """The fingerprints that differ from those at the beginning."""
        after = fingerprints(self.project)
        assert set(after) == set(self.before)
        return {name for name, text in after.items() if text != self.before[name]}

    def named(self, *names: str) -> set[str]:
        """Those of these names; one that ends with a dot stands for all that begin with it."""
        assert all(name.endswith(".") or name in self.before for name in names)
        return {
            found
            for found in self.before
            for name in names
            if found == name or (name[-1] == "." and found.startswith(name))
        }


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copy:
    return Copy(tmp_path, monkeypatch)


def add_code(text: str) -> str:
    return text + "\nADDED = 1\n"


def test_the_copy_has_the_fingerprints_of_the_original(copy: Copy) -> None:
    assert fingerprints(copy.project) == copy.before
    assert copy.before["evaluate"] == Code(source_folder()).fingerprint("pipeline.stages.evaluate")
    kinds = {name.partition(".")[0] for name in copy.before}
    assert kinds == {"engine", *STAGES, "dataset", "partition", "backbone", "method"}
    assert copy.named("method.") == {f"method.{name}" for name in METHODS.names()}


STAGES = ("describe", "evaluate", "report", "index")  # all but those of the engine


def test_what_a_stage_has_is_not_said_again_of_its_entries(copy: Copy) -> None:
    modules = {name: {line.split()[0] for line in text.splitlines()} for name, text in copy.before.items()}
    trained = set(Engine.recorded(Code(copy.source)).fingerprint("train").split())
    assert {"pflcore.engine.trainer", "pflcore.method"} <= trained
    assert modules["method.fedprox"] == {"pflcore.methods.fedprox"}
    assert modules["method.fedtp"] > {"pflcore.methods.fedtp", "pflcore.operators.hypernetworks"}
    entries = ("method.", "backbone.")
    assert not any(trained & modules[name] for name in modules if name.startswith(entries))


@pytest.mark.parametrize("form", FORMS)
def test_cosmetics_are_not_seen(copy: Copy, form: str) -> None:
    changed = 0
    for path in copy.source.rglob("*.py"):
        before = path.read_text(encoding="utf-8")
        path.write_text(FORMS[form](before), encoding="utf-8")
        changed += path.read_text(encoding="utf-8") != before
    assert changed > 20
    assert copy.concerned() == set()


def test_the_step_of_a_hypernetwork_concerns_those_that_have_one(copy: Copy) -> None:
    copy.edit(
        "pflcore/methods/_hypernetwork_server.py",
        lambda text: text.replace("one.sent[name] - one.returned[name]", "one.returned[name] - one.sent[name]"),
    )
    assert copy.concerned() == copy.named(*(f"method.{name}" for name in GENERATING))


GENERATING = ("fedofa", "fedtp", "fedtp_fedrod", "pfedhn")  # methods with pFedHN's hypernetwork


def test_fedavg_concerns_those_who_import_it(copy: Copy) -> None:
    importers = {
        path.stem
        for path in (copy.source / "pflcore/methods").glob("*.py")
        if "pflcore.methods.fedavg" in path.read_text(encoding="utf-8") or path.stem == "fedavg"
    }
    copy.edit("pflcore/methods/fedavg.py", add_code)
    assert copy.concerned() == copy.named(*(f"method.{name}" for name in importers))


@pytest.mark.parametrize(
    ("module", "concerned"),
    [
        ("pflcore/engine/loop.py", []),  # the engine goes by its results version
        ("pflcore/method.py", []),
        ("pflcore/operators/hypernetworks.py", [f"method.{name}" for name in GENERATING]),
        ("pipeline/stages/train.py", []),
        ("pflcore/datasets/digits.py", ["dataset.digits"]),
        ("pflcore/datasets/cifar10.py", []),
        ("pflcore/partitions/dirichlet.py", ["partition.dirichlet"]),
        ("pipeline/stages/evaluate.py", ["evaluate"]),
        ("pflcore/protocols.py", ["evaluate", "report"]),
        ("pipeline/report/table/cells.py", ["report"]),
        ("pipeline/report/partitions/page.py", ["describe"]),
        ("pipeline/report/drawing/svg.py", ["describe", "report"]),
        ("pipeline/stages/index.py", ["index"]),
        ("pipeline/stages/guard.py", []),
        ("pipeline/compile/compiler.py", []),
        ("pipeline/cli/commands.py", []),
        ("pflcore/artifacts.py", STAGES),
        ("pflcore/files.py", STAGES),
        ("pflcore/__init__.py", STAGES),
    ],
)
def test_whom_a_module_concerns(copy: Copy, module: str, concerned: list[str]) -> None:
    copy.edit(module, add_code)
    assert copy.concerned() == (copy.named(*concerned) if concerned else set())


def test_a_backbone_concerns_the_runs_that_use_it(copy: Copy) -> None:
    copy.edit("pflcore/backbones/convnet.py", add_code)
    assert copy.concerned() == {"backbone.convnet"}


def test_a_template_concerns_the_reports(copy: Copy) -> None:
    copy.edit("pipeline/report/templates/report.md.j2", lambda text: text + " ")
    assert copy.concerned() == {"report", "describe"}


def test_a_new_method_concerns_nobody_else(copy: Copy) -> None:
    shutil.copy(copy.source / "pflcore/methods/fedavg.py", copy.source / "pflcore/methods/mine.py")
    assert copy.concerned() == set()
    copy.edit("pflcore/methods/mine.py", lambda text: f"from pflcore.methods.fedprox import FedProx\n{text}")
    mine = Code(copy.source).fingerprint("pflcore.methods.mine")
    assert "pflcore.methods.mine " in mine and "pflcore.methods.fedprox " in mine


def one_module(folder: Path, text: str) -> str:
    """The fingerprint of a package whose only module has this text."""
    package = folder / "pflcore"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(text, encoding="utf-8")
    return Code(folder).fingerprint("pflcore")


@pytest.mark.parametrize(
    ("first", "then", "same"),
    [
        ("x = 1", "x = 1  # one", True),
        ("x = [1,\n 2]", "x = [1, 2]", True),
        ("x = 'a'", 'x = "a"', True),
        ("'A docstring.'\nx = 1", "x = 1", True),
        ("class A:\n 'A docstring.'\n x = 1", "class A:\n x = 1", True),
        ("x = 1", "x = 2", False),
        ("x = 1", "x = 1.0", False),
        ("x = 1", "x = True", False),
        ("x = 'a'", "x = b'a'", False),
        ("x = None", "x = ...", False),
        ("x = 1\n'Not a docstring.'", "x = 1", False),
        ("def f(a, /): 0", "def f(a): 0", False),
        ("def f(a, *, b): 0", "def f(a, b): 0", False),
        ("x: int = 1", "x = 1", False),
        ("import a.b", "from a import b", False),
        ("x = '\\ud800'", "x = '\\ud801'", False),
    ],
)
def test_meaning_is_what_is_hashed(tmp_path: Path, first: str, then: str, same: bool) -> None:
    assert (one_module(tmp_path, first) == one_module(tmp_path, then)) is same


ROOTS = [
    ("pipeline.stages.data", "pflcore.datasets.cifar10"),
    ("pipeline.stages.partition", "pflcore.partitions.pathological"),
    ("pipeline.stages.train", "pflcore.methods.fedtp", "pflcore.backbones.tiny_vit"),
    ("pipeline.stages.evaluate",),
    ("pipeline.stages.report", "pipeline.report.pages.build"),
    ("pipeline.stages.index",),
]


@pytest.mark.parametrize("roots", ROOTS, ids=lambda roots: roots[0])
def test_all_that_is_imported_is_in_the_fingerprint(roots: tuple[str, ...]) -> None:
    program = f"import sys, {', '.join(roots)}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    imported = {name for name in output.split() if name.partition(".")[0] in PACKAGES}
    fingerprint = Code(source_folder()).fingerprint(*roots)
    assert imported <= {line.split()[0] for line in fingerprint.splitlines()}
    assert imported >= set(roots)
