"""The cells of a table, computed from the frame of its runs: values, verdicts, the best of each column, and ties."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pflcore.settings import METRICS
from pipeline.report.frame import LAST_TEN, Frame, Measured, Value
from pipeline.report.statistics import BEYOND, NO_VERDICT, WITHIN, beside_published, significant
from pipeline.spec.metrics import BACKBONE, PERCENT, SCORED, Quantity, QuantityKind
from pipeline.spec.table import Published, ResolvedTable, TableCell

Key = tuple[str, ...]
"""Labels on the row axes or on the column axes of a table."""
ACCURACY, PRECISION = "accuracy (%)", "mAP (%)"
"""Headings of columns and labels of axes: for accuracies, and for mean average precisions."""
MATCH, DIFFERS = "match", "differs"
"""Verdicts on a quantity: obtained and published value differ by less than one in the last printed digit, which may be
rounded or cut off; or by more."""
TRIAL, MISSING, DIVERGED, ABSENT, UNPUBLISHED = "trial", "missing", "diverged", "absent", "no published value"
MISPRINTED, NO_GLOBAL, NOT_REACHED, OF_ZERO = "misprint", "no global model", "not reached", "percent of 0"
_OF_RUNS = TRIAL, MISSING, DIVERGED, ABSENT, UNPUBLISHED, MISPRINTED, NO_GLOBAL, NOT_REACHED, OF_ZERO
WITHOUT_VALUE = (DIVERGED, NO_GLOBAL, NOT_REACHED, OF_ZERO)
"""Verdicts that a cell shows in place of a value."""
VERDICTS = (WITHIN, BEYOND, NO_VERDICT, MATCH, DIFFERS, *_OF_RUNS)
SMOKE = "smoke"
"""The profile whose numbers mean nothing, so no obtained value is marked as the best."""


@dataclass
class Cell:
    """A cell of the table, for all clients or for one; it shows an accuracy or a quantity.

    Attributes:
        runs: Ids, one per combination of the averaged axes; empty if no run is planned. `n` of these runs have a value.
        noise: How far obtained and published value may differ by chance; None if no verdict depends on it.
        last: The value after the last round, if `obtained` is the mean of the last ten measurements; else None.
        by_seed: The mean under each seed of which all runs have a value. The cell is `uneven` if of a seed only some
            have one: its mean is then over unlike runs, so it is neither the best nor judged.
        tied: Whether seeds cannot distinguish it from the best of its column; None for the best, and for too few seeds.
        misprint: The printed text, if the paper's value is a misprint; `published` is None then.
        explained: Why obtained and published value differ, if that is known; else "".
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
    uneven: bool = False
    tied: bool | None = None
    quantity: Quantity | None = None
    misprint: str = ""
    figure: str = ACCURACY
    explained: str = ""

    @property
    def known(self) -> QuantityKind | None:
        """The kind of quantity; None for an accuracy or another metric of predictions."""
        return self.quantity.definition if self.quantity else None

    @property
    def counted(self) -> bool:
        """Whether it shows a count, which is the same for every seed."""
        return bool(self.known and self.known.source == "plan")

    @property
    def difference(self) -> float | None:
        """Obtained minus published mean, in percentage points or the quantity's unit; None if either is missing."""
        return self.obtained.mean - self.published.mean if self.obtained and self.published else None

    @property
    def is_compared(self) -> bool:
        """Whether the cell can be compared with its published value: both exist, and it is neither trial nor uneven."""
        return self.difference is not None and self.verdict != TRIAL and not self.uneven

    @property
    def complete(self) -> bool:
        """Whether the obtained value includes all planned runs."""
        return self.n > 0 and self.n == len(self.runs)

    def key(self, axes: Iterable[str]) -> Key:
        """Return the labels on `axes`, in that order."""
        return tuple(self.labels[axis] for axis in axes)


