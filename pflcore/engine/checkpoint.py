"""Checkpoints: one file of named tensors, written atomically, named by its round and its own hash.

The hash in the name makes a file that was cut or altered recognisable; the identity stored inside makes one of another
run recognisable. Either is passed over with one line, and the one before it is used. What is large and changes little
is in files beside it, which checkpoints share (``pieces.py``); what two of them share is there once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from torch import Tensor

from pflcore.engine.pieces import (
    Layers,
    divide,
    files_of,
    keys_of,
    read_hashed,
    read_layers,
    stored_pieces,
    write_hashed,
)
from pflcore.engine.state import Rows
from pflcore.errors import UserError
from pflcore.groups import Tensors

_NAME = re.compile(r"round-(\d{6,})-([0-9a-f]{16})\.safetensors")
_KEPT = 2  # the newest, and one to fall back to
_PATIENCE = 5.0  # seconds in which a process that was killed has let go


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round.

    Attributes:
        layers: Of parts in rows, what is in files beside its own.
        stored: Part → the rows that these have as they are.
    """

    round: int
    tensors: Tensors
    layers: Layers = field(default_factory=dict)
    stored: Mapping[str, frozenset[int]] = field(default_factory=dict)


class CheckpointFolder:
    """The checkpoints of one run, held by one process at a time.

    Args:
        folder: Where; created when needed.
        identity: What the state depends on (specification, code, data). Checkpoints of another identity are refused.
        warn: Called with one line for each checkpoint that is passed over.
    """

    def __init__(self, folder: Path, identity: str, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self.identity = identity
        self.warn = warn
        self._lock = FileLock(folder / "lock")
        self._good: list[tuple[Path, Layers]] = []  # written or read by this process, oldest first

    def __enter__(self) -> CheckpointFolder:
        """Take the folder. Raises :class:`UserError` when another process trains this run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=_PATIENCE)
        except Timeout:
            raise UserError(f"{self.folder}: another process is training this run; wait for it or stop it") from None
        self._drop_parts()  # of processes that were killed
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def save(self, round_: int, tensors: Mapping[str, Tensor], rows: Mapping[str, Rows] | None = None) -> None:
        """Write the state after a round, then drop all but it and the good one before it.

        Files that were passed over go as well: their rounds may be later, and they would displace good ones.

        Args:
            tensors: All parts of the state that are written whole.
            rows: Those in rows, by name, of which what has not changed since the last one is not written again.
        """
        rows = rows or {}
        before = self._good[-1][1] if self._good else {}
        own, layers = divide(self.folder, rows, before)
        path = write(self.folder, self.identity, round_, {**tensors, **own}, layers)
        self._good = [*(one for one in self._good if one[0] != path), (path, layers)][-_KEPT:]
        for part, held in rows.items():
            if layers.get(part) != before.get(part):
                held.stored.update(layers[part][-1].keys)
        good = [path for path, _ in self._good]
        for other in stored(self.folder):
            if other not in good:
                other.unlink()
        # Last, so that no checkpoint is there without them.
        listed = {name for _, layers in self._good for name in files_of(layers)}
        for piece in stored_pieces(self.folder):
            if piece.name not in listed:
                piece.unlink()

    def load(self, misfit: Callable[[Tensors], str]) -> Checkpoint | None:
        """The newest good checkpoint.

        Args:
            misfit: Why tensors cannot be a state of this run; empty when they can.
        """
        for path in stored(self.folder):
            reason, checkpoint = read(path, self.identity, misfit)
            if checkpoint:
                self._good = [(path, checkpoint.layers)]
                return checkpoint
            self.warn(f"{path}: {reason}; passed over")
        return None

    def clear(self) -> None:
        """Remove all checkpoints: the run is complete."""
        self._drop_parts()
        for path in (*stored(self.folder), *stored_pieces(self.folder)):
            path.unlink()

    def _drop_parts(self) -> None:
        for path in self.folder.glob(".*.part"):
            path.unlink()


def stored(folder: Path) -> list[Path]:
    """The files in a folder that are named as checkpoints are, newest first."""
    named = (path for path in folder.glob("round-*") if _NAME.fullmatch(path.name))
    return sorted((path for path in named if path.is_file()), reverse=True)


def round_of(path: Path) -> int:
    """The round in the name of a checkpoint."""
    return int(path.name.split("-")[1])


def write(
    folder: Path, identity: str, round_: int, tensors: Mapping[str, Tensor], layers: Layers | None = None
) -> Path:
    """Write a checkpoint into a folder that exists. Raises ``OSError`` or ``SafetensorError`` when it cannot."""
    told: dict[str, object] = {"identity": identity, "round": round_}
    if layers:
        told["layers"] = {part: [layer.files for layer in several] for part, several in layers.items()}
    return write_hashed(folder, f"round-{round_:06d}", tensors, json.dumps(told))


def read(path: Path, identity: str, misfit: Callable[[Tensors], str]) -> tuple[str, Checkpoint | None]:
    """A checkpoint, or why it is none that has this identity and fits. Raises ``OSError``."""
    if not _NAME.fullmatch(path.name):
        return "its content does not match its name", None
    try:
        header, own = read_hashed(path)
        if not isinstance(header, dict) or header.get("identity") != identity:
            return "it belongs to another run", None
        if not isinstance(header.get("round"), int):
            return "it does not say of which round it is", None
        layers, tensors = read_layers(path.parent, header.get("layers", {}))
    except ValueError as error:
        return str(error), None
    tensors |= own
    if reason := misfit(tensors):
        return reason, None
    shared = {part: frozenset().union(*(layer.keys for layer in several)) for part, several in layers.items()}
    kept = {part: keys - keys_of(part, own) for part, keys in shared.items()}
    return "", Checkpoint(header["round"], tensors, layers, kept)
