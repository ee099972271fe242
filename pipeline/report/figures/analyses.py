"""What runs found out beside accuracy: the rows of ``artifacts/runs/<run>/analysis.parquet``, a long table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.report.table.clients import measured_runs
from pipeline.report.table.layout import Key, Layout
from pipeline.report.table.measured import Measured

SCHEMA = "analysis/1"
COLUMNS = ["analysis", "client", "item", "index", "value"]


@dataclass(frozen=True)
class Found:
    """What one analysis of one run found.

    Attributes:
        path: The artifact, for messages.
        rows: client (-1 where a row is about none), item, index, value.
    """

    run: str
    path: Path
    rows: pd.DataFrame

    def values(self, item: str) -> pd.Series[float]:
        """The values of an item with one value per client, by client in ascending order.

        Raises:
            UserError: There is none, or a client has several.
        """
        mine = self.rows[self.rows["item"] == item]
        if mine.empty or mine["client"].duplicated().any():
            raise self.damaged(f"expected one {item!r} per client")
        return pd.Series(mine["value"].to_numpy(), index=mine["client"].to_numpy()).sort_index()

    def damaged(self, words: str) -> UserError:
        """The error to raise for rows that make no sense."""
        return UserError(f"{self.path}: {words}; delete it and run `dvc repro`")


Analyses = dict[str, dict[str, Found]]
"""Analysis → run id → what was found."""


def read_analyses(runs: dict[str, Measured]) -> Analyses:
    """The analyses of all runs that made any.

    Raises:
        UserError: An artifact is damaged.
    """
    analyses: Analyses = {}
    for run in runs.values():
        path = run.rounds_path.with_name("analysis.parquet")
        if not path.is_file():
            continue
        table = read_table(path, SCHEMA)[0]
        if not set(COLUMNS) <= set(table.column_names):
            raise UserError(f"{path}: expected the columns {', '.join(COLUMNS)}; delete it and run `dvc repro`")
        for name, rows in table.select(COLUMNS).to_pandas().groupby("analysis", sort=False):
            analyses.setdefault(str(name), {})[run.id] = Found(run.id, path, rows.reset_index(drop=True))
    return analyses


def by_cell(
    layout: Layout, runs: dict[str, Measured], found: dict[str, Found]
) -> Iterator[tuple[Key, Key, list[Found]]]:
    """Row, column and what was found by the cell's runs, for the cells of which any run made the analysis."""
    for row in layout.rows:
        for column in layout.columns:
            mine = [found[run.id] for run in measured_runs(layout.cell(row, column), runs) if run.id in found]
            if mine:
                yield row, column, mine
