"""Code and stage files that are edited while runs are trained, and whether what is recorded then is true.

A laboratory is a project with a copy of the packages in it, so that its code can be edited. It has two versions of one
method, knows what the runs give under each, and can hold a run in the middle of its training. Whatever happens then:
what DVC has recorded, in lock files and in its run cache, must be what that code gives for that record; and when all
has settled, what lies there as up to date must be what the code that lies there gives.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import Code
from pipeline.compile.stage_code import Engine
from support.project import PATIENCE, Project, make_project, spec

EDITED, ENGINE = "pflcore/methods/corrections.py", "pflcore/engine/run.py"
# Where a round begins, and how it is held there.
_ROUND = "        round_, members = self.round + 1, self._members\n"
_HOLD = """\
        import pathlib, time
        while self.round and pathlib.Path(f"hold-{self.method.name}").exists():
            time.sleep(0.01)
"""
_WEIGHT = ("0.5 * self.mu", "50 * self.mu")  # in the two versions of FedProx
Act = Callable[["Laboratory"], None]


@dataclass
class Laboratory:
    """A project whose code can be edited."""

    project: Project
    truth: dict[str, dict[str, str]] = field(default_factory=dict)  # version → run's method → hash of measurements
    commands: dict[str, list[str]] = field(default_factory=dict)  # command of a stage → versions that it belongs to
    made_from: dict[str, list[str]] = field(default_factory=dict)  # command and inputs of a stage → hashes of outputs

    @classmethod
    def make(cls, folder: Path, rounds: int) -> Laboratory:
        """Return a project with two runs, trained under both versions of the packages; the first lies there."""
        project = make_project(
            folder, {"specs/tiny.yaml": spec("{FedAvg: fedavg, FedProx: fedprox}", rounds=rounds)}, ["tiny"]
        )
        project.write(".gitignore", "__pycache__/\n/artifacts/\n/reports/\n.pfl/\n.dvc/\ndvc.lock\n")
        for package in ("pflcore", "pipeline"):
            shutil.copytree(source_folder() / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        made = cls(project)
        made._replace(ENGINE, _ROUND, _HOLD + _ROUND)
        made.accept()
        made.call("git", "init", "-q", "-b", "first")
        for version, change in (("first", lambda: None), ("second", made.edit)):
            change()
            made.compile()
            made.call("git", "checkout", "-q", "-B", version)
            made.call("git", "add", "-A")
            done = made.call("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", version)
            assert done.returncode == 0, done.stdout + done.stderr
        for version in ("second", "first"):
            made.call("git", "checkout", "-q", version)
            made.settle("pfl")
            made.truth[version] = made.results()
            made.made_from |= {_inputs(entry): _outputs(entry) for entry in made.entries()}
            for stage in project.stages().values():
                made.commands.setdefault(stage["cmd"], []).append(version)
            for left in (".dvc/cache", ".dvc/tmp", ".pfl/checkpoints", "artifacts"):
                shutil.rmtree(folder / left, ignore_errors=True)
            for lock in [folder / "dvc.lock", *folder.glob("stages/**/dvc.lock")]:
                lock.unlink(missing_ok=True)
        made.call("dvc", "repro", *made.stages("partition", "describe"))
        first, second = made.truth["first"], made.truth["second"]
        assert first["fedavg"] == second["fedavg"] and first["fedprox"] != second["fedprox"]
        project.write(".pfl/truth.json", json.dumps([made.truth, made.commands, made.made_from]))
        return made

    @classmethod
    def found(cls, folder: Path) -> Laboratory:
        """Return the one that has been made in a folder."""
        return cls(Project(folder), *json.loads((folder / ".pfl/truth.json").read_text(encoding="utf-8")))

    def copy(self, folder: Path) -> Laboratory:
        """Return the same in another place, with nothing trained yet."""
        shutil.copytree(self.project.root, folder, ignore=shutil.ignore_patterns("tmp", "warm"), symlinks=True)
        return Laboratory.found(folder)

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.project.root), "PFL_DEVICE": "cpu", "PFL_CHECKPOINT_SECONDS": "0"}

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        return self.project.call(*command, **self.environment)

    def _replace(self, name: str, before: str, after: str) -> None:
        path = self.project.root / name
        text = path.read_text(encoding="utf-8")
        assert before in text, f"{name} has no {before!r}"
        path.write_text(text.replace(before, after, 1), encoding="utf-8")

    def edit(self) -> None:
        """Write the method's code as in the second version, and nothing else."""
        self._replace(EDITED, *_WEIGHT)

    def undo(self) -> None:
        """Write the method's code as in the first version."""
        self._replace(EDITED, *reversed(_WEIGHT))

    def accept(self) -> None:
        """Record the engine as `make pins` does when it gives the numbers that are known."""
        code = Code(self.project.root)
        Engine.on_disk(code).write(code)

    def compile(self) -> None:
        self.call("pfl", "compile")

    @property
    def version(self) -> str:
        """Which of the versions lies there."""
        return "second" if _WEIGHT[1] in (self.project.root / EDITED).read_text(encoding="utf-8") else "first"

    def results(self) -> dict[str, str]:
        """Return run's method → hash of its measurements, of the runs that are there."""
        found = {path.parent.name: path for path in self.project.root.glob("artifacts/runs/*/rounds.parquet")}
        md5 = {name: hashlib.md5(path.read_bytes(), usedforsecurity=False) for name, path in found.items()}
        return {name.split("-")[0]: hash_.hexdigest() for name, hash_ in md5.items()}

    def stages(self, *names: str) -> list[str]:
        """Return the addresses of the federation's stages whose names begin so."""
        return [address for address in self.project.stages() if address.rpartition(":")[2].startswith(names)]

    def start(self, program: str) -> subprocess.Popen[str]:
        """Bring the runs up to date in the background: ``dvc repro`` with them as targets, or all by ``pfl run``."""
        shutil.rmtree(self.project.root / ".pfl/states", ignore_errors=True)  # what is repeated is trained again
        command = ["dvc", "repro", *self.stages("train@")] if program == "dvc" else ["pfl", "run", "-j", "1"]
        environment, pipe = self.project.environment(**self.environment), subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.project.root, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )

    @contextmanager
    def amid(self, program: str, method: str) -> Iterator[subprocess.Popen[str]]:
        """Yield while a run of all by ``dvc`` or ``pfl`` is held in the middle of a method's training."""
        hold = self.project.write(f"hold-{method}", "")
        process, until = self.start(program), time.monotonic() + PATIENCE
        while not any(self.project.root.glob(f".pfl/checkpoints/{method}-*/round-*")):
            assert process.poll() is None and time.monotonic() < until, process.communicate()[0]
            time.sleep(0.01)
        yield process
        hold.unlink()

    def settle(self, program: str = "dvc") -> None:
        """Call until nothing is left to do."""
        said = []
        while len(said) < 5:
            process = self.start(program)
            said.append(complaint(process.communicate(timeout=PATIENCE)[0]))
            if process.returncode == 0:
                return
        raise AssertionError(f"it does not settle: {said}")

    def entries(self) -> list[Any]:
        """Return what DVC has recorded of stages, in lock files and the run cache."""
        root = self.project.root
        locks = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in root.glob("stages/**/dvc.lock")]
        entries = [entry for lock in locks for entry in lock["stages"].values()]
        cached = [path for path in root.glob(".dvc/cache/runs/*/*/*") if path.is_file()]
        entries += [yaml.safe_load(path.read_text(encoding="utf-8")) for path in cached]
        return [entry for entry in entries if entry["cmd"] != "pfl stage guard"]

    def wrongly_recorded(self) -> list[str]:
        """Return what DVC has recorded that is not true, which it finds by commands and inputs."""
        found = set()
        for entry in self.entries():
            if not entry["cmd"].startswith("pfl stage train "):
                if self.made_from.get(_inputs(entry), _outputs(entry)) != _outputs(entry):
                    found.add(f"not what its inputs give: {entry['cmd']}")
                continue
            method, versions = entry["cmd"].split()[3].split("-")[0], self.commands.get(entry["cmd"], [])
            made = next(out["md5"] for out in entry["outs"] if out["path"].endswith("rounds.parquet"))
            if made not in {self.truth[version][method] for version in versions}:
                found.add(f"{method} of {' and '.join(versions) or 'a command that nobody compiled'} is {made[:6]}")
        return sorted(found)

    def faults(self, program: str = "dvc") -> list[str]:
        """Return what is recorded and not true, now and when all has settled; and what then lies there and is not."""
        found = {*self.wrongly_recorded()}
        self.settle(program)
        for method, result in self.results().items():
            if result != self.truth[self.version][method]:
                found.add(f"{method}, up to date under the {self.version} code, is {result[:6]}")
        return sorted({*found, *self.wrongly_recorded()})


def _inputs(entry: Any) -> str:
    return json.dumps([entry["cmd"], sorted((dep["path"], dep["md5"]) for dep in entry["deps"])])


def _outputs(entry: Any) -> list[str]:
    return [out["md5"] for out in sorted(entry["outs"], key=lambda out: str(out["path"]))]


def then(*acts: Act) -> Act:
    """Return one after the other."""
    return lambda laboratory: [act(laboratory) for act in acts][-1]  # type: ignore[func-returns-value]


def complaint(output: str) -> str:
    """Return what ``pfl`` said of a failure, in what DVC or a runner printed."""
    lines = re.findall(r"^(?:pfl: |FAILED |ERROR: )(.*)$", output, re.MULTILINE)
    return lines[0] if lines else output.strip().rpartition("\n")[2]
