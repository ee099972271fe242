"""Which code stages depend on: what fingerprints see, whom an edit concerns, and the engine under its version."""

import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml
from support.mistakes import line_of, refuses
from support.project import make_project, spec

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pflcore.methods import METHODS
from pflcore.registry import files_of
from pipeline.cli.commands import compile_
from pipeline.compile import compiler
from pipeline.compile import stage_code as code
from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import PACKAGES, Code, text_hash
from pipeline.compile.stage_code import RECORD, STAGES, Engine, Part, untested
from pipeline.running.options import Request, RunOptions
from pipeline.stages import guard
from pipeline.workspace import CODE

SAME = [
    ("x = [1,\n 2]", "x = [1, 2]  # one"), ("x = 'a'", 'x = "a"'), ("'A docstring.'\nx = 1", "x = 1"),
    ("class A:\n 'A docstring.'\n x = 1", "class A:\n x = 1"),
]  # fmt: skip
OTHER = [
    *(("x = 1", f"x = {value}") for value in ("2", "1.0", "True")), ("x = 'a'", "x = b'a'"), ("x = None", "x = ..."),
    ("x = 1\n'Not a docstring.'", "x = 1"), ("def f(a, /): 0", "def f(a): 0"), ("x: int = 1", "x = 1"),
    ("import a.b", "from a import b"), ("x = '\\ud800'", "x = '\\ud801'"),
]  # fmt: skip


def names(fingerprint):
    return [line.split()[0] for line in fingerprint.splitlines()]


def test_meaning_is_what_is_hashed_and_remembered_by_content(tmp_path):
    cache, module = tmp_path / "known.json", tmp_path / "pflcore/part/base.py"
    module.parent.mkdir(parents=True)

    def hashed(text, file=None):
        module.write_text(text, encoding="utf-8")
        parsed = Code(tmp_path, file)
        fingerprint = parsed.fingerprint("pflcore.part.base")
        parsed.save_cache()
        return fingerprint

    assert [pair for pair in (*SAME, *OTHER) if hashed(pair[0]) == hashed(pair[1])] == SAME
    first = hashed("BASE = 1\n", cache)
    parsed = cache.read_text()
    assert hashed("BASE = 1\n") == first == hashed("BASE = 1\n", cache) and cache.read_text() == parsed
    assert hashed("BASE = 2\n", cache) != first and len(cache.read_text()) > len(parsed)
    cache.write_text("{")
    assert hashed("BASE = 1\n", cache) == first
    for form in ("import pflcore.part.base", "from . import base", "from .base import BASE", "from ..part import base"):
        (tmp_path / "pflcore/part/a.py").write_text(f"{form}\nimport torch\n")
        all_, own = (Code(tmp_path).fingerprint("pflcore.part.a", without) for without in (None, "pflcore.part.base"))
        assert (names(all_), names(own)) == (["pflcore.part.a", "pflcore.part.base"], ["pflcore.part.a"])


def test_all_that_is_imported_is_in_the_fingerprint():
    root = "pflcore.methods.hypernetworks"
    program = f"import sys, {root}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    imported = {name for name in output.split() if name.partition(".")[0] in PACKAGES}
    assert root in imported and imported <= {*names(Code(source_folder()).fingerprint(root))}


# --- a copy of the packages -----------------------------------------------------------------------------------------


