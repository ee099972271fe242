"""The recall stage: kept results become the artifacts that training them would leave."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pflcore.artifacts import write_table
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.ledger import Ledger


def run(root: Path, outs: Iterable[Path]) -> str:
    """Write ``rounds.parquet`` of runs and ``<id>.json`` of selections from the ledger; return a line to show."""
    ledger, outs = Ledger(root), list(outs)
    for out in outs:
        name = out.stem if out.suffix == ".json" else out.parent.name
        if out.suffix == ".json" and (content := ledger.selection(name)) is not None:
            write_text(out, json.dumps(content, indent=1) + "\n")
        elif out.suffix != ".json" and (entry := ledger.get(name)):
            write_table(out, entry.rounds(), "rounds/2", run=name, kept=entry.obtained, **entry.facts)
        else:
            raise UserError(f"{name}: dropped from the ledger; type the same again")
    return f"{len(outs)} kept results"