def collect_cells(table: ResolvedTable, frame: Frame) -> list[Cell]:
    """Return the cells of a table in the table's order. A cell's value leaves out runs without a figure. One diverged
    run makes the cell diverged, and one that never reaches the accuracy of ``rounds_to`` makes the cell not reached,
    because a mean over the other runs alone would be too good."""
    cells = [_cell(table, planned, [frame.measured[run] for run in planned.runs]) for planned in table.cells]
    found = {frozenset(cell.labels.items()): cell.obtained for cell in cells}
    for cell, planned in zip(cells, table.cells, strict=True):
        if cell.quantity and cell.quantity.relative:
            _to_percent(cell, cell.quantity, _reference(cell, cell.quantity, found, frame))
        _judge(cell, planned, table.profile)
    _mark_best(table, cells)
    return cells


def _reference(
    cell: Cell, quantity: Quantity, found: Mapping[frozenset[tuple[str, str]], Value | None], frame: Frame
) -> Value | None:
    """Return the base value of a percentage: another row of the table, or the backbone without the method."""
    if quantity.row:
        return found.get(frozenset({**cell.labels, **quantity.row}.items()))
    backbones = (frame.measured[run].values.get(BACKBONE) for run in cell.runs)
    return next((value for value in backbones if value), None)


def _to_percent(cell: Cell, quantity: Quantity, whole: Value | None) -> None:
    """Replace the obtained value by its percentage of `whole`, or by how many percent it exceeds `whole`."""
    cell.by_seed = {}
    if not cell.obtained or not whole or not whole.mean:
        cell.verdict = OF_ZERO if cell.obtained and whole else cell.verdict
        cell.obtained = None
        return
    percent = 100.0 * cell.obtained.mean / whole.mean
    cell.obtained = Value(percent - 100.0 if quantity.added_to else percent)


def _judge(cell: Cell, planned: TableCell, profile: str) -> None:
    """Set the verdict of a cell, and its noise if the values depend on chance."""
    if cell.verdict in WITHOUT_VALUE:
        return
    if not cell.runs:
        cell.verdict = ABSENT
    elif cell.obtained is None:
        cell.verdict = MISSING
    elif profile == SMOKE:
        cell.verdict = TRIAL
    elif cell.published is None or cell.difference is None:
        cell.verdict = MISPRINTED if cell.misprint else UNPUBLISHED
    elif cell.known and planned.published and _matches(cell.obtained, planned.published):
        cell.verdict = MATCH
    elif cell.counted:  # counts do not depend on chance
        cell.verdict = DIFFERS
    else:
        seeds = [] if cell.uneven else list(cell.by_seed.values())
        cell.verdict, cell.noise = beside_published(seeds, cell.published.mean, cell.published.std)


def _matches(obtained: Value, published: Published) -> bool:
    """Return whether two quantities are equal or differ by less than one unit of the last printed digit. A bound like
    ``< 0.01`` is matched by everything below it."""
    difference = obtained.mean - (published.mean or 0.0)
    if published.printed.startswith("<"):
        return difference < 0
    return difference == 0 or round(abs(difference), 9) < published.step


