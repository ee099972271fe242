"""Stages that write small files from existing results: chosen settings, kept results, the index of reports."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pflcore.artifacts import read_table, write_table
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import rounds_trained, summarise
from pipeline.ledger import Ledger
from pipeline.report.formats import escape_markdown
from pipeline.spec.run import Run, read_record, read_records
from pipeline.spec.table import ResolvedTable


def select(id_: str, records: Path, runs: Path, out: Path) -> str:
    """Write all trials of a selection and the chosen one into the file `out`; return a line to show.

    The trial with the best accuracy on validation samples is chosen, the first one of equal trials. A trial's accuracy
    is pooled over clients, averaged over the rounds of the window, and then over its seeds. A trial that diverged
    under any seed is not chosen. Raises :class:`UserError` if all trials diverged.
    """
    record = read_record(records, id_)
    run_records = read_records(records, (name for trial in record["trials"] for name in trial["runs"]))
    trials: list[dict[str, Any]] = []
    for trial in record["trials"]:
        accuracies: list[float | None] = []
        for name in trial["runs"]:
            rounds, settings = read_table(runs / name / "rounds.parquet", "rounds/2")[0], Run(run_records[name])
            figures = summarise(rounds, settings.evaluation, rounds_trained(rounds, settings.training))
            accuracies.append(figures["validation"]["mean"] if figures else None)  # it diverged
        finite = [accuracy for accuracy in accuracies if accuracy is not None]
        mean = statistics.fmean(finite) if len(finite) == len(accuracies) else None
        trials.append({**trial, "accuracies": accuracies, "mean": mean})
    finished = [trial for trial in trials if trial["mean"] is not None]
    if not finished:
        raise UserError(f"{id_}: all {len(trials)} trials diverged; widen the space of `tune`")
    best = max(finished, key=lambda trial: float(trial["mean"]))
    write_text(out, json.dumps({**record, "trials": trials, "chosen": best["chosen"]}, indent=1) + "\n")
    words = ", ".join(f"{name} {value}" for name, value in best["chosen"].items())
    return f"{id_}: {words} ({best['mean']:.2f} % on validation samples, best of {len(trials)} trials)"


def recall(root: Path, outs: Iterable[Path]) -> str:
    """Write kept runs (``rounds.parquet``) and selections (``<id>.json``) from the ledger; return a line to show."""
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


def index(tables: Iterable[ResolvedTable], reports: Path) -> str:
    """Write ``index.md``, with a row per table, into the folder `reports`; return a line to show."""
    rows = ["| report | cells obtained | of | |", "|---|---:|---:|---|"]
    for table in tables:
        cells, _ = read_table(reports / table.spec / "table.parquet", "table/2")
        obtained = len(cells) - cells["obtained_mean"].null_count
        links = " · ".join(f"[{kind}]({table.spec}/report.{kind})" for kind in ("md", "html", "tex"))
        rows.append(f"| {escape_markdown(table.title)} | {obtained} | {len(table.cells)} | {links} |")
    write_text(reports / "index.md", "# Reports\n\n" + "\n".join(rows) + "\n")
    return f"reports: {reports / 'index.md'}"
