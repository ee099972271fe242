"""Fingerprints of code: what they see, what they do not see, what is remembered, and whom an edit concerns."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.project import make_project, spec

from pflcore import ENGINE_VERSION
from pflcore.methods import METHODS
from pipeline.compile import compiler, fingerprint
from pipeline.compile.compiler import compile_workspace, source_folder
from pipeline.compile.engine import Engine
from pipeline.compile.fingerprint import PACKAGES, Code
from pipeline.compile.seal import text_hash
from pipeline.compile.stage_code import StageCode

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
        "pipeline/page.py": "import pflcore.base as base\n",
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

    def named(*roots: str, without: str | None = None) -> list[str]:
        return code.names(code.fingerprint(*roots, without=without))

    part = ["pflcore", "pflcore.base", "pflcore.part", "pflcore.part.own"]
    assert named("pflcore.part.own") == named("pflcore.part") == part
    assert named("pflcore.part.deep.low") == sorted([*part, "pflcore.part.deep.low"])
    assert named("pflcore.alone") == ["pflcore", "pflcore.alone"]
    page = ["pflcore", "pflcore.base", "pipeline", "pipeline.page", "pipeline/templates/page.md.j2"]
    assert named("pipeline.page") == page
    assert named("pipeline.page", "pflcore.alone") == [*page[:1], "pflcore.alone", *page[1:]]
    assert named("pipeline.page", without="pflcore.base") == page[2:]
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
    code = Code(source)
    known = code.fingerprint("pipeline.page", "pflcore.alone")
    on_disk, name = code.on_disk(known), "pipeline/templates/page.md.j2"
    assert on_disk["pflcore.alone"] == b"ALONE = 1\n" and on_disk[name] == b"# {{ title }}\n"
    assert code.altered(known, on_disk) is None
    assert code.altered(known, {**on_disk, "pflcore.alone": b"ALONE = 1  # one\n", "other": b"X = 2"}) is None
    assert code.altered(known, {**on_disk, "pflcore.alone": b"ALONE = 2\n"}) == "pflcore.alone"
    assert code.altered(known, {**on_disk, name: b"# {{ title }}"}) == name
    (source / "pflcore/alone.py").unlink()
    assert Code(source).on_disk(known)["pflcore.alone"] == b""


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
def test_meaning_is_what_is_hashed(source: Path, first: str, then: str, same: bool) -> None:
    def hashed(text: str) -> str:
        (source / "pflcore/alone.py").write_text(text, encoding="utf-8")
        return Code(source).fingerprint("pflcore.alone")

    assert (hashed(first) == hashed(then)) is same


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
    before = known.read_text()
    edited, parsed = read()
    assert edited != first and parsed == 1
    assert set(json.loads(known.read_text())) > set(json.loads(before))  # what others use is not forgotten
    for damage in ("", "[]", "{", '{"2 a": 3}', '{"2 a": ["b", ["c"], "d"]}', "\udcff"):
        known.write_text(damage, errors="surrogateescape")
        assert read()[0] == edited
    entry = json.loads(known.read_text())
    known.write_text(json.dumps(entry | {f"2 {number}": ["0" * 16, []] for number in range(2000)}))
    module.write_text("A = 2\n")
    read()
    assert len(json.loads(known.read_text())) < 10  # of what is too much, none but what was used now


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
    lambda text: "# first\n" + text.replace("\ndef ", "\n# a comment\ndef ").replace("\n\n", "\n\n\n\n") + "\n# last\n",
]
STAGES = ("describe", "evaluate", "report", "index")  # all but those of the engine


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
        self.before = self.fingerprints()

    def fingerprints(self) -> dict[str, str]:
        """Name → text of each fingerprint that the project needs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "source_folder", lambda: self.source)
            files = compile_workspace(self.project.workspace()).files
        return {Path(name).stem: text for name, text in files.items() if name.startswith("stages/code/")}

    def edit(self, path: Path, change: Callable[[str], str]) -> None:
        before = self.originals.setdefault(path, path.read_text(encoding="utf-8"))
        path.write_text(change(before), encoding="utf-8")
        assert change(before) != before

    def concerned(self) -> set[str]:
        """The fingerprints that differ from those at the beginning."""
        after = self.fingerprints()
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


def test_the_copy_has_the_fingerprints_of_the_original(copy: Copy) -> None:
    assert copy.before["evaluate"] == Code(source_folder()).fingerprint("pipeline.stages.evaluate")
    kinds = {name.partition(".")[0] for name in copy.before}
    assert kinds == {"engine", *STAGES, "dataset", "partition", "backbone", "method"}
    assert {f"method.{name}" for name in METHODS.names()} < copy.before.keys()
    # What a stage has is not said again of its entries.
    modules = {name: {line.split()[0] for line in text.splitlines()} for name, text in copy.before.items()}
    trained = set(Engine.recorded(Code(copy.source)).fingerprint("train").split())
    assert {"pflcore.engine.trainer", "pflcore.method"} <= trained
    assert modules["method.fedprox"] == {"pflcore.methods.fedprox"}
    assert modules["method.fedtp"] > {"pflcore.methods.fedtp", "pflcore.operators.hypernetworks"}
    assert not any(trained & modules[name] for name in modules if name.startswith(("method.", "backbone.")))


