"""Runs of the train stage that are killed again and again, and what is left of them.

A run is trained by ``pfl stage train`` in a process group of its own, with workers and a checkpoint after every round.
SIGKILL leaves a process no time to do anything about it, so whatever it was writing stays as it is.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.spec.run import Run
from pipeline.stages import data, partition
from pipeline.workspace import dataset_path, partition_path, run_path
from support.project import CONVNET, Project, make_project

SMALL_VIT = "{name: tiny_vit, depth: 1, dim: 16, heads: 2, head_dim: 8, mlp_dim: 16, patch: 4, dropout: 0.1}"
# What can lie between two rounds: the shared model alone, personal parts, and what a server keeps of its own.
KINDS = {
    "fedavg": ("fedavg", CONVNET),
    "fedper": ("fedper", CONVNET),
    "fedtp": ("{name: fedtp, hidden: 16, layers: 1, server_momentum: 0.5}", SMALL_VIT),
}
PATIENCE = 300.0  # seconds that no process here needs; one that does hangs
REFUSALS = 100  # a tenth of a second apart
_GLANCE = 0.001  # seconds between two looks at the files; a checkpoint takes a few of them to write

Entry = tuple[Path, int]  # a file and the time of its last change


def spec(kind: str, rounds: int) -> str:
    """A spec with one run: handwritten digits, half of four uneven clients per round, with momentum."""
    method, backbone = KINDS[kind]
    return f"""\
title: {kind}
grid:
  base:
    dataset: digits
    partition: {{name: dirichlet, alpha: 0.5}}
    clients: 4
    backbone: {backbone}
    training:
      {{rounds: {rounds}, sample_rate: 0.5, local_epochs: 1, batch_size: 32, lr: 0.05, momentum: 0.5,
       save_weights: true}}
    evaluation: {{every: 2, window: 3, curve_every: 2}}
  axes:
    method: [{method}]
