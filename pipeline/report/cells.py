"""The cells of a table, computed from the frame of its runs: values, verdicts, the best of each column, and ties."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pflcore.settings import METRICS
from pipeline.report.frame import LAST_TEN, Frame, RunResult, Value
from pipeline.report.statistics import BEYOND, NO_VERDICT, WITHIN, noise_verdict, significant
from pipeline.spec.metrics import BACKBONE, PERCENT, SCORED, Quantity, QuantityKind
from pipeline.spec.table import Published, ResolvedTable, TableCell

Key = tuple[str, ...]
"""Labels on the row axes or on the column axes of a table."""
ACCURACY, PRECISION = "accuracy (%)", "mAP (%)"
"""Headings of columns and labels of axes: for accuracies, and for mean average precisions."""
MATCH, DIFFERS = "match", "differs"
"""Verdicts on a quantity: whether obtained and published value differ by less than one in the last printed digit."""
TRIAL, MISSING, DIVERGED, ABSENT, UNPUBLISHED = "trial", "missing", "diverged", "absent", "no published value"
MISPRINTED, NO_GLOBAL, NOT_REACHED, OF_ZERO = "misprint", "no global model", "not reached", "percent of 0"
_RUN_VERDICTS = TRIAL, MISSING, DIVERGED, ABSENT, UNPUBLISHED, MISPRINTED, NO_GLOBAL, NOT_REACHED, OF_ZERO
WITHOUT_VALUE = (DIVERGED, NO_GLOBAL, NOT_REACHED, OF_ZERO)
"""Verdicts that a cell shows in place of a value."""
VERDICTS = (WITHIN, BEYOND, NO_VERDICT, MATCH, DIFFERS, *_RUN_VERDICTS)
SMOKE = "smoke"
"""The profile whose numbers mean nothing, so no obtained value is marked as the best."""


@dataclass
class Cell:
    """A cell of the table, for all clients or for one; it shows an accuracy or a quantity.

    Attributes:
        runs: Ids, one per combination of the averaged axes; empty if no run is planned. `n` of these runs have a value.
        noise: How far obtained and published value may differ by chance; None if no verdict depends on it.
        last: The value after the last round, if `obtained` is the mean of the last ten measurements; else None.
        by_seed: The mean under each seed of which all runs have a value. If only some runs of a seed have one, the cell
            is `uneven`, and is neither the best nor judged.
        tied: Whether seeds cannot distinguish it from the best of its column; None for the best, and for too few seeds.
        misprint: The printed text, if the paper's value is a misprint; `published` is None then.
        heading: Heading of a column of such cells, for example :data:`ACCURACY`.
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
    heading: str = ACCURACY
    explained: str = ""

    @property
    def kind(self) -> QuantityKind | None:
        """The kind of quantity; None for accuracies and other metrics of predictions."""
        return self.quantity.definition if self.quantity else None

    @property
    def counted(self) -> bool:
        """Whether it shows a count, which does not depend on the seed."""
        return bool(self.kind and self.kind.source == "plan")

    @property
    def difference(self) -> float | None:
        """Obtained minus published mean, in percentage points or the quantity's unit; None if either is missing."""
        return self.obtained.mean - self.published.mean if self.obtained and self.published else None

    @property
    def is_comparable(self) -> bool:
        """Whether obtained and published value can be compared."""
        return self.difference is not None and self.verdict != TRIAL and not self.uneven

    @property
    def complete(self) -> bool:
        """Whether the obtained value includes all planned runs."""
        return self.n > 0 and self.n == len(self.runs)

    def key(self, axes: Iterable[str]) -> Key:
        """Return the labels on `axes`, in that order."""
        return tuple(self.labels[axis] for axis in axes)


def collect_cells(table: ResolvedTable, frame: Frame) -> list[Cell]:
    """Return the cells of a table in the table's order. A cell's value is over the runs that have one. One diverged run
    makes the cell diverged, and one that never reaches the accuracy of ``rounds_to`` makes the cell not reached,
    because the mean over the other runs would be too good."""
    cells = [_cell(table, planned, [frame.run_results[run] for run in planned.runs]) for planned in table.cells]
    values = {frozenset(cell.labels.items()): cell.obtained for cell in cells}
    for cell, planned in zip(cells, table.cells, strict=True):
        if cell.quantity and cell.quantity.relative:
            _to_percent(cell, cell.quantity, _base(cell, cell.quantity, values, frame))
        _judge(cell, planned, table.profile)
    _mark_best(table, cells)
    return cells


def _base(
    cell: Cell, quantity: Quantity, values: Mapping[frozenset[tuple[str, str]], Value | None], frame: Frame
) -> Value | None:
    """Return the base value of a percentage: another row of the table, or the backbone without the method."""
    if quantity.row:
        return values.get(frozenset({**cell.labels, **quantity.row}.items()))
    backbones = (frame.run_results[run].values().get(BACKBONE) for run in cell.runs)
    return next(filter(None, backbones), None)


def _to_percent(cell: Cell, quantity: Quantity, base: Value | None) -> None:
    """Replace the obtained value by its percentage of the base, or by how many percent it exceeds the base."""
    cell.by_seed = {}
    if cell.obtained and base and base.mean:
        percent = 100.0 * cell.obtained.mean / base.mean
        cell.obtained = Value(percent - 100.0 if quantity.added_to else percent)
        return
    if cell.obtained and base:
        cell.verdict = OF_ZERO
    cell.obtained = None


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
    elif cell.kind and planned.published and _matches(cell.obtained, planned.published):
        cell.verdict = MATCH
    elif cell.counted:  # counts do not depend on chance
        cell.verdict = DIFFERS
    else:
        seeds = [] if cell.uneven else list(cell.by_seed.values())
        cell.verdict, cell.noise = noise_verdict(seeds, cell.published.mean, cell.published.std)


