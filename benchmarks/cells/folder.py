"""The folder that travels to a card: cells, datasets and partitions in forms that need NumPy and nothing else.

``cells.json`` has what is to be trained, cheapest first. Below ``data/`` lie samples, and who holds which of them, as
compressed pickles in pieces, since only so much may travel at a time.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.spec.run import Run

CELLS = "cells.json"
FINISHED = "finished.txt"  # ids of runs that were collected, a line each
LINES = "finished.jsonl"  # runs that have ended on the card, a line each
UNDER_WAY = "under-way-"  # and the run's id: a folder with its checkpoints
_PIECE = 24 * 2**20  # bytes


@dataclass(frozen=True)
class Cell:
    """A run that is to be trained.

    Attributes:
        words: Its spec, the labels of its cell, and its seed.
        seconds: What it is expected to take on the machine that packed it, for the order alone.
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
        return Run(self.record)


def write_cells(folder: Path, cells: Sequence[Cell], sources: dict[str, str]) -> None:
    """Write ``cells.json``; `sources` is the SHA-256 of each module that the cells' code names."""
    content = {"cells": [asdict(cell) for cell in cells], "sources": sources}
    write_text(folder / CELLS, json.dumps(content, indent=1) + "\n")


def read_cells(folder: Path) -> tuple[list[Cell], dict[str, str]]:
    """Read what :func:`write_cells` wrote. Raises :class:`UserError` when there is no such folder."""
    try:
        content = json.loads((folder / CELLS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: nothing was packed there ({error})") from None
    return [Cell(**cell) for cell in content["cells"]], content["sources"]


def collected(folder: Path) -> set[str]:
    """Return the runs of a folder that are done with."""
    path = folder / FINISHED
    return set(path.read_text(encoding="utf-8").split()) if path.is_file() else set()


def finished(out: Path) -> list[dict[str, Any]]:
    """Return the lines of runs that have ended; one that was cut is left out."""
    text = (out / LINES).read_text(encoding="utf-8") if (out / LINES).is_file() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def pack_data(folder: Path, name: str, content: object) -> None:
    """Write samples or an assignment."""
    data, place = zlib.compress(pickle.dumps(content)), folder / "data"
    place.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(data), _PIECE)
    for number, start in enumerate(starts):
        (place / f"{name}.{number}-of-{len(starts)}").write_bytes(data[start : start + _PIECE])


def unpack_data(folders: Sequence[Path], name: str) -> Any:
    """Read what :func:`pack_data` wrote; pieces may lie in several folders. Raises :class:`UserError` for a lack."""
    pieces = {path.name: path for folder in folders for path in folder.glob(f"data/{name}.*-of-*")}
    count = int(next(iter(pieces), "-1").rpartition("-")[2])
    names = [f"{name}.{number}-of-{count}" for number in range(count)]
    if not pieces or set(names) - pieces.keys():
        raise UserError(
            f"{name}: not all in {', '.join(map(str, folders))}; pack again, or name its folder with --data"
        )
    return pickle.loads(zlib.decompress(b"".join(pieces[one].read_bytes() for one in names)))  # noqa: S301 our own
