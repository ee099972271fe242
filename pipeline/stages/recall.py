"""The recall stage: a kept result becomes the artifact that training it would leave."""

from __future__ import annotations

from pathlib import Path

from pflcore.artifacts import write_table
from pflcore.errors import UserError
from pipeline.ledger.entry import read_entry


def run(path: Path, out: Path) -> str:
    """Write ``rounds.parquet`` into the folder `out` from the entry in `path`; returns a line to show.

    Raises:
        UserError: The entry is damaged.
    """
    from pipeline.ledger.measurements import from_lines

    entry = read_entry(path)
    try:
        rounds = from_lines(entry.measurements)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    write_table(out / "rounds.parquet", rounds, "rounds/2", run=entry.run.id, kept=entry.obtained, **entry.facts)
    return f"{entry.run.id}: kept since {entry.obtained}"
