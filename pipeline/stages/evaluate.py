"""The evaluate stage: a run's measurements become per-client accuracies and the figures of every protocol."""

from __future__ import annotations

import json
from pathlib import Path

from pflcore.artifacts import read_table, write_table, write_text
from pflcore.protocols import final_clients, summarise
from pflcore.settings import Evaluation, Training
from pipeline.stages.records import read_record, settings


def run(record_path: Path, out: Path, metrics: Path) -> str:
    """Read ``rounds.parquet`` in the folder `out`; write ``evaluation.parquet`` beside it, and the file `metrics`."""
    record = read_record(record_path, "training", "evaluation")
    rounds, meta = read_table(out / "rounds.parquet", "rounds/2")
    evaluation = settings(Evaluation, record["evaluation"], record_path)
    figures = summarise(rounds, evaluation, settings(Training, record["training"], record_path).rounds)
    write_table(out / "evaluation.parquet", final_clients(rounds), "evaluation/1", **meta, protocols=figures)
    write_text(metrics, json.dumps(figures, indent=1) + "\n")
    words = ", ".join(f"{name} {figure['mean']:.2f}±{figure['std']:.2f}" for name, figure in figures.items())
    return f"{record_path.stem}: {words or 'diverged'}"
