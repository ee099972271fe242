"""Nothing is recorded under code, or for a record, that did not make it; and what a process imports is known."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import yaml
from filelock import FileLock
from support.project import BIN, PATIENCE, Project, make_project, spec, wait_for

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import Code
from pipeline.compile.seal import sealed
from pipeline.compile.stage_code import ENGINE, Engine, Part, code_of
from pipeline.workspace import RECORDS

# --- code and stage files that are edited while runs are trained -----------------------------------------------------

EDITED, HELD = "pflcore/methods/corrections.py", "pflcore/engine/run.py"
# Where a round begins, and how it is held there.
_ROUND = "        round_, members = self.round + 1, self.draws.members\n"
_HOLD = """\
        import pathlib, time
        while self.round and pathlib.Path(f"hold-{self.method.name}").exists():
            time.sleep(0.01)
"""
_WEIGHT = ("0.5 * self.mu", "50 * self.mu")  # in the two versions of FedProx


class Laboratory:
    """A project with a copy of the packages, so that its code can be edited, and what it knows.

    It has two versions of one method, and can hold a run in the middle of its training. Whatever is edited, DVC's lock
    files and run cache name the results that the recorded code gives. When nothing is left to do, the results on disk
    are those of the code on disk.

    `truth`: version → method → hash of its run's measurements. `made`: key of a stage → hashes of its outputs. The key
    of a training is its command, that of another stage its command and the hashes of its inputs.
    """

    def __init__(self, project, truth=None, made=None):
        self.project, self.root, self.truth, self.made = project, project.root, truth or {}, made or {}

    @classmethod
    def make(cls, folder, rounds):
        """Return a project with two runs, trained under both versions of the packages; the first lies there."""
        specs = {"specs/tiny.yaml": spec("{FedAvg: fedavg, FedProx: fedprox}", rounds=rounds)}
        made = cls(make_project(folder, specs, ["tiny"]))
        made.project.write(".gitignore", "__pycache__/\n/artifacts/\n/reports/\n.pfl/\n.dvc/\ndvc.lock\n")
        for package in ("pflcore", "pipeline"):
            shutil.copytree(source_folder() / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        made._replace(HELD, _ROUND, _HOLD + _ROUND)
        code = Code(folder)
        Engine.on_disk(code).write(code)  # as `make pins` does when the engine gives the numbers that are known
        made.call("git", "init", "-q", "-b", "first")
        for version in ("first", "second"):
            if version == "second":
                made.edit()
            made.compile()
            made.call("git", "checkout", "-q", "-B", version)
            made.call("git", "add", "-A")
            made.project.succeed("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", version)
        for version in ("second", "first"):
            made.call("git", "checkout", "-q", version)
            made.settle("pfl")
            made.truth[version] = made.results()
            made.made |= {_key(entry): _outputs(entry) for entry in made.entries()}
            for left in (".dvc/cache", ".dvc/tmp", ".pfl/checkpoints", "artifacts"):
                shutil.rmtree(folder / left, ignore_errors=True)
            for lock in [folder / "dvc.lock", *folder.glob("stages/**/dvc.lock")]:
                lock.unlink(missing_ok=True)
        made.call("dvc", "repro", *made.stages("partition", "describe"))
        first, second = made.truth["first"], made.truth["second"]
        assert first["fedavg"] == second["fedavg"] and first["fedprox"] != second["fedprox"]
        made.project.write(".pfl/truth.json", json.dumps([made.truth, made.made]))
        return made

    @classmethod
    def found(cls, folder):
        """Return the one that has been made in a folder."""
        return cls(Project(folder), *json.loads((folder / ".pfl/truth.json").read_text(encoding="utf-8")))

    def copy(self, folder):
        """Return the same in another place, with nothing trained yet."""
        shutil.copytree(self.root, folder, ignore=shutil.ignore_patterns("tmp", "warm"), symlinks=True)
        return Laboratory.found(folder)

    @property
    def environment(self):
        return {"PYTHONPATH": str(self.root), "PFL_DEVICE": "cpu", "PFL_CHECKPOINT_SECONDS": "0"}

    def call(self, *command):
        return self.project.call(*command, **self.environment)

    def _replace(self, name, before, after):
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        assert before in text, f"{name} has no {before!r}"
        path.write_text(text.replace(before, after, 1), encoding="utf-8")

    def edit(self):
        """Write the method's code as in the second version, and nothing else."""
        self._replace(EDITED, *_WEIGHT)

    def undo(self):
        """Write the method's code as in the first version."""
        self._replace(EDITED, *reversed(_WEIGHT))

    def compile(self):
        self.call("pfl", "compile")

    def tamper(self):
        """Write another learning rate into the record of FedProx's run."""
        path = self.root / RECORDS
        before, run, after = path.read_text(encoding="utf-8").partition('"fedprox-')
        path.write_text(before + run + after.replace('"lr": 0.1', '"lr": 0.9', 1), encoding="utf-8")

    @property
    def version(self):
        """Which of the versions lies there."""
        return "second" if _WEIGHT[1] in (self.root / EDITED).read_text(encoding="utf-8") else "first"

    def results(self):
        """Return run's method → hash of its measurements, of the runs that are there."""
        paths = self.root.glob("artifacts/runs/*/rounds.parquet")
        return {path.parent.name.split("-")[0]: hashlib.md5(path.read_bytes()).hexdigest() for path in paths}

    def stages(self, *names):
        """Return the addresses of the federation's stages whose names begin so."""
        return [address for address in self.project.stages() if address.rpartition(":")[2].startswith(names)]

    def start(self, program):
        """Bring the runs up to date in the background: ``dvc repro`` with them as targets, or all by ``pfl run``."""
        shutil.rmtree(self.root / ".pfl/states", ignore_errors=True)  # what is repeated is trained again
        command = ["dvc", "repro", *self.stages("train@")] if program == "dvc" else ["pfl", "run", "-j", "1"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=self.root, env=self.project.environment(**self.environment), **streams)

    @contextmanager
    def amid(self, program, method):
        """Yield while a run of all by ``dvc`` or ``pfl`` is held in the middle of a method's training."""
        hold = self.project.write(f"hold-{method}", "")
        process = self.start(program)
        wait_for(lambda: any(self.root.glob(f".pfl/checkpoints/{method}-*/round-*")), process)
        yield process
        hold.unlink()

    def settle(self, program="dvc"):
        """Call until nothing is left to do."""
        said = []
        while len(said) < 5:
            process = self.start(program)
            said.append(complaint(process.communicate(timeout=PATIENCE)[0]))
            if process.returncode == 0:
                return
        raise AssertionError(f"it does not settle: {said}")

    def entries(self):
        """Return what DVC has recorded of stages, in lock files and the run cache."""
        cached = [path for path in self.root.glob(".dvc/cache/runs/*/*/*") if path.is_file()]
        entries = [yaml.safe_load(path.read_bytes()) for path in cached]
        for path in self.root.glob("stages/**/dvc.lock"):
            entries += yaml.safe_load(path.read_bytes())["stages"].values()
        return [entry for entry in entries if entry["cmd"] != "pfl stage guard"]

    def wrongly_recorded(self):
        """Return what DVC has recorded that is not true, or of training that nobody compiled."""
        wrong = []
        for entry in self.entries():
            unknown = [] if _trains(entry) else _outputs(entry)
            if self.made.get(_key(entry), unknown) != _outputs(entry):
                wrong.append(f"{entry['cmd']} gave {_outputs(entry)}")
        return sorted(wrong)

    def faults(self, program="dvc"):
        """Return what is recorded and not true, now and when all has settled; and what then lies there and is not."""
        found = {*self.wrongly_recorded()}
        self.settle(program)
        for method, result in self.results().items():
            if result != self.truth[self.version][method]:
                found.add(f"{method}, up to date under the {self.version} code, is {result[:6]}")
        return sorted({*found, *self.wrongly_recorded()})


def _trains(entry):
    return entry["cmd"].startswith("pfl stage train ")


def _key(entry):
    if _trains(entry):
        return entry["cmd"]
    return json.dumps([entry["cmd"], sorted((dep["path"], dep["md5"]) for dep in entry["deps"])])


def _outputs(entry):
    return [out["md5"] for out in sorted(entry["outs"], key=lambda out: out["path"])]


def complaint(output):
    """Return what ``pfl`` said of a failure, in what DVC or a runner printed."""
    lines = re.findall(r"^(?:pfl: |FAILED |ERROR: )(.*)$", output, re.MULTILINE)
    return lines[0] if lines else output.strip().rpartition("\n")[2]


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
