"""The evaluate stage: a run's measurements become per-client accuracies and the figures of every protocol."""

from __future__ import annotations

from pathlib import Path

from pflcore.artifacts import read_table, write_table
from pflcore.protocols import Figures, final_clients, rounds_trained, summarise
from pipeline.spec.records import read_run
from pipeline.spec.run import Run


def run(record_path: Path, out: Path) -> str:
    """Read ``rounds.parquet`` in the folder `out` and write ``evaluation.parquet`` beside it.

    That has the clients after the last round as its rows, and in its header the figures of every protocol.
    """
    figures = evaluate(read_run(record_path), out)
    words = ", ".join(f"{name} {figure['mean']:.2f}±{figure['std']:.2f}" for name, figure in figures.items())
    return f"{record_path.stem}: {words or 'diverged'}"


def evaluate(resolved: Run, out: Path) -> Figures:
    """As :func:`run`, of a run whose record need not lie anywhere; its figures."""
    rounds, meta = read_table(out / "rounds.parquet", "rounds/2")
    figures = summarise(rounds, resolved.evaluation, rounds_trained(rounds, resolved.training))
    write_table(out / "evaluation.parquet", final_clients(rounds), "evaluation/1", **meta, protocols=figures)
    return figures
