"""Fingerprints of code: what they see, what they do not see, what is remembered, and whom an edit concerns."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support.project import make_project, spec

from pflcore import ENGINE_VERSION
from pflcore.methods import METHODS
from pflcore.registry import SHARED
from pipeline.compile import compiler, fingerprint
from pipeline.compile.compiler import compile_workspace, source_folder
from pipeline.compile.engine import Engine
from pipeline.compile.fingerprint import PACKAGES, Code, text_hash
from pipeline.compile.stage_code import Part, code_of_evaluation, code_of_report, code_of_run, versions
from pipeline.spec.figures import figure_names
from pipeline.workspace import CODE

# --- packages made here ---------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = {
        "pflcore/__init__.py": "",
        "pflcore/base.py": "BASE = 1\n",
        "pflcore/part/__init__.py": "from . import own\n",
        "pflcore/part/own.py": "from .. import base\nfrom ..base import BASE\nimport torch\n",
        "pflcore/part/deep/low.py": "from ... import base\n",  # a package without a file
        "pflcore/alone.py": "ALONE = 1\n",
        "pipeline/__init__.py": "",
        "pipeline/page.py": "import pflcore.base as base, jinja2\n",
        "pipeline/number.py": "",
        "pipeline/templates/page.md.j2": "# {{ title }}\n",
        "pipeline/templates/notes.txt": "not a template\n",
    }
    for name, text in files.items():
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
    assert named("pflcore.alone") == ["pflcore", "pflcore.alone"]
    page = ["pflcore", "pflcore.base", "pipeline", "pipeline.page", "pipeline/templates/page.md.j2"]
    assert named("pipeline.page") == page
    assert named("pipeline.page", without="pflcore.base") == page[2:]
    assert named("pipeline.number") == ["pipeline", "pipeline.number"]
    assert named("pflcore.part", without="pflcore.part.own") == [] and named("torch") == []
    assert code.has("pflcore.part.deep.low") and not code.has("pflcore.part.deep") and not code.has("torch")


@pytest.mark.parametrize(
    "imported",
    ["from pflcore import b", "from . import b", "import pflcore.b", "from .b import B", "from pflcore.b import B"],
)
def test_every_form_of_an_import_is_followed(imported: str, source: Path) -> None:
    (source / "pflcore/a.py").write_text(f"{imported}\n")

    def found(text: str) -> str:
        (source / "pflcore/b.py").write_text(text)
        return Code(source).fingerprint("pflcore.a")

    assert "pflcore.b " in found("B = 1\n") and found("B = 1\n") != found("B = 2\n")


def test_contents_are_compared_by_meaning_and_templates_by_all_their_text(source: Path) -> None:
    code, name = Code(source), "pipeline/templates/page.md.j2"
    known = code.fingerprint("pipeline.page")
    here = {module: path.read_bytes() for module, path in code.modules.items()} | {name: b"# {{ title }}\n"}
    assert code.altered(known, here) is None
    assert code.altered(known, {**here, "pflcore.base": b"BASE = 1  # one\n", "other": b"X = 2"}) is None
    assert code.altered(known, {**here, "pflcore.base": b"BASE = 2\n"}) == "pflcore.base"
    assert code.altered(known, {**here, name: b"# {{ title }}"}) == name
    del here["pflcore.base"]
    assert code.altered(known, here) == "pflcore.base"


SAME = [
    ("x = [1,\n 2]", "x = [1, 2]  # one"),
    ("x = 'a'", 'x = "a"'),
    ("'A docstring.'\nx = 1", "x = 1"),
    ("class A:\n 'A docstring.'\n x = 1", "class A:\n x = 1"),
]
OTHER = [
    *(("x = 1", f"x = {value}") for value in ("2", "1.0", "True")),
    ("x = 'a'", "x = b'a'"),
    ("x = None", "x = ..."),
    ("x = 1\n'Not a docstring.'", "x = 1"),
    ("def f(a, /): 0", "def f(a): 0"),
    ("x: int = 1", "x = 1"),
    ("import a.b", "from a import b"),
    ("x = '\\ud800'", "x = '\\ud801'"),
]


@pytest.mark.parametrize(("first", "then"), [*SAME, *OTHER])
def test_meaning_is_what_is_hashed(source: Path, first: str, then: str) -> None:
    def hashed(text: str) -> str:
        (source / "pflcore/alone.py").write_text(text, encoding="utf-8")
        return Code(source).fingerprint("pflcore.alone")

    assert (hashed(first) == hashed(then)) is ((first, then) in SAME)


def test_what_was_parsed_is_remembered_by_content(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, module, meaning = tmp_path / "known.json", source / "pflcore/part/own.py", fingerprint._meaning

    def read() -> tuple[str, int]:
        parsed: list[bytes] = []
        monkeypatch.setattr(fingerprint, "_meaning", lambda text: parsed.append(text) or meaning(text))
        code = Code(source, known)
        found = code.fingerprint("pflcore.part")
        code.remember()
        return found, len(parsed)

    first = Code(source).fingerprint("pflcore.part")
    assert read()[0] == first and read() == (first, 0)
    module.write_text(module.read_text() + "A = 1\n")
    edited, parsed = read()
    assert edited != first and parsed == 1
    known.write_text("{")
    assert read()[0] == edited


# --- a copy of the packages -----------------------------------------------------------------------------------------


def other_docstrings(text: str) -> str:
    """The module with every docstring replaced."""
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Expr(ast.Constant("Said in other words."))
    return ast.unparse(module)


FORMS: list[Callable[[str], str]] = [
    other_docstrings,  # in another layout, too
    lambda text: "# first\n" + text.replace("\ndef ", "\n# a comment\ndef ").replace("\n\n\n", "\n\n\n\n") + "\n# last\n",
]
STAGES = ("stage.describe", "stage.evaluate", "stage.report", "stage.index")  # all but those of the engine


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


class Copy:
    """A project compiled with a copy of the code, which can be edited."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source_folder() / package, self.source / package, ignore=ignored)
        self.project = make_project(folder / "project", {"specs/all.yaml": grid()})
        self.originals: dict[Path, str] = {}
        self.before = self.digests()

    def digests(self) -> dict[str, str]:
        """``kind.name`` → digest of each part of the code that the project needs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "source_folder", lambda: self.source)
            known = yaml.safe_load(compile_workspace(self.project.workspace()).files[CODE])
        engine = known.pop("engine")
        return {"engine": engine} | {f"{kind}.{name}": own[name] for kind, own in known.items() for name in own}

    def edit(self, path: Path, change: Callable[[str], str]) -> None:
        before = self.originals.setdefault(path, path.read_text(encoding="utf-8"))
        path.write_text(change(before), encoding="utf-8")
        assert change(before) != before

    def concerned(self) -> set[str]:
        """Whose digests differ from those at the beginning."""
        after = self.digests()
        assert set(after) == set(self.before)
        return {name for name, text in after.items() if text != self.before[name]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


@pytest.fixture
def copy(made: Copy) -> Iterator[Copy]:
    yield made
    while made.originals:
        path, text = made.originals.popitem()
        path.write_text(text, encoding="utf-8")


def test_what_a_stage_has_is_not_said_again_of_its_entries(copy: Copy) -> None:
    code = Code(source_folder())
    assert copy.before["stage.evaluate"] == text_hash(code.fingerprint("pipeline.stages.evaluate"))[:12]
    kinds = {name.partition(".")[0] for name in copy.before}
    assert kinds == {"engine", "stage", "dataset", "partition", "backbone", "method"}
    assert {f"method.{name}" for name in METHODS.names()} < copy.before.keys()
    trained = {*code.names(Engine.recorded(code).fingerprint("train"))}
    assert {"pflcore.engine.client", "pflcore.method"} <= trained

    def own(method: str) -> set[str]:
        return {*code.names(code.fingerprint(f"pflcore.methods.{method}", "pipeline.stages.train"))}

    fedprox, fedtp = own("fedprox"), own("fedtp")
    assert fedprox == {"pflcore.methods.fedprox"} and not fedtp & trained
    assert fedtp > {"pflcore.methods.fedtp", "pflcore.operators.hypernetworks"}


def test_cosmetics_are_not_seen(copy: Copy) -> None:
    for number, path in enumerate(sorted(copy.source.rglob("*.py"))):
        if path.stat().st_size:
            copy.edit(path, FORMS[number % 2])
    assert len(copy.originals) > 200 and copy.concerned() == set()


GENERATING = [f"method.{name}" for name in ("fedofa", "fedtp", "fedtp_fedrod", "pfedhn")]  # with pFedHN's hypernetwork
SIMPLE = [f"method.{name}" for name, module in SHARED["pflcore.methods"].items() if module == "simple"]


@pytest.mark.parametrize(
    ("module", "concerned"),
    [
        ("pflcore/engine/loop.py", []),  # the engine goes by its version
        ("pflcore/methods/simple.py", SIMPLE),
        ("pflcore/operators/hypernetworks.py", GENERATING),
        ("pflcore/backbones/convnet.py", ["backbone.convnet"]),
        ("pflcore/datasets/digits.py", ["dataset.digits"]),
        ("pflcore/partitions/dirichlet.py", ["partition.dirichlet"]),
        ("pflcore/protocols.py", ["stage.describe", "stage.evaluate", "stage.report"]),
        ("pipeline/report/drawing/sections.py", ["stage.describe", "stage.report"]),
        ("pipeline/report/templates/page.md.j2", ["stage.describe", "stage.report"]),
        ("pipeline/report/frame.py", ["stage.describe", "stage.evaluate", "stage.report"]),
        ("pipeline/compile/compiler.py", []),
        ("pflcore/artifacts.py", STAGES),
    ],
)
def test_whom_a_module_concerns(copy: Copy, module: str, concerned: list[str]) -> None:
    copy.edit(copy.source / module, lambda text: text + "\nADDED = 1\n")
    assert copy.concerned() == set(concerned)


STAGE_MODULES = [f"pipeline.stages.{kind}" for kind in ("data", "train", "evaluate", "report")]


@pytest.mark.parametrize(
    "root", ["pflcore.methods.fedtp", *(pytest.param(root, marks=pytest.mark.matrix) for root in STAGE_MODULES)]
)
def test_all_that_is_imported_is_in_the_fingerprint(root: str) -> None:
    program = f"import sys, {root}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    imported = {name for name in output.split() if name.partition(".")[0] in PACKAGES}
    assert root in imported and imported <= {*Code.names(Code(source_folder()).fingerprint(root))}


# --- the code of a stage --------------------------------------------------------------------------------------------


def test_runs_go_by_the_version_of_the_engine_and_what_is_of_their_own() -> None:
    run: Any = SimpleNamespace(
        dataset="digits", partition="iid", method="fedper", backbone="convnet", analyses=("rollout",)
    )

    def names(parts: list[Part]) -> list[str]:
        return [part.name for part in parts]

    assert names(code_of_run("data", run)) == ["engine", "dataset.digits"]
    assert names(code_of_run("partition", run)) == ["engine", "partition.iid"]
    train = code_of_run("train", run)
    assert names(train) == ["engine", "method.fedper", "backbone.convnet", "analysis.rollout"]
    assert train[1] == Part("method.fedper", "pflcore.methods.simple", "pipeline.stages.train")
    assert train[0].digest("whatever") == str(ENGINE_VERSION) and train[1].digest("a 1\n") == text_hash("a 1\n")[:12]
    table: Any = SimpleNamespace(counted=True, drawn=["curves", "tuning", "rollout"])
    other = SimpleNamespace(**{**vars(run), "method": "local", "analyses": ()})
    counted = names(code_of_evaluation(table, [run, other, run]))
    assert counted == ["stage.evaluate", *names(train), "method.local", "stage.counting"]
    table.counted = False
    assert names(code_of_evaluation(table, [run])) == ["stage.evaluate"]
    figures = [f"figure.{name}" for name in table.drawn if name in figure_names()]
    assert figures and names(code_of_report(table)) == ["stage.report", *figures]


def test_a_kept_result_is_known_by_versions_and_an_entry_of_a_study_by_its_source() -> None:
    code: Any = SimpleNamespace(outside=lambda root: "study.methods.own 12ab\n" if root.endswith(".own") else "")
    catalog: Any = SimpleNamespace(entry=lambda kind, name: SimpleNamespace(facts={"results_version": len(name)}))
    run: Any = SimpleNamespace(dataset="digits", partition="iid", method="own", backbone="convnet")
    expected = {"engine": str(ENGINE_VERSION), "dataset.digits": "6", "partition.iid": "3", "backbone.convnet": "7"}
    assert versions(code, catalog, run) == {**expected, "method.own": text_hash("study.methods.own 12ab\n")[:12]}
