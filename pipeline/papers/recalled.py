"""Kept results for the pages of papers, which show what there is of all specs without running a stage."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.compile.compilation import Compilation
from pipeline.ledger import Ledger
from pipeline.stages.recall import write_rounds
from pipeline.workspace import RECALLED, run_path


def recall(root: Path, compilation: Compilation) -> None:
    """Unpack kept results that the workspace has no artifacts of, and remove those that are not valid any more.

    Raises:
        UserError: A kept result is damaged.
    """
    folder = root / RECALLED
    for left in folder.glob("*"):
        if left.name in compilation.runs and left.name not in compilation.kept:
            shutil.rmtree(left)
    ledger = Ledger(root)
    for name in sorted(compilation.kept & ledger.lines.keys()):
        made, file = folder / name / "rounds.parquet", ledger.lines[name][0]
        if (root / run_path(name, "rounds.parquet")).is_file():
            continue
        if not made.is_file() or made.stat().st_mtime_ns < file.stat().st_mtime_ns:
            entry = ledger.get(name)
            assert entry is not None
            write_rounds(entry, made)