def _cell(table: ResolvedTable, planned: TableCell, runs: list[Measured]) -> Cell:
    """Return a cell whose verdict is still "", except if a run diverged or never reached an accuracy, or if the runs
    have no global model."""
    quantity, printed = planned.quantity, planned.published
    unit, metric = (quantity.unit, quantity.key) if quantity else (PERCENT, table.metric)
    diverged = any(run.diverged for run in runs)
    of_curve = bool(quantity and quantity.definition and quantity.definition.source == "curve")
    unreached = of_curve and any(run.made and metric not in run.values_of(planned.client) for run in runs)
    known = [(run.resolved.seed, run.values_of(planned.client)) for run in runs if not (diverged or unreached)]
    known = [(seed, values) for seed, values in known if metric in values]
    means, by_seed = [values[metric].mean for _, values in known], defaultdict[int, list[float]](list)
    for (seed, _), mean in zip(known, means, strict=True):
        by_seed[seed].append(mean)
    asked = Counter(run.resolved.seed for run in runs)
    whole = {seed: statistics.fmean(several) for seed, several in by_seed.items() if len(several) == asked[seed]}
    verdict = ""
    if diverged:
        verdict = DIVERGED
    elif unreached:
        verdict = NOT_REACHED
    elif quantity and quantity.view.model == "global" and _lacks(runs, quantity):
        verdict = NO_GLOBAL
    heading = METRICS.get(SCORED.get(metric.split(" ")[0], ""), ACCURACY)
    heading = quantity.heading if quantity and quantity.definition else heading
    cell = Cell(
        labels=planned.labels,
        runs=tuple(planned.runs),
        obtained=_average([values[metric] for _, values in known], len(runs), unit),
        n=len(known),
        verdict=verdict,
        last=_average([values["final"] for _, values in known], 0, unit) if metric == LAST_TEN else None,
        client=planned.client,
        by_seed=whole,
        uneven=len(whole) < len(by_seed),
        quantity=quantity,
        figure=PRECISION if any("figure" in run.facts for run in runs) else heading,
    )
    if cell.counted and len({*means}) == 1:  # a count is the same for every seed
        cell.obtained = Value(means[0], unit=unit)
    if printed:
        text = printed.printed
        cell.published = Value(printed.mean, printed.std, unit=unit, printed=text) if printed.mean is not None else None
        cell.misprint = text if printed.misprint else ""
        cell.quoted, cell.note, cell.explained = printed.quoted, printed.note, printed.explained
    return cell


def _lacks(runs: list[Measured], quantity: Quantity) -> bool:
    """Return whether all runs are measured and none has the model of a quantity."""
    measured = bool(runs) and all(run.values for run in runs)
    return measured and not any(f"final {quantity.view.words}" in run.values for run in runs)


def _average(values: list[Value], planned: int, unit: str) -> Value | None:
    """Return mean and population std over runs; a run's own ± counts only if a single run is planned."""
    means = [value.mean for value in values]
    if len(means) < 2:
        return Value(means[0], values[0].std if planned == 1 else None, unit=unit) if means else None
    return Value(statistics.fmean(means), statistics.pstdev(means), unit=unit)


def _mark_best(table: ResolvedTable, cells: list[Cell]) -> None:
    """Mark the best of each column and metric, all that are equal as printed, and those tied with the best obtained."""
    columns = defaultdict[tuple[Key, str], list[Cell]](list)
    for cell in cells:
        if not cell.known:
            columns[cell.key(table.columns), table.metric_of(cell.quantity)].append(cell)
    for column in columns.values():
        sign = 1.0 if table.lower(column[0].quantity) else -1.0
        printed = {at: sign * cell.published.mean for at, cell in enumerate(column) if cell.published}
        for at in _least(printed, table.decimals):
            column[at].best_published = True
        scores = {at: sign * cell.obtained.mean for at, cell in enumerate(column) if cell.obtained and not cell.uneven}
        if scores and table.profile != SMOKE:
            best, *others = sorted(scores, key=lambda at: (scores[at], at))
            ties = tied_with(column[best], [column[at] for at in others])
            for at, tied in zip(others, ties, strict=True):
                column[at].tied = tied
            for at in _least(scores, table.decimals):
                column[at].best_obtained, column[at].tied = True, None


def _least(scores: dict[int, float], decimals: int) -> list[int]:
    rounded = {at: round(score, decimals) for at, score in scores.items()}
    return [at for at, score in rounded.items() if score == min(rounded.values())]


def tied_with(one: Cell, others: Iterable[Cell], beside: Iterable[Cell] = ()) -> list[bool | None]:
    """Return for each other cell whether seeds cannot distinguish it from `one`; None without two shared seeds. Cells
    `beside` are of the same column; differences from them help to estimate the spread of differences."""
    found = significant(*([(one.by_seed, other.by_seed) for other in cells] for cells in (others, beside)))
    return [None if differs is None else not differs for differs in found]
