"""The evaluate stage: a run's measurements become per-client accuracies and the figures of every protocol."""

from __future__ import annotations

from pathlib import Path

from pflcore.artifacts import read_table, write_table
from pflcore.protocols import final_clients, summarise
from pipeline.spec.records import read_run


def run(record_path: Path, out: Path) -> str:
    """Read ``rounds.parquet`` in the folder `out` and write ``evaluation.parquet`` beside it.

    That has the clients after the last round as its rows, and in its header the figures of every protocol.
    """
    record = read_run(record_path)
    rounds, meta = read_table(out / "rounds.parquet", "rounds/2")
    figures = summarise(rounds, record.evaluation, record.training.rounds)
    write_table(out / "evaluation.parquet", final_clients(rounds), "evaluation/1", **meta, protocols=figures)
    words = ", ".join(f"{name} {figure['mean']:.2f}±{figure['std']:.2f}" for name, figure in figures.items())
    return f"{record_path.stem}: {words or 'diverged'}"
