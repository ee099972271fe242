"""Training packed cells where there is little more than torch, until there is no time left.

What has ended is a line of ``finished.jsonl``; checkpoints of what has not lie beside it, and the next call goes on
from there.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from cells.folder import LINES, UNDER_WAY, Cell, collected, finished, read_cells, unpack_data
from torch import Tensor

from pflcore import sources
from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData
from pflcore.data.samples import Samples
from pflcore.engine import CheckpointFolder, Progress, Result, device_name, select_device, train, use_threads
from pflcore.errors import UserError
from pflcore.methods import METHODS
from pipeline.stages.identity import run_hash


class OutOfTime(Exception):
    """The deadline is near, and the state has been kept."""


class _Until(CheckpointFolder):
    """Checkpoints of a run that is to stop in time."""

    def __init__(self, folder: Path, identity: str, ends: float, every: float) -> None:
        super().__init__(folder, identity, print)
        self.ends, self.every, self.saved = ends, every, time.monotonic()

    def save(self, round_: int, tensors: Mapping[str, Tensor]) -> None:
        super().save(round_, tensors)
        now = time.monotonic()
        if now + max(self.every, now - self.saved) > self.ends:
            raise OutOfTime
        self.saved = now


class Session:
    """One call on the card.

    Args:
        folder: What was packed.
        data: Further folders in which pieces of datasets lie.
        out: The folder for what comes back.
        deadline: Seconds from now.
        every: Seconds between checkpoints; with the last one before the deadline a run stops.
        quick: Train two rounds of each of the first cells, to see that it works, and keep nothing.
    """

    def __init__(
        self, folder: Path, data: Sequence[Path], out: Path, deadline: float, every: float, device: str, quick: bool
    ) -> None:
        self.cells, self.sources = read_cells(folder)
        self.folder, self.folders, self.out, self.quick = folder, (folder, *data), out, quick
        self.ends, self.every, self.device = time.monotonic() + deadline, every, select_device(device)
        self.samples: dict[str, Samples] = {}

    def run(self) -> None:
        """Train until all is done or the deadline is near, a line of a table each; what fails keeps no other back."""
        self.out.mkdir(parents=True, exist_ok=True)
        done = collected(self.folder) | {line["run"] for line in finished(self.out)}
        waiting = [cell for cell in self.cells if cell.run not in done]
        print("| cell | rounds | accuracy | seconds | |\n|---|---:|---:|---:|---|")
        for cell in waiting[:3] if self.quick else waiting:
            begun, seen = time.monotonic(), [0, None]
            if begun + self.every > self.ends:
                return
            try:
                state = self._train(cell, seen)
            except OutOfTime:
                state = "under way"
            except Exception as error:
                state = f"failed: {type(error).__name__}: {error}".partition("\n")[0][:160]
            shown = "" if seen[1] is None else f"{100 * seen[1]:.2f}"
            print(f"| {cell.words} | {seen[0]} | {shown} | {time.monotonic() - begun:.1f} | {state} |", flush=True)
            if state == "under way" or "CUDA error" in state:  # after one, everything fails
                return

    def _train(self, cell: Cell, seen: list[float | None]) -> str:
        """Train a cell as far as it goes; `seen` gets the round and the last accuracy."""
        run, data = cell.resolved, self._federation(cell)
        identity, place = run_hash(run, cell.code, cell.hashes, self.device), self.out / f"{UNDER_WAY}{cell.run}"
        if (self.folder / place.name).is_dir() and not place.is_dir():
            shutil.copytree(self.folder / place.name, place)
        backbone = BACKBONES.create(run.backbone, **run.options("backbone"))
        method = METHODS.create(run.method, **run.options("method"))
        self._check_code()
        started = time.monotonic()

        def on_round(progress: Progress) -> None:
            seen[:] = progress.round, seen[1] if progress.accuracy is None else progress.accuracy

        with _Until(place, identity, self.ends, self.every) as checkpoints:
            result = train(
                data=data,
                backbone=backbone,
                method=method,
                training=replace(run.training, rounds=min(2, run.training.rounds)) if self.quick else run.training,
                evaluation=run.evaluation,
                seed=run.seed,
                checkpoints=None if self.quick else checkpoints,
                checkpoint_every=self.every,
                on_round=on_round,
            )
            self._check_code()
            if not self.quick:
                self._note(cell, identity, result, time.monotonic() - started)
            checkpoints.clear()
        shutil.rmtree(place)
        return "diverged" if result.diverged else "quick" if self.quick else "done"

    def _federation(self, cell: Cell) -> FederatedData:
        run = cell.resolved
        if run.data_id not in self.samples:
            self.samples = {run.data_id: unpack_data(self.folders, run.data_id)}  # the one before is given back
        samples, assignment = self.samples[run.data_id], unpack_data(self.folders, run.federation_id)
        if assignment.noise:  # it is added in place
            samples = replace(samples, inputs=samples.inputs.copy())
        data = FederatedData.from_samples(samples, assignment, self.device)
        use_threads(self.device, data.shape)
        return data

    def _check_code(self) -> None:
        """Raise :class:`UserError` when this process has imported another source than the cells were packed with."""
        for name, content in sources.loaded().items():
            if name in self.sources and hashlib.sha256(content).hexdigest() != self.sources[name]:
                raise UserError(f"{name} is not the one that the cells were packed with; pack them again")

    def _note(self, cell: Cell, identity: str, result: Result, seconds: float) -> None:
        line = {
            **{"run": cell.run, "identity": identity, "kind": self.device.type, "device": device_name(self.device)},
            **{"torch": torch.__version__, "ended": time.time(), "seconds": seconds},
            "result": pickle.dumps(replace(result, weights={}, findings={})).hex(),
        }
        with (self.out / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
