"""Checkpoints: the whole state of a run in one file, written atomically and named by its round and its hash.

The hash detects a file that was cut or altered, and the identity in the file one of another run. Such a file is skipped
with one line, and the checkpoint before it is used. The last checkpoint of a finished run stays. Runs of one lineage
differ in their number of rounds only, so a longer run continues from there.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pflcore.errors import UserError
from pflcore.files import digest_of, named, parse_json
from pflcore.groups import Tensors

_NAME = re.compile(r"round-(\d{6,})-([0-9a-f]{16})\.safetensors")
_COPIES = 2  # the newest checkpoint and the one before it, in case the newest is damaged
_PAUSE = 20  # pause in durations of the last write, so that writing takes at most a twentieth of the time
_PART = ".new.part"  # the temporary file; one that a killed process left behind is overwritten
LOCK_SECONDS = 5.0  # time to wait for the lock; within it, the system releases the lock of a killed process

Misfit = Callable[[Tensors], str]  # returns the reason why tensors cannot be a state of a run; "" if they can


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round."""

    round: int
    tensors: Tensors


class CheckpointFolder:
    """The checkpoints of one run, locked by one process at a time.

    Args:
        run: Hash of everything that the state depends on (specification, code, data). Other checkpoints are skipped.
        warn: Called with one line for each skipped checkpoint, and if the last checkpoint cannot be written.
        lineage: Like `run`, without the number of rounds. Runs of a lineage leave their last checkpoint in `states`.
    """

    def __init__(
        self, folder: Path, run: str, warn: Callable[[str], None], lineage: str = "", states: Path | None = None
    ) -> None:
        self.folder, self.run, self.warn, self.lineage, self.states = folder, run, warn, lineage, states
        self._lock = FileLock(folder / "lock")
        self._good: list[Path] = []  # checkpoints written or read by this process, oldest first
        self._written, self._duration = 0.0, 0.0  # end of the last write, and its duration in seconds

    def __enter__(self) -> CheckpointFolder:
        """Lock the folder. Raises :class:`UserError` if another process trains this run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=LOCK_SECONDS)
        except Timeout:
            raise UserError(f"{self.folder}: another process is training this run; wait for it or stop it") from None
        self._written = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def is_due(self, every: float) -> bool:
        """Return whether `every` seconds and twenty times the last write's duration have passed; true if it is 0."""
        pause = max(every, _PAUSE * self._duration) if every > 0 else 0.0
        return time.monotonic() - self._written >= pause

    def save(self, round_: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the state after a round. Then delete all others, skipped ones too, except the good one before it."""
        started = time.monotonic()
        path = self._write(round_, tensors)
        self._good = [*(good for good in self._good if good != path), path][-_COPIES:]
        for other in stored(self.folder):
            if other not in self._good:
                other.unlink()
        self._written = time.monotonic()
        self._duration = self._written - started

    def _write(self, round_: int, tensors: Mapping[str, Tensor]) -> Path:
        """Write a checkpoint, without copying tensors of the host. Raises ``OSError``."""
        temporary = self.folder / _PART
        flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        # The names keep the order of the entries, which safetensors sorts, as the rounding of sums depends on it.
        header = {"run": self.run, "lineage": self.lineage, "round": round_, "names": list(flat)}
        try:
            with named(self.folder):
                # Only one key, because the order of several keys varies between processes, and so would the hash.
                save_file(flat, temporary, {"pfl": json.dumps(header)})
                path = self.folder / f"round-{round_:06d}-{digest_of(temporary)[:16]}.safetensors"
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
            return temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def save_last(self, round_: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the state after the last round; if this fails, warn and go on, so that the result is not lost."""
        try:
            self.save(round_, tensors)
        except OSError as error:
            self.warn(f"{self.folder}: the state after round {round_} is not kept ({error})")

    def load(self, misfit: Misfit) -> Checkpoint | None:
        """Return the newest good checkpoint, or None if there is none."""
        for path in stored(self.folder):
            if checkpoint := _read(path, misfit, self.warn, run=self.run):
                self._good = [path]
                return checkpoint
        return None

    def earlier(self, misfit: Misfit, continues: Callable[[Checkpoint], bool]) -> Checkpoint | None:
        """Return the lineage's state with the most rounds for which `continues` is true, or None if there is none."""
        checkpoints = (_read(path, misfit, self.warn, lineage=self.lineage) for path in stored(self.states))
        return next((checkpoint for checkpoint in checkpoints if checkpoint and continues(checkpoint)), None)

    def archive(self) -> None:
        """Move the last checkpoint to `states`, where it replaces those without more rounds, and remove the others."""
        if self.states and self._good:
            try:
                self.states.mkdir(parents=True, exist_ok=True)
                last = self._good[-1].replace(self.states / self._good[-1].name)
                for other in stored(self.states):
                    if other != last and round_of(other) <= round_of(last):
                        other.unlink(missing_ok=True)
            except OSError as error:
                self.warn(f"{self.states}: the last state is not left to longer runs ({error})")
        self.clear()

    def clear(self) -> None:
        """Remove all checkpoints of the run."""
        for path in (*stored(self.folder), *self.folder.glob(_PART)):
            path.unlink()


def stored(folder: Path | None) -> list[Path]:
    """Return the files in a folder whose names are those of checkpoints, newest first."""
    paths = folder.glob("round-*") if folder else ()
    return sorted((path for path in paths if _NAME.fullmatch(path.name) and path.is_file()), reverse=True)


def round_of(path: Path) -> int:
    """Return the round in the name of a checkpoint file."""
    return int(path.name.split("-")[1])


def _read(path: Path, misfit: Misfit, warn: Callable[[str], None], **identity: str) -> Checkpoint | None:
    """Read a checkpoint that has this identity (`run` or `lineage`) and fits; its tensors are mapped from the file.
    For any other file warn with one line and return None; do not warn if another process has removed the file."""
    try:
        if digest_of(path)[:16] != path.stem.rpartition("-")[2]:
            raise ValueError("its content does not match its name")
        with safe_open(path, framework="pt") as file:
            header = parse_json((file.metadata() or {}).get("pfl", "{}"))
            if not isinstance(header, dict) or any(header.get(key) != value for key, value in identity.items()):
                raise ValueError("it belongs to another run")
            tensors = {name: file.get_tensor(name) for name in header.get("names", file.keys())}
        if reason := misfit(tensors):
            raise ValueError(reason)
        return Checkpoint(header["round"], tensors)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        warn(f"{path}: {error}; skipped")
    except (RuntimeError, SafetensorError, KeyError) as error:
        warn(f"{path}: not a checkpoint ({error}); skipped")
    return None


def compare(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """Return the first difference in name, shape or type; "" if there is none."""
    for name, tensor in expected.items():
        if name not in actual:
            return f"{name} is missing"
        if actual[name].shape != tensor.shape or actual[name].dtype != tensor.dtype:
            first, second = (f"{tuple(it.shape)} {it.dtype}" for it in (actual[name], tensor))
            return f"{name} is {first}, expected {second}"
    return next((f"{name} is not known" for name in actual if name not in expected), "")