def _matches(obtained: Value, published: Published) -> bool:
    """Return whether two quantities are equal or differ by less than one unit of the last printed digit, which may be
    rounded or cut off. A bound like ``< 0.01`` is matched by everything below it."""
    difference = obtained.mean - (published.mean or 0.0)
    if published.printed.startswith("<"):
        return difference < 0
    return difference == 0 or round(abs(difference), 9) < published.step


def _cell(table: ResolvedTable, planned: TableCell, runs: list[RunResult]) -> Cell:
    """Return a cell; its verdict is "" unless it has a verdict of :data:`WITHOUT_VALUE` already."""
    quantity, printed = planned.quantity, planned.published
    unit, metric = (quantity.unit, quantity.key) if quantity else (PERCENT, table.metric)
    diverged, unreached = any(run.diverged for run in runs), False
    if quantity and quantity.definition and quantity.definition.source == "curve":
        unreached = any(run.finished and metric not in run.values(planned.client) for run in runs)
    measured = [] if diverged or unreached else [run for run in runs if metric in run.values(planned.client)]
    obtained, by_seed = [run.values(planned.client)[metric] for run in measured], defaultdict[int, list[float]](list)
    for run, value in zip(measured, obtained, strict=True):
        by_seed[run.resolved.seed].append(value.mean)
    runs_per_seed = Counter(run.resolved.seed for run in runs)
    complete = {seed: statistics.fmean(means) for seed, means in by_seed.items() if len(means) == runs_per_seed[seed]}
    verdict = ""
    if diverged:
        verdict = DIVERGED
    elif unreached:
        verdict = NOT_REACHED
    elif quantity and quantity.view.model == "global" and runs and all(run.values() for run in runs):
        final = f"final {quantity.view.words}"
        verdict = "" if any(final in run.values() for run in runs) else NO_GLOBAL
    if any("figure" in run.facts for run in runs):
        heading = PRECISION
    elif quantity and quantity.definition:
        heading = quantity.heading
    else:
        heading = METRICS.get(SCORED.get(metric.split(" ")[0], ""), ACCURACY)
    last = [run.values(planned.client)["final"] for run in measured] if metric == LAST_TEN else []
    cell = Cell(
        labels=planned.labels,
        runs=tuple(planned.runs),
        obtained=_average(obtained, len(runs), unit),
        n=len(measured),
        verdict=verdict,
        last=_average(last, 0, unit),
        client=planned.client,
        by_seed=complete,
        uneven=len(complete) < len(by_seed),
        quantity=quantity,
        heading=heading,
    )
    if cell.counted and len({value.mean for value in obtained}) == 1:
        cell.obtained = Value(obtained[0].mean, unit=unit)
    if printed:
        if printed.mean is not None:
            cell.published = Value(printed.mean, printed.std, unit=unit, printed=printed.printed)
        cell.misprint = printed.printed if printed.misprint else ""
        cell.quoted, cell.note, cell.explained = printed.quoted, printed.note, printed.explained
    return cell


def _average(values: list[Value], planned: int, unit: str) -> Value | None:
    """Return mean and population std over runs; a run's own ± counts only if a single run is planned."""
    means = [value.mean for value in values]
    if len(means) < 2:
        return Value(means[0], values[0].std if planned == 1 else None, unit=unit) if means else None
    return Value(statistics.fmean(means), statistics.pstdev(means), unit=unit)


def _mark_best(table: ResolvedTable, cells: list[Cell]) -> None:
    """Mark the best cells of each column and metric (several if equal as printed) and those tied with the best."""
    columns = defaultdict[tuple[Key, str], list[Cell]](list)
    for cell in cells:
        if not cell.kind:
            columns[cell.key(table.columns), table.metric_of(cell.quantity)].append(cell)
    for column in columns.values():
        sign = 1.0 if table.lower(column[0].quantity) else -1.0
        printed = [(sign * cell.published.mean, cell) for cell in column if cell.published]
        for cell in _lowest(printed, table.decimals):
            cell.best_published = True
        scores = [(sign * cell.obtained.mean, cell) for cell in column if cell.obtained and not cell.uneven]
        if scores and table.profile != SMOKE:
            best, *others = (cell for _, cell in sorted(scores, key=lambda score: score[0]))
            for cell, tied in zip(others, ties_with(best, others), strict=True):
                cell.tied = tied
            for cell in _lowest(scores, table.decimals):
                cell.best_obtained, cell.tied = True, None


def _lowest(scores: list[tuple[float, Cell]], decimals: int) -> list[Cell]:
    rounded = [round(score, decimals) for score, _ in scores]
    return [cell for score, (_, cell) in zip(rounded, scores, strict=True) if score == min(rounded)]


def ties_with(best: Cell, others: Iterable[Cell], references: Iterable[Cell] = ()) -> list[bool | None]:
    """Return for each other cell whether seeds cannot distinguish it from `best`; None without two shared seeds. Cells
    `references` of the same column help to estimate the variance of differences."""
    pairs, reference_pairs = ([(best.by_seed, cell.by_seed) for cell in cells] for cells in (others, references))
    return [None if differs is None else not differs for differs in significant(pairs, reference_pairs)]