"""


@dataclass(frozen=True)
class Kill:
    """When to kill, and whom.

    Attributes:
        aim: ``instant`` is a time after the start. ``checkpoint`` waits for one that is being written, ``artifact``
            for the first sign of the run's final files.
        at: Seconds for an instant; for a checkpoint the round that the one before it must have reached.
        linger: Seconds between what was waited for and the kill.
        alone: The process alone, so that its workers have to notice; otherwise the whole group at once.
    """

    aim: Literal["instant", "checkpoint", "artifact"]
    at: float = 0.0
    linger: float = 0.0
    alone: bool = False


# Where a kill hit, as far as the files tell.
EARLY = "before the first checkpoint"  # that the killed process would have written
BETWEEN = "between checkpoints"
WRITING = "writing a checkpoint"  # it left half a file, or one that had no name yet
FINISHING = "writing the artifacts"  # or after them, while clearing up
HITS = (EARLY, BETWEEN, WRITING, FINISHING)


@dataclass
class Trial:
    """One run from its beginning to its end, with kills between.

    Attributes:
        hits: What each kill hit, one of :data:`HITS`.
        alone: How many of them left the workers alive.
        resumed: The round that each restart continued from; 0 is the beginning.
        refused: Restarts that ended at once because a process of the killed group still held the run.
        leftovers: Files that the killed processes began and nobody removed.
        faults: What must not be, one line each.
    """

    hits: list[str] = field(default_factory=list)
    alone: int = 0
    resumed: list[int] = field(default_factory=list)
    refused: int = 0
    leftovers: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Victim:
    """A project with a single run and its inputs.

    Args:
        folder: Where to make it.
        kind: One of :data:`KINDS`.
        rounds: How many to train.
    """

    def __init__(self, folder: Path, kind: str, rounds: int) -> None:
        self.project: Project = make_project(folder, {"specs/a.yaml": spec(kind, rounds)})
        self.project.compile()
        self.run: Run
        (self.run,) = self.project.compiled().runs.values()
        self.checkpoints = folder / ".pfl/checkpoints"  # with a folder for the run
        self.out = folder / run_path(self.run.id, "")
        dataset, clients = folder / dataset_path(self.run.data_id), folder / partition_path(self.run.federation_id)
        data.run(self.run.record["dataset"], dataset, folder / "data")
        partition.run(self.run, dataset, clients)

    def undisturbed(self) -> tuple[dict[str, str], float]:
        """Train without a kill: the hash of each final file by its name, and the seconds it took."""
        self._forget()
        started = time.monotonic()
        with ExitStack() as group:
            process = self._start(group)
            output, _ = process.communicate(timeout=PATIENCE)
        seconds = time.monotonic() - started
        if process.returncode:
            raise RuntimeError(output)
        return self._hashes(), seconds

    def killed(self, kills: Iterable[Kill], expected: dict[str, str]) -> Trial:
        """Train from the beginning, killed and restarted until complete, and compare.

        Args:
            kills: One per start, for as long as the run is not complete; after the last one, it is left in peace.
            expected: What :meth:`undisturbed` gave.
        """
        self._forget()
        trial, plan = Trial(), iter(kills)
        with ExitStack() as groups:
            while not self._attempt(next(plan, None), trial, groups):
                pass
        found = self._hashes()
        names = sorted(found.keys() | expected.keys())
        trial.faults += [f"{name} differs" for name in names if found.get(name) != expected.get(name)]
        files = {path for path, _ in self._files()}
        left = (path for path in sorted(files) if path.name.startswith("round-"))
        trial.faults += [f"{path.name} is still there" for path in left]
        trial.leftovers = sorted(path.name for path in files if _unfinished(path))
        return trial

    def _attempt(self, kill: Kill | None, trial: Trial, groups: ExitStack) -> bool:
        """Start once, and kill when it is time. True when the run is complete."""
        newest, before = self._newest(), self._files()
        process = self._start(groups)
        if kill and self._wait(process, kill, before):
            time.sleep(kill.linger)
            if kill.alone:
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        killed = process.returncode == -signal.SIGKILL
        if kill and kill.alone and killed:  # the next start happens while its workers may still be there
            groups.callback(_wait_for_workers, process, trial)
            output, trial.alone = "", trial.alone + 1
        else:
            output, _ = process.communicate(timeout=PATIENCE)
        if process.returncode == 2 and "another process is training this run" in output:
            trial.refused += 1
            if trial.refused > REFUSALS:
                raise RuntimeError(output)
            time.sleep(0.1)
            return False
        if process.returncode and not killed:
            raise RuntimeError(output)
        if trial.hits:
            trial.resumed.append(newest)
        if killed:
            trial.hits.append(self._hit(newest, before))
            return False
        told = re.search(r"continued from the checkpoint after round (\d+)", output)
        if "skipped" in output or (int(told[1]) if told else 0) != newest:
            trial.faults.append(f"did not continue from round {newest}: {output}")
        return True

    def _start(self, groups: ExitStack) -> subprocess.Popen[str]:
        """Begin to train. Nothing of it is left when `groups` is closed."""
        process = subprocess.Popen(
            ["pfl", "stage", "train", self.run.id],
            cwd=self.project.root,
            env=self.project.environment(PFL_CHECKPOINT_SECONDS="0", PFL_WORKERS="2", PFL_DEVICE="cpu"),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        groups.callback(_end, process)
        return process

    def _wait(self, process: subprocess.Popen[str], kill: Kill, before: set[Entry]) -> bool:
        """Wait for the time to kill. False when the process ends before."""
        started = time.monotonic()
        while process.poll() is None:
            if kill.aim == "instant":
                due = time.monotonic() - started >= kill.at
            elif kill.aim == "checkpoint":
                due = self._is_writing(self._files() - before) and self._newest() >= kill.at
            else:
                due = self._is_finishing(self._files() - before)
            if due:
                return True
            time.sleep(_GLANCE)
        return False

    def _hit(self, newest: int, before: set[Entry]) -> str:
        fresh = self._files() - before
        if self._is_finishing(fresh):
            return FINISHING
        if self._is_writing(fresh):
            return WRITING
        return BETWEEN if self._newest() > newest else EARLY

    def _is_finishing(self, fresh: set[Entry]) -> bool:
        return any(path.parent == self.out for path, _ in fresh)

    def _is_writing(self, fresh: set[Entry]) -> bool:
        return any(path.parent != self.out and _unfinished(path) for path, _ in fresh)

    def _newest(self) -> int:
        """The round of the newest checkpoint, or 0."""
        return max((_round(path) for path, _ in self._files()), default=0)

    def _files(self) -> set[Entry]:
        """Checkpoints and final files, finished or not."""
        entries: set[Entry] = set()
        for folder in (self.out, *self.checkpoints.glob("*")):
            with suppress(FileNotFoundError):
                for path in folder.iterdir():
                    with suppress(FileNotFoundError):  # renamed or removed in between
                        entries.add((path, path.stat().st_mtime_ns))
        return entries

    def _hashes(self) -> dict[str, str]:
        paths = [path for path in self.out.iterdir() if not _unfinished(path)]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    def _forget(self) -> None:
        """Remove all that training has left, so that it begins anew."""
        for folder in (self.checkpoints, self.out, self.project.root / ".pfl/states"):
            shutil.rmtree(folder, ignore_errors=True)


def _round(path: Path) -> int:
    """The round of a checkpoint, or 0 for another file."""
    return int(path.name.split("-")[1]) if path.name.startswith("round-") else 0


def _unfinished(path: Path) -> bool:
    return path.suffix == ".part"


def _wait_for_workers(process: subprocess.Popen[str], trial: Trial) -> None:
    """What a killed process wrote to ends when the last of its workers has ended."""
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        trial.faults.append("workers outlived their process")


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout:
        process.stdout.close()
