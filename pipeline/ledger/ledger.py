"""The ledger: which kept results there are, and whether one is what a run would give today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pflcore.errors import UserError
from pipeline.ledger.entry import Entry, read_entry
from pipeline.spec.run import Run
from pipeline.workspace import RESULTS


@dataclass(frozen=True)
class Ledger:
    """The kept results of a workspace, in its folder ``results/``."""

    root: Path

    def path(self, run: Run) -> Path:
        """Where a run is kept, or would be."""
        return self.root / result_path(run)

    def paths(self) -> list[Path]:
        """All files of kept results, sorted."""
        return sorted((self.root / RESULTS).glob("*/*.yaml"))

    def find(self, run: Run, made_by: Mapping[str, str]) -> Entry | None:
        """What is kept of a run, if it was made by the code that would make it now.

        Args:
            made_by: Name of a fingerprint → digest, now.

        Raises:
            UserError: There is a file for it which cannot be trusted.
        """
        path = self.path(run)
        if not path.exists() and not path.is_symlink():
            return None
        entry = read_entry(path)
        return None if difference(entry, made_by) else entry


def difference(entry: Entry, made_by: Mapping[str, str]) -> str:
    """What code has changed since a run was kept, in words; "" when nothing has."""
    names = changed(entry, made_by)
    return f"made by other code: {', '.join(names)}" if names else ""


def changed(entry: Entry, made_by: Mapping[str, str]) -> list[str]:
    """The names of the fingerprints of which that is so."""
    return [name for name in {**entry.made_by, **made_by} if entry.made_by.get(name) != made_by.get(name)]


def result_path(run: Run) -> str:
    """The file of a kept run, relative to the workspace."""
    return f"{RESULTS}/{run.federation_id}/{run.id}.yaml"


def trusted(path: Path) -> Entry | str:
    """An entry, or why it is none."""
    try:
        return read_entry(path)
    except UserError as error:
        return str(error)
