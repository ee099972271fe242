"""What runs found out beside accuracy: the rows of ``artifacts/runs/<run>/analysis.parquet``, a long table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.report.table.measured import Measured

SCHEMA = "analysis/1"
COLUMNS = ["analysis", "client", "item", "index", "value"]


@dataclass(frozen=True)
class Findings:
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
        rows = self.rows[self.rows["item"] == item]
        if rows.empty or rows["client"].duplicated().any():
            raise self.damaged(f"expected one {item!r} per client")
        return pd.Series(rows["value"].to_numpy(), index=rows["client"].to_numpy()).sort_index()

    def damaged(self, words: str) -> UserError:
        """The error to raise for rows that make no sense."""
        return UserError(f"{self.path}: {words}; delete it and run `dvc repro`")


def read_findings(runs: Iterable[Measured]) -> dict[str, dict[str, Findings]]:
    """What each analysis found, by run id, of all runs that made any.

    Raises:
        UserError: An artifact is damaged.
    """
    analyses: dict[str, dict[str, Findings]] = {}
    for run in runs:
        path = run.rounds_path.with_name("analysis.parquet")
        if not path.is_file():
            continue
        table = read_table(path, SCHEMA)[0]
        if not set(COLUMNS) <= set(table.column_names):
            raise UserError(f"{path}: expected the columns {', '.join(COLUMNS)}; delete it and run `dvc repro`")
        for name, rows in table.select(COLUMNS).to_pandas().groupby("analysis", sort=False):
            analyses.setdefault(str(name), {})[run.id] = Findings(run.id, path, rows.reset_index(drop=True))
    return analyses
