"""How soon a cell's runs converge: the round in which they come near the accuracy they end with."""

from __future__ import annotations

import statistics
from functools import cache

import pyarrow.compute as pc

from pflcore.artifacts import read_table
from pflcore.protocols import curve
from pipeline.report.claims.noise import Pick
from pipeline.report.table.cells import Cell
from pipeline.report.table.measured import Measured, Value

_COLUMNS = ["round", "client", "population", "moment", "correct", "total", "loss"]


def rounds_to_reach(share: float, runs: dict[str, Measured]) -> Pick:
    """A cell's first measured round with `share` of the accuracy of its last one, in the mean over its runs.

    The deviation is that between the runs; a single one has none. Rounds are known as finely as they were measured.
    """

    @cache
    def rounds(run: str, client: int | None) -> int:
        table, _ = read_table(runs[run].rounds_path, "rounds/2", _COLUMNS)
        if client is not None:
            table = table.filter(pc.equal(table["client"], client))
        measured, accuracy, _ = curve(table)
        return int(measured[(accuracy >= share * accuracy[-1]).argmax()])

    def of_cell(cell: Cell) -> Value | None:
        if not cell.complete:
            return None
        several = [rounds(run, cell.client) for run in cell.runs]
        return Value(statistics.fmean(several), statistics.pstdev(several) if len(several) > 1 else None)

    return of_cell
