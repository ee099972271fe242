"""The folder that travels to a card: cells, datasets and partitions in forms that need NumPy and nothing else.

``cells.json`` has what is to be trained, cheapest first. Below ``data/`` lie samples, in pieces, since only so much may
travel at a time; below ``partitions/`` who holds which of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflcore.data.assignment import Assignment
from pflcore.data.noise import Noise
from pflcore.data.samples import Samples
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.spec.run import Run

CELLS = "cells.json"
FINISHED = "finished.txt"  # ids of runs that were collected, a line each
_PIECE = 24 * 2**20  # bytes of inputs before they are compressed


@dataclass(frozen=True)
class Cell:
    """A run that is to be trained.

    Attributes:
        run: Its id.
        words: Its spec, the labels of its cell, and its seed.
        seconds: What it is expected to take on the machine that packed it, for the order alone.
        record: The resolved run.
        code: What stands for the code of its train stage.
        hashes: What tells its data and its partition apart, as in the header of ``rounds.parquet``.
    """

    run: str
    words: str
    seconds: float
    record: dict[str, Any]
    code: str
    hashes: dict[str, str]

    @property
    def resolved(self) -> Run:
        """The run itself."""
        return Run(self.record)


def write_cells(folder: Path, cells: Sequence[Cell], sources: dict[str, str]) -> None:
    """Write ``cells.json``; `sources` is the SHA-256 of each module that the cells' code names."""
    content = {"cells": [asdict(cell) for cell in cells], "sources": sources}
    write_text(folder / CELLS, json.dumps(content, indent=1) + "\n")


def read_cells(folder: Path) -> tuple[list[Cell], dict[str, str]]:
    """The inverse of :func:`write_cells`. Raises :class:`UserError` when there is no such folder."""
    try:
        content = json.loads((folder / CELLS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: nothing was packed there ({error})") from None
    return [Cell(**cell) for cell in content["cells"]], content["sources"]


def collected(folder: Path) -> set[str]:
    """Runs of a folder that are done with."""
    path = folder / FINISHED
    return set(path.read_text(encoding="utf-8").split()) if path.is_file() else set()


def write_samples(folder: Path, name: str, samples: Samples) -> None:
    """Write what training needs of a dataset: no attributes and no boxes."""
    facts = {field: getattr(samples, field) for field in ("name", "class_names", "mean", "std", "source", "size")}
    rows = max(1, _PIECE // max(1, samples.inputs[:1].nbytes))
    pieces = [samples.inputs[start : start + rows] for start in range(0, len(samples), rows)]
    place = folder / "data"
    place.mkdir(parents=True, exist_ok=True)
    for number, inputs in enumerate(pieces):
        np.savez_compressed(place / f"{name}.{number:03}.npz", inputs=inputs)
    held = {"labels": samples.labels, "train": samples.train, "facts": np.array(json.dumps(facts))}
    np.savez_compressed(place / f"{name}.npz", pieces=len(pieces), **held)


def read_samples(folders: Sequence[Path], name: str) -> Samples:
    """The inverse of :func:`write_samples`; pieces may lie in several folders. Raises :class:`UserError` for a lack."""
    with np.load(_found(folders, f"data/{name}.npz")) as held:
        labels, train, count, facts = held["labels"], held["train"], int(held["pieces"]), json.loads(str(held["facts"]))
    pieces = []
    for number in range(count):
        with np.load(_found(folders, f"data/{name}.{number:03}.npz")) as piece:
            pieces.append(piece["inputs"])
    tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
    return Samples(inputs=np.concatenate(pieces), labels=labels, train=train, **tuples)


def write_partition(folder: Path, name: str, assignment: Assignment) -> None:
    """Write who holds which samples."""
    facts = {
        "scheme": assignment.scheme,
        "seed": assignment.seed,
        "own_split": assignment.own_split,
        "novel": assignment.novel,
        "noise": dataclasses.asdict(assignment.noise) if assignment.noise else None,
    }
    parts = {"train": assignment.train, "test": assignment.test, "validation": assignment.validation}
    arrays = {side: np.concatenate([np.empty(0, np.int64), *rows]) for side, rows in parts.items()}
    sizes = {f"{side}_sizes": np.array([len(own) for own in rows], np.int64) for side, rows in parts.items()}
    path = folder / "partitions" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, facts=np.array(json.dumps(facts)), **arrays, **sizes)


def read_partition(folders: Sequence[Path], name: str) -> Assignment:
    """The inverse of :func:`write_partition`. Raises :class:`UserError` when it is not there."""
    with np.load(_found(folders, f"partitions/{name}.npz")) as held:
        facts = json.loads(str(held["facts"]))
        sides = {
            side: np.split(held[side], np.cumsum(held[f"{side}_sizes"])[:-1]) if len(held[f"{side}_sizes"]) else []
            for side in ("train", "test", "validation")
        }
    noise = facts.pop("noise")
    known = Noise(tuple(noise["std"]), noise["released"], noise["seed"]) if noise else None
    return Assignment(**sides, **{**facts, "novel": tuple(facts["novel"])}, noise=known)


def _found(folders: Sequence[Path], name: str) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{name}: in none of {', '.join(map(str, folders))}; pack again, or name its folder with --data")
