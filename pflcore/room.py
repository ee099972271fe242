"""Room on the disk for what finished runs leave to later ones; what was not used for longest makes way for the next."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from pflcore.variables import number_of

_GIB = 2**30
_DEFAULT = 5.0  # GiB


@dataclass(frozen=True)
class Room:
    """A folder whose files may take so many bytes.

    Processes share it without locks: a file that another one has removed is gone, and none depends on any other.
    """

    folder: Path
    limit: int

    @classmethod
    def of(cls, private: Path) -> Room:
        """``kept/`` in a machine's own folder, with as many GiB as ``$PFL_KEEP`` says.

        Raises:
            UserError: The variable is no number of at least 0.
        """
        wanted = number_of("GiB", "PFL_KEEP")
        return cls(private / "kept", int((_DEFAULT if wanted is None else wanted) * _GIB))

    def make(self, size: int) -> bool:
        """Remove files until there is room for so many bytes more. False, and nothing removed, if there never is."""
        if size > self.limit:
            return False
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        excess = sum(stat.st_size for _, stat in files) + size - self.limit
        for path, stat in files:
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= stat.st_size
        return True

    def __str__(self) -> str:
        files = self._files()
        states = sum(path.parent.parent == self.folder and path.suffix != ".part" for path, _ in files)
        used = sum(stat.st_size for _, stat in files)
        count = f"{states} state{'' if states == 1 else 's'}"
        return f"kept for longer runs: {count}, {used / _GIB:.2f} of {self.limit / _GIB:g} GiB (PFL_KEEP)"

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """With what is being written, and what a killed process left of that."""
        found = []
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):
                found.append((path, path.stat()))
        return [(path, stat) for path, stat in found if S_ISREG(stat.st_mode)]
