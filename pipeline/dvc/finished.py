"""Stages whose outputs are complete but not yet recorded in DVC, so that a kill in between loses nothing.

A worker notes as its last act the stage's inputs and what its outputs look like. If they still look like that when the
stage is due again with the same inputs, they are recorded instead of made anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pflcore.files import write_text


@dataclass(frozen=True)
class Finished:
    """The notes in a `folder`, one per stage of the workspace `root`."""

    root: Path
    folder: Path

    def note(self, address: str, key: str, outs: Sequence[str]) -> None:
        """Note that the outputs of a stage are complete; `key` stands for its command and inputs."""
        write_text(self._path(address), json.dumps([key, outs, self._stats(outs)]) + "\n")

    def complete(self, address: str, key: str) -> bool:
        """Return whether the outputs of a stage are there, complete, and made from these inputs."""
        try:
            made, outs, stats = json.loads(self._path(address).read_text(encoding="utf-8"))
            return bool(made == key and stats == self._stats(outs))
        except (OSError, ValueError, TypeError):
            return False

    def forget(self, address: str) -> None:
        """Remove the note of a stage, which has been recorded."""
        self._path(address).unlink(missing_ok=True)

    def _path(self, address: str) -> Path:
        return self.folder / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}.json"

    def _stats(self, outs: Sequence[str]) -> list[list[object]]:
        """Return every file with its size and time of change; raise ``OSError`` if an output is missing."""
        paths = [self.root / out for out in outs]
        files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
        stats = {file: file.stat() for file in files if not file.is_dir()}
        return [[file.relative_to(self.root).as_posix(), one.st_size, one.st_mtime_ns] for file, one in stats.items()]
