"""Checkpoints: one file of named tensors, written atomically, named by its round and its own hash.

The hash in the name makes a file that was cut or altered recognisable; the identity stored inside makes one of another
run recognisable. Either is passed over with one line, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pflcore.errors import UserError
from pflcore.files import named
from pflcore.groups import Tensors
from pflcore.json_text import parse_json

_NAME = re.compile(r"round-(\d{6,})-([0-9a-f]{16})\.safetensors")
_KEPT = 2  # the newest, and one to fall back to
_PATIENCE = 5.0  # seconds in which a process that was killed has let go


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round."""

    round: int
    tensors: Tensors


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
        self._good: list[Path] = []  # written or read by this process, oldest first

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

    def save(self, round_: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the state after a round, then drop all but it and the good one before it.

        Files that were passed over go as well: their rounds may be later, and they would displace good ones.
        """
        path = write(self.folder, self.identity, round_, tensors)
        self._good = [*(one for one in self._good if one != path), path][-_KEPT:]
        for other in stored(self.folder):
            if other not in self._good:
                other.unlink()

    def load(self, misfit: Callable[[Tensors], str]) -> Checkpoint | None:
        """The newest good checkpoint.

        Args:
            misfit: Why tensors cannot be a state of this run; empty when they can.
        """
        for path in stored(self.folder):
            reason, checkpoint = read(path, self.identity, misfit)
            if checkpoint:
                self._good = [path]
                return checkpoint
            self.warn(f"{path}: {reason}; passed over")
        return None

    def clear(self) -> None:
        """Remove all checkpoints: the run is complete."""
        self._drop_parts()
        for path in stored(self.folder):
            path.unlink()

    def _drop_parts(self) -> None:
        for path in self.folder.glob(".*.part"):
            path.unlink()


def stored(folder: Path) -> list[Path]:
    """The files in a folder that are named as checkpoints are, newest first."""
    return sorted((path for path in folder.glob("round-*") if _NAME.fullmatch(path.name)), reverse=True)


def round_of(path: Path) -> int:
    """The round in the name of a checkpoint."""
    return int(path.name.split("-")[1])


def write(folder: Path, identity: str, round_: int, tensors: Mapping[str, Tensor]) -> Path:
    """Write a checkpoint into a folder that exists. Raises ``OSError`` or ``SafetensorError`` when it cannot."""
    temporary = folder / f".{os.getpid()}.part"
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        # One key: the order of several would vary from process to process.
        with named(folder):
            save_file(flat, temporary, {"pfl": json.dumps({"identity": identity, "round": round_})})
        path = folder / f"round-{round_:06d}-{_digest(temporary)}.safetensors"
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        return temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path, identity: str, misfit: Callable[[Tensors], str]) -> tuple[str, Checkpoint | None]:
    """A checkpoint, or why it is none that has this identity and fits. Raises ``OSError``."""
    match = _NAME.fullmatch(path.name)
    if not match or _digest(path) != match[2]:
        return "its content does not match its name", None
    try:
        with safe_open(path, framework="pt") as file:
            header = parse_json((file.metadata() or {}).get("pfl", "{}"))
            # Copies are aligned as any tensor is, so that what continues from them rounds as it would have.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except RuntimeError as error:  # how safetensors says that it cannot open a file
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file any more") from None
        return f"not a checkpoint ({error})", None
    except (SafetensorError, ValueError) as error:
        return f"not a checkpoint ({error})", None
    if not isinstance(header, dict) or header.get("identity") != identity:
        return "it belongs to another run", None
    if not isinstance(header.get("round"), int):
        return "it does not say of which round it is", None
    if reason := misfit(tensors):
        return reason, None
    return "", Checkpoint(header["round"], tensors)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
