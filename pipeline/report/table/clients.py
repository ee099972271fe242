"""Figures per client: how accurate each client of a run is, and which run another may be compared with."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from pflcore.artifacts import read_table
from pflcore.protocols import final_clients
from pipeline.report.table.measured import Measured


def client_accuracies(run: Measured) -> pd.Series[float]:
    """Test accuracy in percent after the last measured round by client; clients without test samples are left out."""
    table = final_clients(read_table(run.rounds_path, "rounds/2")[0])
    accuracies = pd.Series(100.0 * table["accuracy"].to_numpy(), index=table["client"].to_numpy())
    return accuracies.dropna()


def closest(run: Measured, others: Iterable[Measured]) -> Measured | None:
    """The run among `others` that a figure of this one may be compared with; None where there is none.

    It must have a backbone of the same name. Of several the one is taken whose backbone has the same options, then
    whose training has the same settings.
    """
    own = run.resolved

    def distance(other: Measured) -> tuple[bool, bool, str]:
        of = other.resolved
        return of.options("backbone") != own.options("backbone"), of.training != own.training, other.id

    return min((other for other in others if other.resolved.backbone == own.backbone), key=distance, default=None)
