"""Training packed cells where there is little more than torch, until there is no time left.

What has ended is a line of ``finished.jsonl``; checkpoints of what has not lie beside it, and the next call goes on
from there.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells.folder import Cell, collected, read_cells, read_partition, read_samples
from torch import Tensor

from pflcore import sources
from pflcore.backbones import BACKBONES, Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine import (
    CheckpointFolder,
    Progress,
    Result,
    device_name,
    select_device,
    train,
    use_threads,
)
from pflcore.errors import UserError
from pflcore.methods import METHODS, Method
from pipeline.stages.identity import run_hash

LINES = "finished.jsonl"
UNDER_WAY = "under-way-"  # and the run's id: a folder with its checkpoints
COLUMNS = ("round", "client", "correct", "total", "loss", "last", "validation")
_QUICK = 2  # rounds


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


@dataclass
class Row:
    """What the table says of a cell."""

    cell: str
    state: str
    rounds: int = 0
    accuracy: float | None = None
    seconds: float = 0.0

    def __call__(self, progress: Progress) -> None:
        """After a round."""
        self.rounds = progress.round
        self.accuracy = progress.accuracy if progress.accuracy is not None else self.accuracy


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
        self,
        folder: Path,
        *,
        data: Sequence[Path],
        out: Path,
        deadline: float,
        every: float,
        device: str,
        quick: bool,
    ) -> None:
        self.cells, self.sources = read_cells(folder)
        self.folder, self.folders, self.out, self.quick = folder, (folder, *data), out, quick
        self.ends, self.every = time.monotonic() + deadline, every
        self.over = False
        self.device = select_device(device)
        self.rows: list[Row] = []
        self._samples: dict[str, Any] = {}

    def run(self) -> None:
        """Train until all is done or the deadline is near; what fails leaves a row and does not keep the others."""
        self.out.mkdir(parents=True, exist_ok=True)
        done = collected(self.folder) | {line["run"] for line in finished(self.out)}
        waiting = [cell for cell in self.cells if cell.run not in done]
        for cell in waiting[:3] if self.quick else waiting:
            if self.over or time.monotonic() + self.every > self.ends:
                return
            self._attempt(cell)

    def _attempt(self, cell: Cell) -> None:
        """Train a cell as far as it goes."""
        self.rows.append(row := Row(cell.words, "under way"))
        begun = time.monotonic()
        try:
            row.state = self._train(cell, row)
        except OutOfTime:
            self.over = True
        except Exception as error:
            row.state = f"failed: {type(error).__name__}: {error}".partition("\n")[0][:160]
            self.over |= "CUDA error" in str(error)  # after one, everything fails
        finally:
            row.seconds = time.monotonic() - begun

    def _train(self, cell: Cell, row: Row) -> str:
        run = cell.resolved
        training = replace(run.training, rounds=min(_QUICK, run.training.rounds)) if self.quick else run.training
        data = self._federation(cell)
        identity = run_hash(run, cell.code, cell.hashes, self.device)
        place = self.out / f"{UNDER_WAY}{cell.run}"
        before = self.folder / place.name
        if before.is_dir() and not place.is_dir():
            shutil.copytree(before, place)
        backbone: Backbone = BACKBONES.create(run.backbone, **run.options("backbone"))
        method: Method = METHODS.create(run.method, **run.options("method"))
        self._check_code()
        started = time.monotonic()
        with _Until(place, identity, self.ends, self.every) as checkpoints:
            result = train(
                data=data,
                backbone=backbone,
                method=method,
                training=training,
                evaluation=run.evaluation,
                seed=run.seed,
                checkpoints=None if self.quick else checkpoints,
                checkpoint_every=self.every,
                on_round=row,
            )
            self._check_code()
            if not self.quick:
                self._note(cell, identity, result, time.monotonic() - started)
            checkpoints.clear()
        shutil.rmtree(place)
        row.rounds = result.rounds
        return "diverged" if result.diverged else "quick" if self.quick else "done"

    def _federation(self, cell: Cell) -> FederatedData:
        run = cell.resolved
        if run.data_id not in self._samples:
            self._samples = {run.data_id: read_samples(self.folders, run.data_id)}  # the one before is given back
        samples, assignment = self._samples[run.data_id], read_partition(self.folders, run.federation_id)
        if assignment.noise:  # it is added in place
            samples = replace(samples, inputs=samples.inputs.copy())
        data = FederatedData.from_samples(samples, assignment, self.device)
        use_threads(self.device, data.shape)
        return data

    def _check_code(self) -> None:
        """Raises :class:`UserError` when this process has imported another source than the cells were packed with."""
        for name, content in sources.loaded().items():
            if name in self.sources and hashlib.sha256(content).hexdigest() != self.sources[name]:
                raise UserError(f"{name} is not the one that the cells were packed with; pack them again")

    def _note(self, cell: Cell, identity: str, result: Result, seconds: float) -> None:
        diverged = result.diverged
        line = {
            "run": cell.run,
            "identity": identity,
            "kind": self.device.type,
            "device": device_name(self.device),
            "torch": torch.__version__,
            "ended": time.time(),
            "seconds": seconds,
            "rounds": result.rounds,
            "resumed_from": result.resumed_from,
            "positions": result.positions,
            "parameters": result.parameters,
            "cost": asdict(result.cost),
            "diverged": [diverged.round, diverged.client] if diverged else None,
            "columns": _packed({name: getattr(result, name) for name in COLUMNS}),
        }
        with (self.out / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def table(self) -> str:
        """What became of each cell, in Markdown."""
        lines = ["| cell | rounds | accuracy | seconds | |", "|---|---:|---:|---:|---|"]
        for row in self.rows:
            accuracy = "" if row.accuracy is None else f"{100 * row.accuracy:.2f}"
            lines.append(f"| {row.cell} | {row.rounds} | {accuracy} | {row.seconds:.1f} | {row.state} |")
        return "\n".join(lines) + "\n"


def finished(out: Path) -> list[dict[str, Any]]:
    """The lines of runs that have ended; one that was cut is left out."""
    lines = []
    path = out / LINES
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def _packed(columns: Mapping[str, np.ndarray]) -> str:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **columns)  # type: ignore[arg-type]
    return base64.b64encode(buffer.getvalue()).decode()


def unpacked(text: str) -> dict[str, np.ndarray]:
    """The columns of a line."""
    with np.load(io.BytesIO(base64.b64decode(text))) as columns:
        return {name: columns[name] for name in COLUMNS}
