"""The select stage: the trial with the best accuracy on validation samples is chosen; of equal ones the first."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import rounds_trained, summarise
from pipeline.spec.records import read_record, read_records
from pipeline.spec.run import Run


def run(id_: str, records: Path, runs: Path, out: Path) -> str:
    """Write what a selection chose and all that was tried into the file `out`; return a line to show.

    A trial counts by the mean over its seeds of the accuracy on validation samples, pooled over clients and averaged
    over the rounds of the window; one that diverged under any seed is not chosen.

    Args:
        records: The file with the records of the selection and of its trials.
        runs: The folder of the runs' artifacts.
    """
    record = read_record(records, id_)
    tried = read_records(records, (name for trial in record["trials"] for name in trial["runs"]))
    trials: list[dict[str, Any]] = []
    for trial in record["trials"]:
        accuracies: list[float | None] = []
        for name in trial["runs"]:
            rounds, settings = read_table(runs / name / "rounds.parquet", "rounds/2")[0], Run(tried[name])
            figures = summarise(rounds, settings.evaluation, rounds_trained(rounds, settings.training))
            accuracies.append(figures["validation"]["mean"] if figures else None)  # it diverged
        known = [accuracy for accuracy in accuracies if accuracy is not None]
        mean = statistics.fmean(known) if len(known) == len(accuracies) else None
        trials.append({**trial, "accuracies": accuracies, "mean": mean})
    finished = [trial for trial in trials if trial["mean"] is not None]
    if not finished:
        raise UserError(f"{id_}: all {len(trials)} trials diverged; widen the space of `tune`")
    best = max(finished, key=lambda trial: float(trial["mean"]))
    write_text(out, json.dumps({**record, "trials": trials, "chosen": best["chosen"]}, indent=1) + "\n")
    words = ", ".join(f"{name} {value}" for name, value in best["chosen"].items())
    return f"{id_}: {words} ({best['mean']:.2f} % on validation samples, best of {len(trials)} trials)"
