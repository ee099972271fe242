"""Figures per client: how accurate each client of a run is, and which run another may be compared with."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from pflcore.artifacts import read_table
from pflcore.protocols import final_clients
from pipeline.report.table.cells import Cell
from pipeline.report.table.measured import Measured
from pipeline.spec.run import Run

_COLUMNS = ["round", "client", "population", "moment", "correct", "total", "loss"]


def measured_runs(cell: Cell | None, runs: dict[str, Measured]) -> list[Measured]:
    """The runs of a cell that were measured; none when one of them diverged, as those left would flatter it."""
    mine = [runs[run] for run in cell.runs] if cell else []
    return [] if any(run.diverged for run in mine) else [run for run in mine if run.facts]


def client_accuracies(run: Measured) -> pd.Series[float]:
    """Test accuracy in percent after the last measured round by client; clients without test samples are left out."""
    table = final_clients(read_table(run.rounds_path, "rounds/2", _COLUMNS)[0])
    accuracies = pd.Series(100.0 * table["accuracy"].to_numpy(), index=table["client"].to_numpy())
    return accuracies.dropna()


def federation_of(run: Measured) -> str:
    """The id of the partition, seed included, on which a run was trained."""
    return Run(run.record).federation_id


def is_method(run: Measured, name: str) -> bool:
    """Whether the run trains that method."""
    return bool(run.record["method"]["name"] == name)


def closest(run: Measured, others: Iterable[Measured]) -> Measured | None:
    """The run among `others` that a figure of this one may be compared with; None where there is none.

    It must have a backbone of the same name. Of several the one is taken whose backbone has the same options, then
    whose training has the same settings.
    """
    backbone, training = run.record["backbone"], run.record["training"]
    comparable = [other for other in others if other.record["backbone"]["name"] == backbone["name"]]
    return min(
        comparable,
        key=lambda other: (other.record["backbone"] != backbone, other.record["training"] != training, other.id),
        default=None,
    )