def test_cosmetics_are_not_seen(copy: Copy) -> None:
    for number, path in enumerate(sorted(copy.source.rglob("*.py"))):
        if path.stat().st_size:
            copy.edit(path, FORMS[number % 2])
    assert len(copy.originals) > 200 and copy.concerned() == set()


GENERATING = [f"method.{name}" for name in ("fedofa", "fedtp", "fedtp_fedrod", "pfedhn")]  # with pFedHN's hypernetwork
IMPORTERS = [
    f"method.{path.stem}"
    for path in (source_folder() / "pflcore/methods").glob("*.py")
    if "pflcore.methods.fedavg" in path.read_text(encoding="utf-8") or path.stem == "fedavg"
]


@pytest.mark.parametrize(
    ("module", "concerned"),
    [
        ("pflcore/engine/loop.py", []),  # the engine goes by its version
        ("pflcore/methods/fedavg.py", IMPORTERS),
        ("pflcore/operators/hypernetworks.py", GENERATING),
        ("pflcore/backbones/convnet.py", ["backbone.convnet"]),
        ("pflcore/datasets/digits.py", ["dataset.digits"]),
        ("pflcore/partitions/dirichlet.py", ["partition.dirichlet"]),
        ("pflcore/protocols.py", ["evaluate", "report"]),
        ("pipeline/report/drawing/sections.py", ["describe", "report"]),
        ("pipeline/report/templates/report.md.j2", ["describe", "report"]),
        ("pipeline/compile/compiler.py", []),
        ("pflcore/artifacts.py", STAGES),
    ],
)
def test_whom_a_module_concerns(copy: Copy, module: str, concerned: list[str]) -> None:
    copy.edit(copy.source / module, lambda text: text + "\nADDED = 1\n")
    assert copy.concerned() == set(concerned)


@pytest.mark.parametrize(
    "roots",
    [
        pytest.param(("pipeline.stages.data", "pflcore.datasets.cifar10"), marks=pytest.mark.matrix),
        ("pipeline.stages.train", "pflcore.methods.fedtp", "pflcore.backbones.tiny_vit"),
        pytest.param(("pipeline.stages.evaluate",), marks=pytest.mark.matrix),
        pytest.param(("pipeline.stages.report", "pipeline.report.write"), marks=pytest.mark.matrix),
    ],
    ids=lambda roots: roots[0],
)
def test_all_that_is_imported_is_in_the_fingerprint(roots: tuple[str, ...]) -> None:
    program = f"import sys, {', '.join(roots)}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    imported = {name for name in output.split() if name.partition(".")[0] in PACKAGES}
    assert imported >= set(roots)
    assert imported <= {line.split()[0] for line in Code(source_folder()).fingerprint(*roots).splitlines()}


# --- what stands for the code of a stage ----------------------------------------------------------------------------


def test_runs_go_by_the_version_of_the_engine_and_what_is_of_their_own() -> None:
    code = StageCode(
        SimpleNamespace(  # type: ignore[arg-type]
            fingerprint=lambda root, without=None: f"{root} without {without}\n",
            outside=lambda root: "study.methods.own 12ab\n" if root.endswith(".own") else "",
        ),
        SimpleNamespace(entry=lambda kind, name: SimpleNamespace(facts={"results_version": len(name)})),  # type: ignore[arg-type]
    )
    run: Any = SimpleNamespace(
        dataset="digits", partition="iid", method="fedper", backbone="convnet", analyses=("rollout",), tuned=None
    )

    def paths(*names: str) -> list[str]:
        return [f"stages/code/{name}.txt" for name in names]

    assert code.of_run("data", run) == paths("engine", "dataset.digits")
    assert code.of_run("partition", run) == paths("engine", "partition.iid")
    train = paths("engine", "method.fedper", "backbone.convnet")
    assert code.of_run("train", run) == [*train, *paths("analysis.rollout")]
    assert code.of_stage("describe", ("partition", "iid")) == paths("describe", "partition.iid")
    assert code.of_figure("curves") == "stages/code/figure.curves.txt"
    assert code.texts["stages/code/engine.txt"] == f"engine version {ENGINE_VERSION}\n"
    assert code.texts["stages/code/method.fedper.txt"] == "pflcore.methods.fedper without pipeline.stages.train\n"
    run.analyses = ()
    other = SimpleNamespace(**{**vars(run), "method": "own"})
    assert code.of_counts([run, other, run]) == [*train, *paths("method.own", "counting")]
    # A kept result is known by versions; an entry of a study by its source.
    versions = {"engine": str(ENGINE_VERSION), "dataset.digits": "6", "partition.iid": "3", "backbone.convnet": "7"}
    assert code.versions(run) == {**versions, "method.fedper": "6"}
    assert code.versions(other) == {**versions, "method.own": text_hash("study.methods.own 12ab\n")[:12]}
