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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.stages import data, partition
from pipeline.workspace import dataset_path, partition_path, run_path
from support.project import CONVNET, make_project
from support.project import spec as small_spec

SMALL_VIT = "{name: tiny_vit, depth: 1, dim: 16, heads: 2, head_dim: 8, mlp_dim: 16, patch: 4, dropout: 0.1}"
# What can lie between two rounds: the shared model alone, personal parts, and what a server keeps of its own.
KINDS = {
    "fedavg": ("fedavg", CONVNET),
    "fedper": ("fedper", CONVNET),
    "fedtp": ("{name: fedtp, hidden: 16, layers: 1, server_momentum: 0.5}", SMALL_VIT),
}
PATIENCE = 300.0  # seconds that no process here needs; one that does hangs
# Where a kill hit, as far as the files tell.
EARLY = "before the first checkpoint"  # that the killed process would have written
BETWEEN = "between checkpoints"
WRITING = "writing a checkpoint"  # it left half a file, or one that had no name yet
FINISHING = "writing the artifacts"  # or after them, while clearing up
HITS = (EARLY, BETWEEN, WRITING, FINISHING)


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
    """A project with a single run of a `kind` (:data:`KINDS`) over so many `rounds`, and its inputs."""

    def __init__(self, folder: Path, kind: str, rounds: int) -> None:
        method, backbone = KINDS[kind]
        training = ", momentum: 0.5, save_weights: true"
        text = small_spec(f"[{method}]", partition="dirichlet", backbone=backbone, rounds=rounds, training=training)
        self.project = make_project(folder, {"specs/a.yaml": text.replace("sample_rate: 1", "sample_rate: 0.5")})
        self.project.compile()
        (self.run,) = self.project.compiled().runs.values()
        self.checkpoints, self.out = folder / ".pfl/checkpoints", folder / run_path(self.run.id, "")
        dataset, clients = folder / dataset_path(self.run.data_id), folder / partition_path(self.run.federation_id)
        data.run(self.run.record["dataset"], dataset, folder / "data")
        partition.run(self.run, dataset, clients)

    def undisturbed(self) -> tuple[dict[str, str], float]:
        """Train without a kill; return the hash of each final file by its name, and the seconds it took."""
        self._forget()
        started = time.monotonic()
        process = self._start()
        output, _ = process.communicate(timeout=PATIENCE)
        if process.returncode:
            raise RuntimeError(output)
        return self._hashes(), time.monotonic() - started

    def killed(self, kills: Iterable[Kill], expected: dict[str, str]) -> Trial:
        """Train from the beginning, killed and restarted until complete, and compare with what is `expected`.

        Args:
            kills: One per start, for as long as the run is not complete; after the last one, it is left in peace.
        """
        self._forget()
        trial, plan = Trial(), iter(kills)
        while not self._attempt(next(plan, None), trial):
            pass
        found = self._hashes()
        trial.faults += [
            f"{name} differs" for name in sorted(found | expected) if found.get(name) != expected.get(name)
        ]
        names = sorted(path.name for path, _ in self._files())
        trial.faults += [f"{name} is still there" for name in names if name.startswith("round-")]
        trial.leftovers = [name for name in names if name.endswith(".part")]
        return trial

    def _attempt(self, kill: Kill | None, trial: Trial) -> bool:
        """Start once, and kill when it is time; return whether the run is complete."""
        newest, before = self._newest(), self._files()
        process = self._start()
        try:
            if kill and self._wait(process, kill, before):
                time.sleep(kill.linger)
                process.kill() if kill.alone else os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
            fresh = self._files() - before
            killed = process.returncode == -signal.SIGKILL
            try:  # what a killed process wrote to ends when the last of its workers has ended
                output, _ = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                output = ""
                trial.faults.append("workers outlived their process")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode == 2 and "another process is training this run" in output:
            trial.refused += 1
            time.sleep(0.1)
            return False
        if process.returncode and not killed:
            raise RuntimeError(output)
        if trial.hits:
            trial.resumed.append(newest)
        if killed:
            trial.alone += bool(kill and kill.alone)
            early = BETWEEN if self._newest() > newest else EARLY
            trial.hits.append(FINISHING if self._finishing(fresh) else WRITING if self._writing(fresh) else early)
            return False
        told = re.search(r"continued from the checkpoint after round (\d+)", output)
        if "skipped" in output or (int(told[1]) if told else 0) != newest:
            trial.faults.append(f"did not continue from round {newest}: {output}")
        return True

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["pfl", "stage", "train", self.run.id],
            cwd=self.project.root,
            env=self.project.environment(PFL_CHECKPOINT_SECONDS="0", PFL_WORKERS="2", PFL_DEVICE="cpu"),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _wait(self, process: subprocess.Popen[str], kill: Kill, before: set[tuple[Path, int]]) -> bool:
        """Wait for the time to kill; return False when the process ends before."""
        started = time.monotonic()
        while process.poll() is None:
            fresh = self._files() - before if kill.aim != "instant" else set()
            due = {
                "instant": time.monotonic() - started >= kill.at,
                "checkpoint": self._writing(fresh) and self._newest() >= kill.at,
                "artifact": self._finishing(fresh),
            }
            if due[kill.aim]:
                return True
            time.sleep(0.001)  # a checkpoint takes a few of them to write
        return False

    def _finishing(self, fresh: set[tuple[Path, int]]) -> bool:
        return any(path.parent == self.out for path, _ in fresh)

    def _writing(self, fresh: set[tuple[Path, int]]) -> bool:
        return any(path.parent != self.out and path.suffix == ".part" for path, _ in fresh)

    def _newest(self) -> int:
        """Return the round of the newest checkpoint, or 0."""
        names = (path.name for path, _ in self._files())
        return max((int(name.split("-")[1]) for name in names if name.startswith("round-")), default=0)

    def _files(self) -> set[tuple[Path, int]]:
        """Return checkpoints and final files, finished or not, with the times of their last changes."""
        entries = set()
        for path in (*self.out.glob("*"), *self.out.glob(".*"), *self.checkpoints.glob("*/*")):
            with suppress(FileNotFoundError):  # renamed or removed in between
                entries.add((path, path.stat().st_mtime_ns))
        return entries

    def _hashes(self) -> dict[str, str]:
        paths = [path for path in self.out.iterdir() if path.suffix != ".part"]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    def _forget(self) -> None:
        """Remove all that training has left, so that it begins anew."""
        for folder in (self.checkpoints, self.out, self.project.root / ".pfl/states"):
            shutil.rmtree(folder, ignore_errors=True)
