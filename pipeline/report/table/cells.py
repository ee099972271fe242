"""The cells of a table: published and obtained value, which is best, which tie with it, and how far they are apart."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from pipeline.report.frame import ALL, LAST_TEN, Frame
from pipeline.report.statistics import BEYOND, NO_VERDICT, WITHIN, beside_published, significant
from pipeline.spec.metrics import BACKBONE, PERCENT, Quantity
from pipeline.spec.table import ResolvedTable, TableCell

Key = tuple[str, ...]
"""Labels on the axes of a side of a table."""

ACCURACY, PRECISION = "accuracy (%)", "mAP (%)"
"""What heads a column of accuracies, or stands at their axis; the same of detectors."""

MATCH, DIFFERS = "match", "differs"
"""Of a quantity: apart by less than one in the last digit that is printed, which may be rounded or cut off; or not."""

TRIAL, MISSING, DIVERGED = "trial", "missing", "diverged"
VERDICTS = (
    *(WITHIN, BEYOND, NO_VERDICT, MATCH, DIFFERS, TRIAL, MISSING, DIVERGED, "absent", "no published value"),
    "misprint",
)

SMOKE = "smoke"
"""The profile whose numbers mean nothing, so that none of them is called the best one."""

TIES = (
    "rows that cannot be told apart by their seeds, or are equal as printed, share the mean of their ranks: from the "
    "best downwards as many as cannot be told apart from it, then anew from the next"
)
"""How :func:`rank_cells` gives ranks by seeds. To be tied is not transitive: a group is tied with its first."""


@dataclass(frozen=True)
class Value:
    """A mean and, where one is defined, a standard deviation. Unit: percent and percentage points, by default.

    Attributes:
        n: Of a run's value: how many measurements, or clients, both are taken over.
        unit: One of those of :mod:`pipeline.spec.metrics`.
        printed: What is written in its place: a published quantity as the paper has it.
    """

    mean: float
    std: float | None = None
    n: int | None = field(default=None, compare=False)
    unit: str = field(default=PERCENT, compare=False)
    printed: str = field(default="", compare=False)


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        labels: The label on every row and column axis.
        runs: Ids of the runs that belong to it, one per combination of the averaged axes; empty: none is planned.
        n: Runs that the obtained value is made of.
        noise: By how much obtained and published value may differ by chance; None where there is no verdict on that.
        last: The obtained value after the last round, where it is the mean of the last ten measurements.
        client: The one client of the runs that it is about; None: all of them.
        by_seed: What the obtained value is made of: the mean over the runs of each seed.
        tied: Whether the obtained value cannot be told apart from the best of its column, by seeds; None: it is that
            one, or there are not two seeds that both have.
        quantity: What it shows in place of an accuracy.
        misprint: What is printed in the paper though it cannot be so; there is no published value then.
        figure: What is measured of a client: accuracy, or mean average precision of detectors.
        explained: Why what is obtained differs from what is published, as far as that is known.
    """

    labels: dict[str, str]
    runs: tuple[str, ...]
    obtained: Value | None
    n: int
    published: Value | None
    quoted: bool
    note: str
    verdict: str
    noise: float | None = None
    last: Value | None = None
    client: int | None = None
    best_obtained: bool = False
    best_published: bool = False
    by_seed: dict[int, float] = field(default_factory=dict)
    tied: bool | None = None
    quantity: Quantity | None = None
    misprint: str = ""
    figure: str = ACCURACY
    explained: str = ""

    @property
    def difference(self) -> float | None:
        """Obtained minus published mean, in percentage points or in the unit of its quantity."""
        if self.obtained is None or self.published is None:
            return None
        return self.obtained.mean - self.published.mean

    @property
    def complete(self) -> bool:
        """Whether all planned runs are in the obtained value."""
        return self.n > 0 and self.n == len(self.runs)

    def key(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return the labels on `axes`, in that order."""
        return tuple(self.labels[axis] for axis in axes)


def collect_cells(table: ResolvedTable, frame: Frame) -> list[Cell]:
    """Return the cells of a resolved table in its order, filled in from its runs.

    A run without a figure leaves its cell missing or made of fewer runs; one that diverged makes the cell diverged,
    because a mean over the survivors alone would flatter the method.
    """
    rows = defaultdict[Any, list[Any]](list)
    for row in planned_values(table, frame).itertuples(index=False):
        rows[row.cell].append(row)
    cells = [_cell(table, planned, rows[at]) for at, planned in enumerate(table.cells)]
    cells = [_judged(cell, planned) for cell, planned in zip(_in_percent(cells, frame), table.cells, strict=True)]
    printed = _best_of_columns(table, cells, lambda cell: cell.published)
    cells = [replace(cell, best_published=at in printed) for at, cell in enumerate(cells)]
    if table.profile == SMOKE:
        return [replace(cell, verdict=TRIAL) if cell.obtained else cell for cell in cells]
    best, tied = _best_of_columns(table, cells, lambda cell: cell.obtained), _tied(table, cells)
    return [
        replace(cell, best_obtained=at in best, tied=None if at in best else tied.get(at))
        for at, cell in enumerate(cells)
    ]


def planned_values(table: ResolvedTable, frame: Frame) -> pd.DataFrame:
    """Return a row per planned run of each cell: cell (its place in the table), run, seed, state, figure, mean, std and
    final (after the last round); no mean where it is missing."""
    planned = pd.DataFrame(
        [
            (at, run, ALL if cell.client is None else cell.client, cell.quantity.key if cell.quantity else table.metric)
            for at, cell in enumerate(table.cells)
            for run in cell.runs
        ],
        columns=["cell", "run", "client", "metric"],
    ).astype({"cell": int, "client": int})
    at = ["run", "client"]
    final = frame.values[frame.values["metric"] == "final"].rename(columns={"mean": "final"})
    rows = planned.merge(frame.runs[["run", "seed", "state", "figure"]], on="run")
    rows = rows.merge(frame.values, how="left", on=[*at, "metric"]).merge(final[[*at, "final"]], how="left", on=at)
    return rows.sort_values("cell", kind="stable")


def _cell(table: ResolvedTable, planned: TableCell, rows: list[Any]) -> Cell:
    """Return a cell without a verdict."""
    diverged = any(row.state == DIVERGED for row in rows)
    known = [] if diverged else [row for row in rows if not math.isnan(row.mean)]
    quantity, published = planned.quantity, planned.published
    unit = quantity.unit if quantity else PERCENT
    counted = bool(quantity and quantity.known and quantity.known.source == "plan")  # the same for any seed
    by_seed = defaultdict[int, list[float]](list)
    for row in known:
        by_seed[int(row.seed)].append(row.mean)
    return Cell(
        labels=planned.labels,
        runs=tuple(planned.runs),
        obtained=_average(known[:1], "mean", 1, unit) if counted else _average(known, "mean", len(rows), unit),
        n=len(known),
        published=None
        if published is None or published.mean is None
        else Value(published.mean, published.std, unit=unit, printed=published.printed),
        quoted=published is not None and published.quoted,
        note=published.note if published else "",
        verdict=DIVERGED if diverged else "",
        last=_average(known, "final", 0, unit) if table.metric == LAST_TEN and not quantity else None,
        client=planned.client,
        by_seed={seed: statistics.fmean(several) for seed, several in by_seed.items()},
        quantity=quantity,
        misprint=published.printed if published and published.misprint else "",
        figure=PRECISION if any(isinstance(row.figure, str) for row in rows) else ACCURACY,
        explained=published.explained if published else "",
    )


def _average(rows: list[Any], column: str, planned: int, unit: str) -> Value | None:
    """Return the mean of runs; ± is what one of them says of itself only where one is all there is to be."""
    means = [getattr(row, column) for row in rows]
    if len(means) < 2:
        std = rows[0].std if rows and planned == 1 and not math.isnan(rows[0].std) else None
        return Value(means[0], std, unit=unit) if means else None
    return Value(statistics.fmean(means), statistics.pstdev(means), unit=unit)


def _in_percent(cells: list[Cell], frame: Frame) -> list[Cell]:
    """Return the cells with those in percent that are shown so: of the cell of another row, or of the backbone."""
    found = {tuple(sorted(cell.labels.items())): cell.obtained for cell in cells}
    backbones = frame.values[frame.values["metric"] == BACKBONE].drop_duplicates("run").set_index("run")["mean"]
    shown = []
    for cell in cells:
        if cell.quantity and cell.quantity.relative:
            if cell.quantity.row:
                other = found.get(tuple(sorted({**cell.labels, **cell.quantity.row}.items())))
                whole = other.mean if other else None
            else:
                whole = next((float(backbones[run]) for run in cell.runs if run in backbones), None)
            ratio = 100.0 * cell.obtained.mean / whole if cell.obtained and whole else None
            less = 100.0 if cell.quantity.added_to else 0.0
            cell = replace(cell, obtained=None if ratio is None else Value(ratio - less), by_seed={})
        shown.append(cell)
    return shown


def _judged(cell: Cell, planned: TableCell) -> Cell:
    """Return a cell with its verdict."""
    noise, published = None, planned.published
    if cell.verdict == DIVERGED:
        verdict = DIVERGED
    elif not cell.runs:
        verdict = "absent"
    elif cell.obtained is None:
        verdict = MISSING
    elif cell.published is None or published is None:
        verdict = "misprint" if cell.misprint else "no published value"
    elif cell.quantity and (cell.difference == 0 or round(abs(cell.difference or 0.0), 9) < published.step):
        verdict = MATCH
    elif cell.quantity and cell.quantity.known and cell.quantity.known.source == "plan":  # chance has no part in it
        verdict = DIFFERS
    else:
        verdict, noise = beside_published(list(cell.by_seed.values()), cell.published.mean, cell.published.std)
    return replace(cell, verdict=verdict, noise=noise)


def _best_of_columns(table: ResolvedTable, cells: list[Cell], pick: Callable[[Cell], Value | None]) -> set[int]:
    """Return the places of the cells with the best picked value of their column; equal as printed is equal."""
    scores = pd.DataFrame(
        [
            (at, " / ".join(cell.key(table.columns)), round(value.mean, table.decimals))
            for at, cell in enumerate(cells)
            if (value := pick(cell)) and not cell.quantity
        ],
        columns=["cell", "column", "score"],
    )
    best = scores.groupby("column")["score"].transform("min" if table.better == "lower" else "max")
    return set(scores["cell"][scores["score"] == best])


def _tied(table: ResolvedTable, cells: list[Cell]) -> dict[int, bool | None]:
    """Return by place, of each cell beside the best of its column, whether it cannot be told apart from that."""
    sign = 1.0 if table.better == "lower" else -1.0
    columns = defaultdict[tuple[str, ...], list[tuple[float, int]]](list)
    for at, cell in enumerate(cells):
        if cell.obtained and not cell.quantity:
            columns[cell.key(table.columns)].append((sign * cell.obtained.mean, at))
    tied: dict[int, bool | None] = {}
    for scored in columns.values():
        best, *others = (at for _, at in sorted(scored))
        tied |= dict(zip(others, tied_with(cells[best], [cells[at] for at in others]), strict=True))
    return tied


def tied_with(one: Cell, others: Sequence[Cell]) -> list[bool | None]:
    """Return of each of the others whether it cannot be told apart from one; None where they do not share two seeds."""
    found = significant([(one.by_seed, other.by_seed) for other in others])
    return [None if differs is None else not differs for differs in found]


def rank_cells(
    cells: Mapping[Key, Cell], decimals: int, *, lower: bool = False, by_seeds: bool = True
) -> dict[Key, float]:
    """Return the rank of every complete cell of a column, 1 the best, with the ties of :data:`TIES`.

    Args:
        cells: By row.
        lower: Whether lower values are better.
        by_seeds: Whether seeds make ties; else only what is printed alike ties.
    """
    sign = 1.0 if lower else -1.0
    scores = {row: sign * cell.obtained.mean for row, cell in cells.items() if cell.obtained and cell.complete}
    left, ranks = sorted(scores, key=scores.__getitem__), dict[Key, float]()
    while left:
        printed = [round(scores[row], decimals) for row in left]
        tied = tied_with(cells[left[0]], [cells[row] for row in left[1:]]) if by_seeds else [False] * (len(left) - 1)
        same = [True, *(bool(one) or own == printed[0] for one, own in zip(tied, printed[1:], strict=True)), False]
        size = same.index(False)
        ranks |= dict.fromkeys(left[:size], len(ranks) + (size + 1) / 2)
        left = left[size:]
    return {row: ranks[row] for row in scores}
