"""The cells of a table: published and obtained value, which is best, which tie with it, and how far they are apart."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pipeline.report.frame import LAST_TEN, Frame, Measured
from pipeline.report.frame import Value as Value
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


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        runs: Ids of its runs, one per combination of the averaged axes; empty: none is planned.
        n: How many runs the obtained value is made of.
        noise: By how much obtained and published value may differ by chance; None where there is no verdict on that.
        last: The obtained value after the last round, where it is the mean of the last ten measurements.
        client: The one client of the runs that it is about; None: all of them.
        by_seed: What the obtained value is made of: the mean over the runs of each seed.
        tied: Whether the obtained value cannot be told apart from the best of its column, by seeds; None: it is that
            one, or there are not two seeds that both have.
        quantity: What it shows in place of an accuracy.
        misprint: What is printed in the paper though it cannot be so; there is no published value then.
        explained: Why what is obtained differs from what is published, as far as that is known.
    """

    labels: dict[str, str]
    runs: tuple[str, ...]
    obtained: Value | None
    n: int
    published: Value | None = None
    quoted: bool = False
    note: str = ""
    verdict: str = ""
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
        return self.obtained.mean - self.published.mean if self.obtained and self.published else None

    @property
    def complete(self) -> bool:
        """Whether all planned runs are in the obtained value."""
        return self.n > 0 and self.n == len(self.runs)

    def key(self, axes: Iterable[str]) -> Key:
        """Return the labels on `axes`, in that order."""
        return tuple(self.labels[axis] for axis in axes)


def collect_cells(table: ResolvedTable, frame: Frame) -> list[Cell]:
    """Return the cells of a resolved table in its order, filled in from its runs.

    A run without a figure leaves its cell missing or made of fewer runs; one that diverged makes the cell diverged,
    because a mean over the survivors alone would flatter the method.
    """
    cells = [_cell(table, planned, [frame.measured[run] for run in planned.runs]) for planned in table.cells]
    found = {tuple(sorted(cell.labels.items())): cell.obtained for cell in cells}
    cells = [_in_percent(cell, found, frame) if cell.quantity and cell.quantity.relative else cell for cell in cells]
    cells = [_judged(cell, planned) for cell, planned in zip(cells, table.cells, strict=True)]
    printed = _best(table, cells, lambda cell: cell.published)
    cells = [replace(cell, best_published=at in printed) for at, cell in enumerate(cells)]
    if table.profile == SMOKE:
        return [replace(cell, verdict=TRIAL) if cell.obtained else cell for cell in cells]
    best, tied = _best(table, cells, lambda cell: cell.obtained), _tied(table, cells)
    return [
        replace(cell, best_obtained=at in best, tied=None if at in best else tied.get(at))
        for at, cell in enumerate(cells)
    ]


def _cell(table: ResolvedTable, planned: TableCell, runs: list[Measured]) -> Cell:
    """Return a cell without a verdict."""
    quantity, published = planned.quantity, planned.published
    unit, metric = (quantity.unit, quantity.key) if quantity else (PERCENT, table.metric)
    diverged = any(run.diverged for run in runs)
    known = [run for run in runs if not diverged and metric in run.values_of(planned.client)]
    values = [run.values_of(planned.client)[metric] for run in known]
    last = [run.values_of(planned.client)["final"] for run in known] if metric == LAST_TEN else []
    by_seed = defaultdict[int, list[float]](list)
    for run, value in zip(known, values, strict=True):
        by_seed[run.resolved.seed].append(value.mean)
    if _is_counted(quantity):  # the same for any seed
        values, runs = values[:1], runs[:1]
    cell = Cell(
        labels=planned.labels,
        runs=tuple(planned.runs),
        obtained=_average(values, len(runs), unit),
        n=len(known),
        verdict=DIVERGED if diverged else "",
        last=_average(last, 0, unit),
        client=planned.client,
        by_seed={seed: statistics.fmean(several) for seed, several in by_seed.items()},
        quantity=quantity,
        figure=PRECISION if any("figure" in run.facts for run in runs) else ACCURACY,
    )
    if published is None:
        return cell
    printed, mean = published.printed, published.mean
    return replace(
        cell,
        published=None if mean is None else Value(mean, published.std, unit=unit, printed=printed),
        misprint=printed if published.misprint else "",
        **{name: getattr(published, name) for name in ("quoted", "note", "explained")},
    )


def _average(values: list[Value], planned: int, unit: str) -> Value | None:
    """Return the mean of runs; ± is what one of them says of itself only where one is all there is to be."""
    means = [value.mean for value in values]
    if len(means) < 2:
        return Value(means[0], values[0].std if planned == 1 else None, unit=unit) if means else None
    return Value(statistics.fmean(means), statistics.pstdev(means), unit=unit)