class Copy:
    """A project compiled with a copy of the code, which can be edited."""

    def __init__(self, folder):
        self.source, self.originals = folder / "source", {}
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source_folder() / package, self.source / package, ignore=ignored)
        methods = ", ".join(f"{name}: {name}" for name in METHODS.names())
        self.project = make_project(folder / "project", {"specs/all.yaml": spec(f"{{{methods}}}", backbone="tiny_vit")})
        self.before = self.digests()

    def digests(self):
        """Return ``kind.name`` → digest of each part of the code that the project needs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "source_folder", lambda: self.source)
            parts = yaml.safe_load(compiler.compile_workspace(self.project.workspace()).files[CODE])
        engine = parts.pop("engine")
        return {"engine": engine} | {
            f"{kind}.{name}": digests[name] for kind, digests in parts.items() for name in digests
        }

    def edit(self, name, change):
        path = self.source / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(change(self.originals.setdefault(path, before)), encoding="utf-8")

    def add(self, name, line="EDITED = 1"):
        self.edit(name, lambda text: f"{text}\n{line}\n")

    def accept(self):
        """Record what `make pins` does when the numbers are as known."""
        self.edit(RECORD, lambda text: Engine.on_disk(Code(self.source)).text)

    def untested(self):
        return str(untested(Code(self.source)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp("copy"))


@pytest.fixture
def copy(made):
    yield made
    while made.originals:
        path, text = made.originals.popitem()
        path.write_text(text, encoding="utf-8")


SIMPLE = [f"method.{name}" for name, module in files_of("pflcore.methods").items() if module == "simple"]
CONCERNED = {
    "pflcore/engine/loop.py": [],  # the engine goes by its version
    "pflcore/methods/simple.py": SIMPLE,
    "pflcore/operators/hypernetworks.py": ["method.fedofa", "method.fedtp", "method.fedtp_fedrod", "method.pfedhn"],
    "pflcore/partitions/iid.py": ["partition.iid"],
    "pipeline/report/templates/page.md.j2": ["stage.describe", "stage.report"],
    "pipeline/report/frame.py": ["stage.describe", "stage.evaluate", "stage.report"],
    "pipeline/compile/compiler.py": [],
}


@pytest.mark.parametrize("module", CONCERNED)
def test_whom_a_module_concerns(copy, module):
    copy.add(module)
    assert {name for name, digest in copy.digests().items() if digest != copy.before[name]} == {*CONCERNED[module]}


def test_the_code_of_stages_and_the_versions_of_results():
    entries = {"dataset": "digits", "partition": "iid", "method": "fedper", "backbone": "convnet"}
    entries |= {"features": None, "condition": ""}
    run = SimpleNamespace(**entries, analyses=["rollout"], encoder=("resnet50", {}))
    other = SimpleNamespace(**{**entries, "method": "own"}, analyses=[])
    attacked = SimpleNamespace(**{**entries, "condition": "attack"}, analyses=[])
    shown, counted = (SimpleNamespace(counted=counted, drawn=["curves", "rollout"]) for counted in (False, True))
    train = code.code_of_run("train", run)
    for parts, names in (
        (code.code_of_run("data", run), "engine dataset.digits"),
        (code.code_of_run("features", run), "engine backbone.resnet50"),
        (code.code_of_run("partition", run), "engine partition.iid"),
        (train, trained := "engine method.fedper backbone.convnet analysis.rollout"),
        (code.code_of_run("train", attacked), "engine method.fedper backbone.convnet condition.attack"),
        (code.code_of_evaluation(shown, [run, other]), "stage.evaluate"),  # or else the models are built for it
        (code.code_of_evaluation(counted, [run, other]), f"stage.evaluate {trained} method.own stage.counting"),
        (code.code_of_report(shown), "stage.report figure.rollout"),
    ):
        assert " ".join(part.name for part in parts) == names
    assert train[1] == Part("method.fedper", "pflcore.methods.simple", "pipeline.stages.train")
    # Of an entry of a study its source stands for the version.
    source = SimpleNamespace(outside=lambda root: "study.methods.own 12ab\n" if root.endswith(".own") else "")
    catalog = SimpleNamespace(entry=lambda kind, name: SimpleNamespace(facts={"results_version": len(name)}))
    expected = {"engine": str(ENGINE_VERSION), "dataset.digits": "6", "partition.iid": "3", "backbone.convnet": "7"}
    own = {"method.own": text_hash("study.methods.own 12ab\n")[:12]}
    assert code.versions(source, catalog, other) == expected | own
    encoded = SimpleNamespace(**{**vars(other), "features": {"weights": "w"}, "encoder": ("resnet50", {})})
    assert code.versions(source, catalog, encoded) == expected | own | {"backbone.resnet50": "8"}
    assert code.versions(source, catalog, attacked)["condition.attack"] == "6"


def test_the_record_of_the_engine(copy):
    disk = Code(source_folder())
    engine = Engine.recorded(disk)
    assert engine == Engine.on_disk(disk) and untested(disk) is None
    for damage in ("", engine.text + "pflcore.more 1234567890123456 train\n"):  # as if merged without a conflict
        copy.edit(RECORD, lambda text, damage=damage: damage)
        assert "merged or edited by hand; take one that was committed" in line_of(copy.untested)
    copy.edit(RECORD, lambda text: replace(engine, title="engine version 1").text)
    assert copy.untested().startswith("pflcore was edited")
    copy.accept()
    copy.add("pflcore/engine/new.py", "")
    assert copy.untested() == "None"  # nobody imports it
    copy.add("pflcore/engine/run.py", "import pflcore.engine.new")
    assert copy.untested().startswith("pflcore.engine.new was edited")
    copy.accept()
    (copy.source / "pflcore/engine/new.py").unlink()
    assert copy.untested().startswith("pflcore.engine.new was edited")


def test_an_edited_engine_is_refused_until_it_is_tested_and_then_makes_nothing_stale(
    copy, tmp_path, monkeypatch, capsys
):
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]")}, default=["tiny"])
    workspace = project.workspace()
    project.compile()
    before, stages = project.generated(), project.stages()
    monkeypatch.setattr(compiler, "source_folder", lambda: copy.source)
    monkeypatch.chdir(project.root)
    copy.add("pflcore/groups.py")
    copy.accept()
    assert guard.run(workspace).endswith("stages are up to date") and project.generated() == before
    copy.add("pflcore/groups.py", "MORE = 2")
    copy.add("pflcore/methods/simple.py")  # which would be compiled
    for act in (guard.run, lambda place: Request.compiled(place, RunOptions()), lambda place: compile_(check=True)):
        refuses(r"^pflcore\.groups was edited, and results may .*: type `make pins`", act, workspace)
        assert project.generated() == before
    compile_(check=False)
    out, err = capsys.readouterr()
    assert out == "1 runs: 1 code digest changed\n" and err.startswith("pfl: pflcore.groups was edited")
    copy.accept()
    assert guard.run(workspace).endswith("up to date")
    with monkeypatch.context() as patch, pytest.raises(UserError, match="1 code digest changed"):
        patch.setattr(code, "ENGINE_VERSION", 99)
        guard.run(workspace)
    changed = {one["cmd"].split()[2] for name, one in project.stages().items() if one != stages[name]}
    assert changed == set(STAGES) - {"features"}  # all that the engine makes here
