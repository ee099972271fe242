"""Nothing is recorded under code, or for a record, that did not make it; and what a process imports is known."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from support.project import PATIENCE, make_project, results, spec, wait_for

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import PACKAGES, Code
from pipeline.compile.seal import sealed
from pipeline.compile.stage_code import ENGINE, RECORD, Engine, Part, code_of
from pipeline.running.board import Board, status_path
from pipeline.workspace import RECORDS

# --- code and stage files that are edited while runs are trained -----------------------------------------------------

EDITED, HELD = "pflcore/methods/corrections.py", "pflcore/engine/run.py"
# Where a round begins, and how it is held there.
_ROUND = "        round_ = self.round + 1\n"
_HOLD = """\
        import pathlib, time
        while self.round and pathlib.Path(f"hold-{self.method.name}").exists():
            time.sleep(0.01)
"""
_WEIGHT = ("0.5 * self.mu", "50 * self.mu")  # in the two versions of FedProx


class Laboratory:
    """A project with a copy of the packages, so that its code can be edited; training can be held in its middle."""

    def __init__(self, root):
        text = spec("{FedAvg: fedavg, FedProx: fedprox}", rounds=6)
        self.root, self.project = root, make_project(root, {"specs/tiny.yaml": text}, ["tiny"])
        for package in PACKAGES:
            shutil.copytree(source_folder() / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
        self.replace(HELD, _ROUND, _HOLD + _ROUND)
        code = Code(root)
        # As `make pins` does when the engine gives the numbers that are known.
        write_text(code.source / RECORD, Engine.on_disk(code).text)
        self.compile()

    def replace(self, name, before, after):
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        assert before in text, f"{name} has no {before!r}"
        path.write_text(text.replace(before, after, 1), encoding="utf-8")

    def edit(self):
        """Write the method's code as in the second version, and nothing else."""
        self.replace(EDITED, *_WEIGHT)

    def undo(self):
        """Write the method's code as in the first version."""
        self.replace(EDITED, *reversed(_WEIGHT))

    def compile(self):
        self.project.call("pfl", "compile", PYTHONPATH=str(self.root))

    def trained(self):
        """Return the methods of the runs that are there."""
        return {path.parent.name.split("-")[0] for path in self.root.glob("artifacts/runs/*/rounds.parquet")}

    def start(self, program):
        """Bring the runs up to date in the background: ``dvc repro`` with them as targets, or all by ``pfl run``."""
        shutil.rmtree(self.root / ".pfl/states", ignore_errors=True)  # what is repeated is trained again
        runs = [address for address in self.project.stages() if ":train@" in address]
        command = ["dvc", "repro", *runs] if program == "dvc" else ["pfl", "run", "-j", "1"]
        variables = {"PYTHONPATH": str(self.root), "PFL_DEVICE": "cpu", "PFL_CHECKPOINT_SECONDS": "0"}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=self.root, env=self.project.environment(**variables), **streams)

    @contextmanager
    def amid(self, program, method):
        """Yield while a run of all by ``dvc`` or ``pfl`` is held in the middle of a method's training."""
        hold = self.project.write(f"hold-{method}", "")
        process = self.start(program)
        wait_for(lambda: any(self.root.glob(f".pfl/checkpoints/{method}-*/round-*")), process)
        yield process
        hold.unlink()

    def settled(self):
        """Return all results under the code that lies there, as soon as nothing is left to do."""
        self.compile()
        process = self.start("pfl")
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
        return results(self.project)

    def anew(self):
        """Return what comes of the code that lies there where nothing is recorded."""
        for folder in (".dvc/cache", ".dvc/tmp", ".pfl/checkpoints", "artifacts", "reports"):
            shutil.rmtree(self.root / folder, ignore_errors=True)
        for lock in [self.root / "dvc.lock", *self.root.glob("stages/**/dvc.lock")]:
            lock.unlink()
        return self.settled()


@pytest.fixture
def laboratory(tmp_path):
    return Laboratory(tmp_path)


@pytest.mark.matrix
def test_other_code_or_a_record_edited_by_hand_is_not_trained(laboratory):
    with laboratory.amid("dvc", "fedavg") as process:
        laboratory.edit()
    output = process.communicate()[0]
    assert process.returncode == 255 and laboratory.trained() == {"fedavg"}
    assert "the code of method.fedprox was edited after this stage was compiled" in output
    laboratory.undo()
    path = laboratory.root / RECORDS  # another learning rate in the record of FedProx's run
    before, run, after = path.read_text(encoding="utf-8").partition('"fedprox-')
    path.write_text(before + run + after.replace('"lr": 0.1', '"lr": 0.9', 1), encoding="utf-8")
    output = laboratory.start("dvc").communicate()[0]
    assert "edited by hand; run `pfl compile`" in output and laboratory.trained() == {"fedavg"}
    assert laboratory.settled() == laboratory.anew()


@pytest.mark.matrix
def test_what_is_edited_and_compiled_while_it_trains_is_recorded_as_what_trained(laboratory):
    with laboratory.amid("pfl", "fedprox") as process:
        laboratory.edit()
        laboratory.compile()
    process.communicate()
    # The other code trains anew, and what was trained is found again under its own.
    second = laboratory.settled()
    laboratory.undo()
    first = laboratory.settled()
    made = Board.load(status_path(laboratory.project.workspace())).of_state("done")
    assert not [entry.name for entry in made if entry.kind == "train"]
    differ = [name for name in first if "/runs/" in name and first[name] != second.get(name)]
    assert {name.split("/")[2].partition("-")[0] for name in differ} == {"fedprox"}
    assert first == laboratory.anew()
    laboratory.edit()
    assert second == laboratory.anew()


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
        for requested in (seal, None):  # by hand it is that of the code that lies here
            with sealed(code, requested, ["in", "many"], content) as (current, _):
                assert current == seal
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
