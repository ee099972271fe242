"""The cells of a table: published and obtained value, which is best, and how far they are apart."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pipeline.report.statistics.noise import BEYOND, NO_VERDICT, WITHIN, beside_published
from pipeline.report.table.apart import tied_with
from pipeline.report.table.measured import Measured, Value
from pipeline.report.table.printed import ACCURACY, PRECISION
from pipeline.spec.metrics import BACKBONE, PERCENT, Quantity
from pipeline.spec.table import Published, ResolvedTable, TableCell

MATCH, DIFFERS = "match", "differs"
"""Of a quantity: apart by less than one in the last digit that is printed, which may be rounded or cut off; or not."""

VERDICTS = (
    *(WITHIN, BEYOND, NO_VERDICT, MATCH, DIFFERS, "trial", "missing", "diverged", "absent", "no published value"),
    "misprint",
)

_SMOKE = "smoke"
"""The profile whose numbers mean nothing, so that none of them is called the best one."""


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        labels: The label on every row and column axis.
        runs: Ids of the runs that belong to it, one per combination of the averaged axes; empty: none is planned.
        n: Runs that the obtained value is made of.
        client: The one client of the runs that it is about; None: all of them.
        by_seed: What the obtained value is made of: the mean over the runs of each seed.
        tied: Whether the obtained value cannot be told apart from the best of its column, by seeds; None: it is that
            one, or there are not two seeds that both have.
        verdict: One of :data:`VERDICTS`.
        noise: By how much obtained and published value may differ by chance; None where there is no verdict on that.
        last: The obtained value after the last round, where it is the mean of the last ten measurements.
        quantity: What it shows in place of an accuracy.
        step: What one is worth in the last digit that the paper prints of it.
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
    step: float = 0.0
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
        """The labels on `axes`, in that order."""
        return tuple(self.labels[axis] for axis in axes)


def collect_cells(table: ResolvedTable, runs: dict[str, Measured]) -> list[Cell]:
    """The cells of a resolved table in its order, filled in from the runs.

    A run without a figure leaves its cell missing or made of fewer runs; one that diverged makes the cell diverged,
    because a mean over the survivors alone would flatter the method.
    """
    cells = in_percent([_cell(planned, runs, table.metric) for planned in table.cells], runs)
    published = _best(table, cells, lambda cell: cell.published)
    obtained = [False] * len(cells)
    tied: list[bool | None] = [None] * len(cells)
    if table.profile == _SMOKE:
        cells = [replace(cell, verdict="trial") if cell.obtained else cell for cell in cells]
    else:
        obtained, tied = _best(table, cells, lambda cell: cell.obtained), _tied(table, cells)
    return [
        replace(cell, best_obtained=best, best_published=printed, tied=None if best else same)
        for cell, best, printed, same in zip(cells, obtained, published, tied, strict=True)
    ]


def _cell(planned: TableCell, runs: dict[str, Measured], metric: str) -> Cell:
    quantity = planned.quantity
    metric, unit = (quantity.key, quantity.unit) if quantity else (metric, PERCENT)
    counted = quantity is not None and quantity.known is not None and quantity.known.source == "plan"
    diverged = any(runs[run].diverged for run in planned.runs)
    by_run = [] if diverged else [runs[run].values_of(planned.client) for run in planned.runs]
    values = [by_protocol[metric] for by_protocol in by_run if metric in by_protocol]
    published = planned.published
    cell = Cell(
        labels=planned.labels,
        runs=tuple(planned.runs),
        obtained=_average(values[:1], 1) if counted else _average(values, len(planned.runs)),  # the same for any seed
        n=len(values),
        by_seed={} if diverged else _by_seed(planned, runs, metric),
        published=_published(published, unit),
        misprint=published.printed if published and published.misprint else "",
        step=published.step if published else 0.0,
        quoted=published is not None and published.quoted,
        note=published.note if published else "",
        explained=published.explained if published else "",
        verdict="",
        last=_average([by_protocol["final"] for by_protocol in by_run if metric in by_protocol], len(planned.runs))
        if metric == "last_ten"
        else None,
        client=planned.client,
        quantity=quantity,
        figure=PRECISION if any("figure" in runs[run].facts for run in planned.runs) else ACCURACY,
    )
    return replace(cell, verdict="diverged") if diverged else _judged(cell)


def _published(published: Published | None, unit: str) -> Value | None:
    if published is None or published.mean is None:
        return None
    return Value(published.mean, published.std, unit=unit, printed=published.printed)


def in_percent(cells: list[Cell], runs: dict[str, Measured]) -> list[Cell]:
    """The cells with those in percent that are shown so: of the cell of another row, or of the backbone."""
    found = {tuple(sorted(cell.labels.items())): cell.obtained for cell in cells}

    def reference(cell: Cell, quantity: Quantity) -> Value | None:
        if not quantity.row:
            return next((runs[run].values.get(BACKBONE) for run in cell.runs), None)
        return found.get(tuple(sorted({**cell.labels, **quantity.row}.items())))

    shown = []
    for cell in cells:
        if cell.quantity and cell.quantity.relative:
            one, other = cell.obtained, reference(cell, cell.quantity)
            ratio = 100.0 * one.mean / other.mean if one and other and other.mean else None
            less = 100.0 if cell.quantity.added_to else 0.0
            cell = _judged(replace(cell, obtained=None if ratio is None else Value(ratio - less), by_seed={}))
        shown.append(cell)
    return shown


def _by_seed(planned: TableCell, runs: dict[str, Measured], metric: str) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for run in (runs[run] for run in planned.runs):
        if value := run.values_of(planned.client).get(metric):
            values.setdefault(run.resolved.seed, []).append(value.mean)
    return {seed: statistics.fmean(several) for seed, several in values.items()}


def _average(values: list[Value], planned: int) -> Value | None:
    """The mean of runs; ± is what one of them says of itself only where one is all there is to be."""
    if len(values) < 2:
        return replace(values[0], std=values[0].std if planned == 1 else None) if values else None
    means, unit = [value.mean for value in values], values[0].unit
    return Value(statistics.fmean(means), statistics.pstdev(means), unit=unit)


def _judged(cell: Cell) -> Cell:
    if not cell.runs:
        return replace(cell, verdict="absent")
    if cell.obtained is None:
        return replace(cell, verdict="missing")
    if cell.published is None:
        return replace(cell, verdict="misprint" if cell.misprint else "no published value")
    if cell.quantity:
        distance = abs(cell.obtained.mean - cell.published.mean)
        if distance <= 1e-9 or round(distance, 9) < cell.step:
            return replace(cell, verdict=MATCH)
        if cell.quantity.known and cell.quantity.known.source == "plan":  # in which chance has no part
            return replace(cell, verdict=DIFFERS)
    verdict, noise = beside_published(list(cell.by_seed.values()), cell.published.mean, cell.published.std)
    return replace(cell, verdict=verdict, noise=noise)


def _best(table: ResolvedTable, cells: list[Cell], pick: Callable[[Cell], Value | None]) -> list[bool]:
    """Which cells hold the best picked value of their column; equal as printed is equal."""
    sign = -1.0 if table.better == "lower" else 1.0

    def score(cell: Cell) -> float | None:
        value = None if cell.quantity else pick(cell)
        return None if value is None else sign * round(value.mean, table.decimals)

    best: dict[tuple[str, ...], float] = {}
    for cell in cells:
        column, own = cell.key(table.columns), score(cell)
        if own is not None:
            best[column] = max(own, best.get(column, own))
    return [score(cell) is not None and score(cell) == best[cell.key(table.columns)] for cell in cells]


def _tied(table: ResolvedTable, cells: list[Cell]) -> list[bool | None]:
    """Of each cell that has a value, whether it cannot be told apart from the best of its column."""
    sign = -1.0 if table.better == "lower" else 1.0
    tied: list[bool | None] = [None] * len(cells)
    columns: dict[tuple[str, ...], list[tuple[float, int]]] = {}
    for index, cell in enumerate(cells):
        if cell.obtained and not cell.quantity:
            columns.setdefault(cell.key(table.columns), []).append((-sign * cell.obtained.mean, index))
    for scored in columns.values():
        best, *others = (index for _, index in sorted(scored))
        found = tied_with(cells[best].by_seed, [cells[index].by_seed for index in others])
        for index, same in zip(others, found, strict=True):
            tied[index] = same
    return tied
