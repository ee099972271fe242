"""Code and stage files that are edited while runs are trained, and whether what is recorded then is true.

A laboratory is a project with a copy of the packages in it, so that its code can be edited. It has two versions of one
method, knows what the runs give under each, and can hold a run in the middle of its training. Whatever is edited,
DVC's lock files and run cache name the results that the recorded code gives. When nothing is left to do, the results on
disk are those of the code on disk.
"""

import hashlib
import json
import re
import shutil
import subprocess
from contextlib import contextmanager

import yaml

from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import Code
from pipeline.compile.stage_code import Engine
from pipeline.workspace import RECORDS
from support.project import PATIENCE, Project, make_project, spec, wait_for

EDITED, ENGINE = "pflcore/methods/corrections.py", "pflcore/engine/run.py"
# Where a round begins, and how it is held there.
_ROUND = "        round_, members = self.round + 1, self.draws.members\n"
_HOLD = """\
        import pathlib, time
        while self.round and pathlib.Path(f"hold-{self.method.name}").exists():
            time.sleep(0.01)
"""
_WEIGHT = ("0.5 * self.mu", "50 * self.mu")  # in the two versions of FedProx


class Laboratory:
    """A project whose code can be edited, and what it knows.

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
        made._replace(ENGINE, _ROUND, _HOLD + _ROUND)
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
