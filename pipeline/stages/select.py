"""The select stage: the trial with the best accuracy on validation samples is chosen; of equal ones the first."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from pflcore.artifacts import read_meta
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.spec.records import read_record

PROTOCOL = "validation"


def run(record_path: Path, runs: Path, out: Path) -> str:
    """Write what was chosen and all that was tried into the file `out`; returns a line to show.

    A trial counts by the mean over its seeds of the accuracy on validation samples, pooled over clients and averaged
    over the rounds of the window; one that diverged under any seed is not chosen.

    Args:
        record_path: The trials.
        runs: The folder of the runs' artifacts.

    Raises:
        UserError: An artifact is damaged, or every trial diverged.
    """
    record = read_record(record_path, "space", "size", "rounds", "trials")
    trials: list[dict[str, Any]] = []
    for trial in record["trials"]:
        accuracies = [_accuracy(runs / name / "evaluation.parquet") for name in trial["runs"]]
        known = [accuracy for accuracy in accuracies if accuracy is not None]
        mean = statistics.fmean(known) if len(known) == len(accuracies) else None
        trials.append({**trial, "accuracies": accuracies, "mean": mean})
    finished = [trial for trial in trials if trial["mean"] is not None]
    if not finished:
        raise UserError(f"{record_path.stem}: all {len(trials)} trials diverged; widen the space of `tune`")
    best = max(finished, key=lambda trial: float(trial["mean"]))  # of equal ones the first
    write_text(out, json.dumps({**record, "trials": trials, "chosen": best["chosen"]}, indent=1) + "\n")
    words = ", ".join(f"{name} {value}" for name, value in best["chosen"].items())
    return f"{record_path.stem}: {words} ({best['mean']:.2f} % on validation samples, best of {len(trials)} trials)"


def _accuracy(path: Path) -> float | None:
    """Of a trial, in percent; None when it diverged."""
    protocols: Any = read_meta(path, "evaluation/1").get("protocols")
    if protocols == {}:
        return None
    try:
        return float(protocols[PROTOCOL]["mean"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: damaged metadata, protocols; delete it and run again") from None
