"""A table with what its runs left behind: what every part of a report is made from."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd
import pyarrow as pa

from pflcore.errors import UserError
from pipeline.report.frame import ALL, FACTS_AS_JSON, Frame
from pipeline.report.table.cells import Cell, Key, Value, collect_cells, rank_cells
from pipeline.report.table.layout import Layout, short
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable, TableRank

_COLUMNS = pa.schema(
    [
        ("published_mean", pa.float64()),
        ("published_std", pa.float64()),
        ("quoted", pa.bool_()),
        ("obtained_mean", pa.float64()),
        ("obtained_std", pa.float64()),
        ("n", pa.int64()),
        ("difference", pa.float64()),
        ("best_published", pa.bool_()),
        ("best_obtained", pa.bool_()),
        ("tied", pa.bool_()),
        ("verdict", pa.string()),
        ("runs", pa.string()),
        ("kept_since", pa.string()),
        ("by_seed", pa.list_(pa.struct([("seed", pa.int64()), ("value", pa.float64())]))),
    ]
)
_LAST = pa.field("last_round", pa.float64())
"""Of a table that shows the mean over the last measurements."""


@dataclass(frozen=True)
class Measured:
    """One run of a frame.

    Attributes:
        resolved: What was asked for.
        state: As in the frame.
        facts: Device, hashes, sizes; empty while the run has not been made.
        by_client: By client, or :data:`~pipeline.report.frame.ALL`: values by metric.
        curves: Likewise: the pooled accuracy in percent, indexed by round.
        clients: The accuracy in percent of each client that has test samples after the last round.
    """

    id: str
    resolved: Run
    state: str
    facts: dict[str, Any]
    by_client: dict[int, dict[str, Value]]
    curves: dict[int, pd.Series[float]]
    clients: pd.Series[float] = field(default_factory=lambda: pd.Series(dtype=float))

    @property
    def made(self) -> bool:
        return self.state != "missing"

    @property
    def diverged(self) -> bool:
        return self.state == "diverged"

    @property
    def kept(self) -> str:
        """The day on which it was obtained, if it comes from the ledger; else ""."""
        return str(self.facts.get("kept") or "")

    @property
    def values(self) -> dict[str, Value]:
        """By metric, of all clients; none of accuracy while the run has not been made, and for one that diverged."""
        return self.values_of(None)

    def values_of(self, client: int | None) -> dict[str, Value]:
        """Return values by metric: of one client, or of all for None."""
        return self.by_client.get(ALL if client is None else client, {})

    def curve(self, client: int | None) -> pd.Series[float]:
        """Return the accuracy in percent by measured round, pooled or of one client; empty where there is none."""
        return self.curves.get(ALL if client is None else client, pd.Series(dtype=float))


@dataclass(frozen=True)
class RankColumns:
    """The columns of one entry of ``table.derived``.

    Attributes:
        name: What they are called in files, such as ``rank_over_partition``.
        title: What heads them.
        over: The axes of the columns that they are the mean over.
        groups: For each the columns of the table that it is the mean over.
        values: By row and place of the group; a row is left out that lacks a number in one of the columns.
    """

    name: str
    title: str
    over: list[str]
    groups: list[list[Key]]
    values: dict[tuple[Key, int], float]


@dataclass(frozen=True)
class Results:
    """A resolved table filled in.

    Attributes:
        runs: By id, sorted.
        cells: In the table's order.
    """

    table: ResolvedTable
    frame: Frame
    runs: dict[str, Measured]
    cells: list[Cell]
    layout: Layout

    @classmethod
    def of(cls, table: ResolvedTable, frame: Frame) -> Results:
        """Return the results of a table from the frame of its runs."""
        cells = collect_cells(table, frame)
        return cls(table, frame, measured_runs(frame), cells, Layout(table, cells))

    @cached_property
    def of_runs(self) -> Results:
        """The same, laid out for what is said of a run once: see :meth:`Layout.of_runs`."""
        return replace(self, layout=self.layout.of_runs())

    def under(self, protocol: str) -> Results:
        """Return the same runs with another protocol as the metric; it may be one that no spec can name."""
        table = self.table.model_copy(update={"metric": protocol})
        cells = collect_cells(table, self.frame)
        return replace(self, table=table, cells=cells, layout=Layout(table, cells))

    def measured(self, row: Key, column: Key) -> list[Measured]:
        """Return the runs of a cell that were measured; none when one of them diverged: those left would flatter it."""
        cell = self.layout.cell(row, column)
        runs = [self.runs[run] for run in cell.runs] if cell else []
        return [] if any(run.diverged for run in runs) else [run for run in runs if run.made and run.values]

    @property
    def selections(self) -> dict[str, str]:
        """What select stages wrote, by id."""
        return dict(zip(self.frame.selections["selection"], self.frame.selections["content"], strict=True))

    def ranks(self, column: Key, *, by_seeds: bool = True) -> dict[Key, float]:
        """Return the ranks of the rows within a column: see :func:`rank_cells`."""
        cells = {row: cell for row in self.layout.rows if (cell := self.layout.cell(row, column))}
        return rank_cells(cells, self.table.decimals, lower=self.table.better == "lower", by_seeds=by_seeds)

    def derived(self) -> list[RankColumns]:
        """Return the columns of ranks of the table, in the order of its spec."""
        ranks = {column: self.ranks(column) for column in self.layout.columns} if self.table.derived else {}
        return [self._derived(one, ranks) for one in self.table.derived]

    def _derived(self, derived: TableRank, ranks: dict[Key, dict[Key, float]]) -> RankColumns:
        over, grouped = derived.over, dict[Key, list[Key]]()
        for column in self.layout.columns:
            labels = zip(self.layout.column_axes, column, strict=True)
            grouped.setdefault(tuple(label for axis, label in labels if axis not in over), []).append(column)
        values = {
            (row, place): statistics.fmean(ranks[column][row] for column in group)
            for row in self.layout.rows
            for place, group in enumerate(grouped.values())
            if all(row in ranks[column] for column in group)
        }
        title = f"mean rank over {', '.join(map(short, over))}" if len(grouped) > 1 else "mean rank"
        name = f"rank_over_{'_'.join(over)}" if over else "rank"
        return RankColumns(name, title if over else "rank", over, list(grouped.values()), values)

    def to_arrow(self) -> pa.Table:
        """Return tidy rows, one per cell, as the columns of a ``table/2`` artifact.

        These are spec, a column per axis, values, verdict, run ids joined by spaces, the last day on which a kept run
        of the cell was obtained, the value of each seed, and columns of ranks; what is unknown is null.

        Raises:
            UserError: An axis has the name of one of the other columns.
        """
        table, derived = self.table, self.derived()
        last = [_LAST] if table.metric == "last_ten" else []
        ranks = [pa.field(one.name, pa.float64()) for one in derived]
        labels = [pa.field(name, pa.string()) for name in ("spec", *table.axes)]
        for axis in table.axes:
            if axis in ("spec", _LAST.name, *_COLUMNS.names, *(one.name for one in derived)):
                raise UserError(f"{table.spec}: an axis cannot be named {axis!r}, which is a column of every report")
        rows = [self._row(cell, derived) for cell in self.cells]
        return pa.Table.from_pylist(rows, schema=pa.schema([*labels, *_COLUMNS, *last, *ranks]))

    def _row(self, cell: Cell, derived: list[RankColumns]) -> dict[str, object]:
        row, column = cell.key(self.layout.row_axes), cell.key(self.layout.column_axes)
        places = {one.name: next(at for at, group in enumerate(one.groups) if column in group) for one in derived}
        return {
            "spec": self.table.spec,
            **cell.labels,
            "published_mean": cell.published and cell.published.mean,
            "published_std": cell.published and cell.published.std,
            "quoted": cell.quoted,
            "obtained_mean": cell.obtained and cell.obtained.mean,
            "obtained_std": cell.obtained and cell.obtained.std,
            "n": cell.n,
            "difference": cell.difference,
            "best_published": cell.best_published,
            "best_obtained": cell.best_obtained,
            "tied": cell.tied,
            "verdict": cell.verdict,
            "runs": " ".join(cell.runs),
            "kept_since": max((self.runs[run].kept for run in cell.runs), default="") or None,
            _LAST.name: cell.last and cell.last.mean,
            "by_seed": [{"seed": seed, "value": value} for seed, value in cell.by_seed.items()],
            **{one.name: one.values.get((row, places[one.name])) for one in derived},
        }


def measured_runs(frame: Frame) -> dict[str, Measured]:
    """Return the runs of a frame by id."""
    values: dict[str, dict[int, dict[str, Value]]] = {}
    for run, client, metric, mean, std, n in frame.values.to_numpy().tolist():
        of_run = values.setdefault(run, {}).setdefault(client, {})
        of_run[metric] = Value(mean, None if math.isnan(std) else std, n)
    curves: dict[str, dict[int, pd.Series[float]]] = {}
    by_client: Iterable[Any] = frame.rounds.groupby(["run", "client"], sort=False)
    for (run, client), rows in by_client:
        curves.setdefault(run, {})[client] = pd.Series(rows["accuracy"].to_numpy(), index=rows["round"].to_numpy())
    clients = {
        str(run): pd.Series(rows["accuracy"].to_numpy(), index=rows["client"].to_numpy()).dropna()
        for run, rows in frame.clients.groupby("run", sort=False)
    }
    runs = {}
    for row in frame.runs.to_dict("records"):
        about = {str(name): value for name, value in row.items() if not pd.isna(value)}
        id_, _, state, settings = (about.pop(name) for name in ("run", "seed", "state", "settings"))
        about |= {name: json.loads(about[name]) for name in FACTS_AS_JSON if name in about}
        runs[id_] = Measured(
            id_,
            Run(json.loads(settings)),
            state,
            {} if state == "missing" else about,
            values.get(id_, {}),
            curves.get(id_, {}),
            clients.get(id_, pd.Series(dtype=float)),
        )
    return runs
