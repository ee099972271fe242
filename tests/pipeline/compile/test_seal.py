"""What a stage makes sure of before and after its work."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.project import BIN, make_project, spec

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import Code
from pipeline.compile.seal import sealed
from pipeline.compile.stage_code import ENGINE, Engine, Part, code_of

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