def _in_percent(cell: Cell, found: Mapping[tuple[tuple[str, str], ...], Value | None], frame: Frame) -> Cell:
    """Return a cell in percent of the cell of another row, or of its backbone's parameters."""
    quantity = cell.quantity
    assert quantity
    if quantity.row:
        whole = found.get(tuple(sorted({**cell.labels, **quantity.row}.items())))
    else:
        backbones = (frame.measured[run].values.get(BACKBONE) for run in cell.runs)
        whole = next(filter(None, backbones), None)
    ratio = 100.0 * cell.obtained.mean / whole.mean if cell.obtained and whole else None
    shown = None if ratio is None else Value(ratio - (100.0 if quantity.added_to else 0.0))
    return replace(cell, obtained=shown, by_seed={})


def _judged(cell: Cell, planned: TableCell) -> Cell:
    """Return a cell with its verdict."""
    noise, published = None, planned.published
    if cell.verdict == DIVERGED or not cell.runs:
        verdict = cell.verdict or "absent"
    elif cell.obtained is None:
        verdict = MISSING
    elif cell.published is None or published is None:
        verdict = "misprint" if cell.misprint else "no published value"
    elif cell.quantity and (cell.difference == 0 or round(abs(cell.difference or 0.0), 9) < published.step):
        verdict = MATCH
    elif _is_counted(cell.quantity):  # chance has no part in it
        verdict = DIFFERS
    else:
        verdict, noise = beside_published(list(cell.by_seed.values()), cell.published.mean, cell.published.std)
    return replace(cell, verdict=verdict, noise=noise)


def _is_counted(quantity: Quantity | None) -> bool:
    return bool(quantity and quantity.known and quantity.known.source == "plan")


def _by_column(
    table: ResolvedTable, cells: list[Cell], pick: Callable[[Cell], Value | None]
) -> Iterable[dict[int, float]]:
    """Return a score per accuracy of each column, by place in the table; the lowest is the best."""
    columns = defaultdict[Key, dict[int, float]](dict)
    sign = 1.0 if table.better == "lower" else -1.0
    for at, cell in enumerate(cells):
        if (value := pick(cell)) and not cell.quantity:
            columns[cell.key(table.columns)][at] = sign * value.mean
    return columns.values()


def _best(table: ResolvedTable, cells: list[Cell], pick: Callable[[Cell], Value | None]) -> set[int]:
    """Return the places of the cells with the best picked value of their column; equal as printed is equal."""
    columns = [
        {at: round(score, table.decimals) for at, score in own.items()} for own in _by_column(table, cells, pick)
    ]
    return {at for own in columns for at, score in own.items() if score == min(own.values())}


def _tied(table: ResolvedTable, cells: list[Cell]) -> dict[int, bool | None]:
    """Return by place, of each cell beside the best of its column, whether it cannot be told apart from that."""
    tied: dict[int, bool | None] = {}
    for scores in _by_column(table, cells, lambda cell: cell.obtained):
        best, *others = sorted(scores, key=lambda at: (scores[at], at))
        tied |= dict(zip(others, _tied_with(cells[best], [cells[at] for at in others]), strict=True))
    return tied


def _tied_with(one: Cell, others: list[Cell]) -> list[bool | None]:
    """Return of each of the others whether it cannot be told apart from one; None where they do not share two seeds."""
    found = significant([(one.by_seed, other.by_seed) for other in others])
    return [None if differs is None else not differs for differs in found]


def rank_cells(
    cells: Mapping[Key, Cell], decimals: int, *, lower: bool = False, by_seeds: bool = True
) -> dict[Key, float]:
    """Return the rank of every complete cell of a column (by row), 1 the best.

    Rows that cannot be told apart, or are equal as printed, share the mean of their ranks: from the best downwards as
    many as cannot be told apart from it, then anew from the next. Without `by_seeds` only what is printed alike ties.
    """
    sign = 1.0 if lower else -1.0
    scores = {row: sign * cell.obtained.mean for row, cell in cells.items() if cell.obtained and cell.complete}
    left, ranks = sorted(scores, key=scores.__getitem__), dict[Key, float]()
    while left:
        first, *others = left
        tied = _tied_with(cells[first], [cells[row] for row in others]) if by_seeds else [False] * len(others)
        printed = [round(scores[row], decimals) for row in left]
        same = [bool(one) or own == printed[0] for one, own in zip(tied, printed[1:], strict=True)]
        size = [True, *same, False].index(False)
        ranks |= dict.fromkeys(left[:size], len(ranks) + (size + 1) / 2)
        left = left[size:]
    return {row: ranks[row] for row in scores}
