"""Nothing is recorded under code, or for a record, that did not make it; and what a process imports is known."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from support.editing import Laboratory, complaint
from support.project import BIN, make_project, spec

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import Code
from pipeline.compile.seal import sealed
from pipeline.compile.stage_code import ENGINE, Engine, Part, code_of


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    """A laboratory, made once for all of pytest's processes; not to be changed."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "laboratory"
    with FileLock(folder.with_suffix(".lock")):
        return Laboratory.found(folder) if folder.exists() else Laboratory.make(folder, rounds=6)


@pytest.fixture
def laboratory(original: Laboratory, tmp_path: Path) -> Laboratory:
    return original.copy(tmp_path / "copy")


@pytest.mark.matrix
def test_a_method_edited_while_another_trains_is_not_recorded_as_the_old_one(laboratory: Laboratory) -> None:
    with laboratory.amid("dvc", "fedavg") as process:
        laboratory.edit()
    output = process.communicate()[0]
    assert process.returncode == 255 and set(laboratory.results()) == {"fedavg"}
    assert complaint(output).startswith("the code of method.fedprox was edited after this stage was compiled")
    laboratory.undo()
    assert laboratory.faults() == []
    laboratory.call("git", "checkout", "-q", "second")  # the commands of evaluation and report are the same there
    laboratory.settle("pfl")
    assert laboratory.results() == laboratory.truth["second"] and laboratory.wrongly_recorded() == []


@pytest.mark.matrix
def test_what_is_edited_and_compiled_while_it_trains_is_recorded_as_what_trained(laboratory: Laboratory) -> None:
    with laboratory.amid("pfl", "fedprox") as process:
        laboratory.edit()
        laboratory.compile()
    output = process.communicate()[0]
    assert laboratory.wrongly_recorded() == [], output
    # It is there under the code that trained it, and the other code trains anew.
    assert laboratory.faults("pfl") == [] and laboratory.version == "second"
    laboratory.undo()
    laboratory.compile()
    assert laboratory.faults("pfl") == [] and laboratory.results() == laboratory.truth["first"]


@pytest.mark.matrix
def test_a_record_edited_by_hand_is_not_trained(laboratory: Laboratory) -> None:
    laboratory.tamper()
    process = laboratory.start("dvc")
    assert "edited by hand; run `pfl compile`" in complaint(process.communicate()[0])
    assert process.returncode == 255 and set(laboratory.results()) == {"fedavg"}
    laboratory.compile()
    assert laboratory.faults() == []


SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from pflcore import sources
package = Path(sys.argv[1])
sys.path.insert(0, str(package.parent))
sources.note("mine")
import mine.one
print(mine.one.VALUE, sources.loaded()["mine.one"])
# An edit of the same size within the same second, which Python's own bytecode does not notice.
(package / "one.py").write_text("VALUE = 2")
del sys.modules["mine.one"]
import mine.one
print(mine.one.VALUE, sources.loaded()["mine.one"])
"""


def test_what_is_imported_is_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name, text in {"__init__.py": "", "one.py": "VALUE = 1"}.items():
        (tmp_path / "mine" / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(source_folder())}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "mine")]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    assert done.stdout.splitlines() == ["1 b'VALUE = 1'", "2 b'VALUE = 2'"]


# --- what a stage makes sure of before and after its work -----------------------------------------------------------

ERRORS = Part("mine", "pflcore.errors")
PARTS = [Part(ENGINE, "pipeline.stages.partition"), ERRORS]
DIGEST = ERRORS.digest(ERRORS.fingerprint(Code(source_folder())))
INPUTS = ["in", "many"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("in", "many/a", "many/b/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("input")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_stage_is_of_the_code_that_its_command_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code, content, seal in (
        ([ERRORS], "0123abcd", f"0123abcd-{DIGEST}"),
        (PARTS, "", f"{ENGINE_VERSION}-{DIGEST}"),
    ):
        for given in (seal, None):  # by hand it is that of the code that lies here
            with sealed(code, given, INPUTS, content) as stage:
                stage.confirm()
            assert stage.seal == seal
    assert (folder / ".pfl/fingerprints.json").is_file(), "the next process need not parse it"
    for seal, named in (
        (f"0-{ENGINE_VERSION}-{'0' * 12}", "the code of mine"),
        (f"0-{ENGINE_VERSION + 1}-{DIGEST}", "the code of engine"),
        (f"1-{ENGINE_VERSION}-{DIGEST}", "its table"),
        (f"0-{ENGINE_VERSION}", "what it works with"),
    ):
        with pytest.raises(UserError, match=f"^{named} was edited after"), sealed(PARTS, seal, content="0"):
            pass
    engine = Engine.recorded(Code(source_folder()))
    other = {**engine.sources, "pflcore.method": "0000000000000000 train"}
    monkeypatch.setattr(Engine, "recorded", lambda code: replace(engine, sources=other))
    with sealed(code_of("data"), None):  # which does not import it
        pass
    message = r"^pflcore\.method was edited after regression runs had seen it; undo"
    with pytest.raises(UserError, match=message), sealed(code_of("train"), None):
        pass
    monkeypatch.setattr(Part, "fingerprint", lambda part, code: "pflcore.errors 0000000000000000\n")
    with pytest.raises(UserError, match=r"^pflcore\.errors was edited after this stage began"), sealed([ERRORS], None):
        pass


def test_a_replaced_input_is_noticed(folder: Path) -> None:
    message = "replaced while this stage read it"
    with pytest.raises(UserError, match=f"^in: {message}"), sealed([ERRORS], None, INPUTS):
        (folder / "many/later").write_text("of nobody")
        (folder / "in").write_text("inputs")
    with pytest.raises(UserError, match=f"^many/a: {message}"), sealed([ERRORS], None, INPUTS):
        path, other = folder / "many/a", folder / "other"
        other.write_text("INPUT")  # of the same size and time
        os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        other.replace(path)


def test_a_data_stage_does_not_import_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from pipeline.compile.seal import sealed; from pipeline.compile.stage_code import code_of\n"
        "with sealed(code_of('data'), None): pass\n"
        "print('torch' in sys.modules, 'pflcore.datasets._stand_in' in sys.modules)"
    )
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]")})
    done = project.call(str(BIN / "python"), "-c", program, PYTHONPATH=str(source_folder()))
    assert done.stdout == "False True\n", done.stderr
