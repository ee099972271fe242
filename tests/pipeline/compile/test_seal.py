"""Nothing is recorded under code, or for a record, that did not make it; and what a process imports is known."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from filelock import FileLock
from support.editing import Laboratory
from support.project import BIN, make_project, spec

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import Code
from pipeline.compile.seal import sealed
from pipeline.compile.stage_code import ENGINE, Engine, Part, code_of


@pytest.fixture
def laboratory(tmp_path, tmp_path_factory):
    """A copy of a laboratory that is made once for all of pytest's processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "laboratory"
    with FileLock(folder.with_suffix(".lock")):
        original = Laboratory.found(folder) if folder.exists() else Laboratory.make(folder, rounds=6)
    return original.copy(tmp_path / "copy")


@pytest.mark.matrix
def test_other_code_or_a_record_edited_by_hand_is_not_trained(laboratory):
    with laboratory.amid("dvc", "fedavg") as process:
        laboratory.edit()
    output = process.communicate()[0]
    assert process.returncode == 255 and set(laboratory.results()) == {"fedavg"}
    assert "the code of method.fedprox was edited after this stage was compiled" in output
    laboratory.undo()
    laboratory.tamper()
    output = laboratory.start("dvc").communicate()[0]
    assert "edited by hand; run `pfl compile`" in output and set(laboratory.results()) == {"fedavg"}
    laboratory.compile()
    assert laboratory.faults() == []


@pytest.mark.matrix
def test_what_is_edited_and_compiled_while_it_trains_is_recorded_as_what_trained(laboratory):
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


SCRIPT = """
import sys
from pathlib import Path
from pflcore import sources
sources.note("mine")
for text in ("VALUE = 1", "VALUE = 2"):  # an edit within the same second, which Python's own bytecode does not notice
    Path("mine/one.py").write_text(text)
    sys.modules.pop("mine.one", None)
    import mine.one
    print(mine.one.VALUE, sources.loaded()["mine.one"])
"""


def test_what_is_imported_is_what_was_read(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").touch()
    environment, command = {**os.environ, "PYTHONPATH": str(source_folder())}, [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=True)
    assert done.stdout.splitlines() == ["1 b'VALUE = 1'", "2 b'VALUE = 2'"]


# --- what a stage makes sure of before and after its work -----------------------------------------------------------

ERRORS = Part("mine", "pflcore.errors")
PARTS = [Part(ENGINE, "pipeline.stages.partition"), ERRORS]
DIGEST = ERRORS.digest(ERRORS.fingerprint(Code(source_folder())))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("in", "many/a", "many/b/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("input")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_stage_is_of_the_code_that_its_command_names(folder, monkeypatch):
    for code, content, seal in (([ERRORS], "0123ab", f"0123ab-{DIGEST}"), (PARTS, "", f"{ENGINE_VERSION}-{DIGEST}")):
        for given in (seal, None):  # by hand it is that of the code that lies here
            with sealed(code, given, ["in", "many"], content) as stage:
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
    other = replace(engine, sources={**engine.sources, "pflcore.method": "0000000000000000 train"})
    monkeypatch.setattr(Engine, "recorded", lambda code: other)
    with sealed(code_of("data"), None):  # which does not import it
        pass
    message = r"^pflcore\.method was edited after regression runs had seen it; undo"
    with pytest.raises(UserError, match=message), sealed(code_of("train"), None):
        pass
    monkeypatch.setattr(Part, "fingerprint", lambda part, code: "pflcore.errors 0000000000000000\n")
    with pytest.raises(UserError, match=r"^pflcore\.errors was edited after this stage began"), sealed([ERRORS], None):
        pass


@pytest.mark.parametrize("name", ["in", "many/a"])
def test_a_replaced_input_is_noticed(folder, name):
    message = f"^{name}: replaced while this stage read it"
    with pytest.raises(UserError, match=message), sealed([ERRORS], None, ["in", "many"]):
        (folder / "many/later").write_text("of nobody")
        path, other = folder / name, folder / "other"
        other.write_text("INPUT")  # of the same size and time
        os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        other.replace(path)


def test_a_data_stage_does_not_import_torch(tmp_path):
    program = (
        "import sys; from pipeline.compile.seal import sealed; from pipeline.compile.stage_code import code_of\n"
        "with sealed(code_of('data'), None): pass\n"
        "print('torch' in sys.modules, 'pflcore.datasets._stand_in' in sys.modules)"
    )
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]")})
    done = project.call(str(BIN / "python"), "-c", program, PYTHONPATH=str(source_folder()))
    assert done.stdout == "False True\n", done.stderr
