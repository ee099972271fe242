"""Stages whose outputs are complete but not yet recorded in DVC, so that a kill in between loses nothing.

A worker says so as its last act, in a file that names the stage's inputs and what its outputs look like. If the outputs
still look like that when the stage is due again with the same inputs, they are recorded instead of made anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from pflcore.files import write_text
from pflcore.json_text import parse_json


class Finished:
    """The notes in a folder, one per stage.

    Args:
        root: The workspace.
        folder: Where the notes are; made when needed.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder

    def note(self, address: str, key: str, outs: tuple[str, ...]) -> None:
        """The outputs of a stage are complete.

        Args:
            key: Stands for its command and inputs.
            outs: Relative to the workspace.
        """
        content = {"key": key, "outs": list(outs), "looks": self._looks(outs)}
        write_text(self._path(address), json.dumps(content) + "\n")

    def complete(self, address: str, key: str) -> bool:
        """Whether the outputs of a stage are there, complete, and made from these inputs."""
        try:
            note = parse_json(self._path(address).read_text(encoding="utf-8"))
            return bool(note["key"] == key and note["looks"] == self._looks(tuple(note["outs"])))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def forget(self, address: str) -> None:
        """A stage has been recorded."""
        self._path(address).unlink(missing_ok=True)

    def _path(self, address: str) -> Path:
        return self.folder / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}.json"

    def _looks(self, outs: tuple[str, ...]) -> list[list[object]]:
        """Every file with its size and the time of its last change. Raises ``OSError`` when an output is missing."""
        found: list[list[object]] = []
        for path in self._files(outs):
            stat = path.stat()
            found.append([path.relative_to(self.root).as_posix(), stat.st_size, stat.st_mtime_ns])
        return found

    def _files(self, outs: tuple[str, ...]) -> Iterator[Path]:
        for out in outs:
            path = self.root / out
            if path.is_dir():
                yield from sorted(inner for inner in path.rglob("*") if inner.is_file())
            else:
                yield path
