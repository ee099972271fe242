"""A table filled in from the frame of its runs: cells with verdicts, what is best, ties, rows and columns, ranks; and
how numbers and labels are printed."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from pflcore.errors import UserError
from pipeline.report.frame import LAST_TEN, Frame
from pipeline.report.frame import Measured as Measured
from pipeline.report.frame import Value as Value
from pipeline.report.statistics import BEYOND, NO_VERDICT, WITHIN, beside_published, significant
from pipeline.spec.metrics import BACKBONE, BYTES, COUNT, PERCENT, Quantity
from pipeline.spec.table import ResolvedTable, TableCell

Key = tuple[str, ...]
"""Labels on the axes of a side of a table."""
ACCURACY, PRECISION = "accuracy (%)", "mAP (%)"
"""What heads a column of accuracies, or stands at their axis; the same of detectors."""
MATCH, DIFFERS = "match", "differs"
"""Of a quantity: apart by less than one in the last digit that is printed, which may be rounded or cut off; or not."""
TRIAL, MISSING, DIVERGED, ABSENT, UNPUBLISHED = "trial", "missing", "diverged", "absent", "no published value"
VERDICTS = (WITHIN, BEYOND, NO_VERDICT, MATCH, DIFFERS, TRIAL, MISSING, DIVERGED, ABSENT, UNPUBLISHED, "misprint")
SMOKE = "smoke"
"""The profile whose numbers mean nothing, so that none of them is called the best one."""
MINUS, NO_VALUE, MISPRINT, UNPLANNED, TIED, BESIDE = "\N{MINUS SIGN}", "—", "§", "†", "‡", "/"
"""Marks of tables, which their legend explains."""


_COLUMNS = {
    **dict.fromkeys(("published_mean", "published_std"), pa.float64()),
    "quoted": pa.bool_(),
    "obtained_mean": pa.float64(),
    "obtained_std": pa.float64(),
    "n": pa.int64(),
    "difference": pa.float64(),
    **dict.fromkeys(("best_published", "best_obtained", "tied"), pa.bool_()),
    **dict.fromkeys(("verdict", "runs", "kept_since"), pa.string()),
    "by_seed": pa.list_(pa.struct([("seed", pa.int64()), ("value", pa.float64())])),
}
_LAST = "last_round"
"""A column of tables that show the mean over the last measurements."""


@dataclass
class Cell:
    """One cell, of all clients or one, showing an accuracy or a quantity.

    Attributes:
        runs: Ids, one per combination of the averaged axes; empty: none is planned. `n` of them have a value.
        noise: By how much obtained and published value may differ by chance; None where there is no verdict on that.
        last: The obtained value after the last round, where it is the mean of the last ten measurements.
        tied: Whether seeds cannot distinguish it from the best of its column; None: it is that, or shares no two seeds.
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
    def compared(self) -> bool:
        """Whether it says something how far it is from its published value."""
        return self.difference is not None and self.verdict != TRIAL

    @property
    def complete(self) -> bool:
        """Whether all planned runs are in the obtained value."""
        return self.n > 0 and self.n == len(self.runs)

    def key(self, axes: Iterable[str]) -> Key:
        """Return the labels on `axes`, in that order."""
        return tuple(self.labels[axis] for axis in axes)


def _collect_cells(table: ResolvedTable, frame: Frame) -> list[Cell]:
    """Return the cells of a table in its order. A run without a figure leaves its cell missing or made of fewer runs;
    one that diverged makes it diverged, because a mean over the survivors alone would flatter the method."""
    cells = [_cell(table, planned, [frame.measured[run] for run in planned.runs]) for planned in table.cells]
    found = {frozenset(cell.labels.items()): cell.obtained for cell in cells}
    for cell, planned in zip(cells, table.cells, strict=True):
        if cell.quantity and cell.quantity.relative:
            backbones = (frame.measured[run].values.get(BACKBONE) for run in cell.runs)
            row = frozenset({**cell.labels, **cell.quantity.row}.items())
            whole = found.get(row) if cell.quantity.row else next(filter(None, backbones), None)
            ratio = 100.0 * cell.obtained.mean / whole.mean if cell.obtained and whole else None
            cell.obtained = None if ratio is None else Value(ratio - (100.0 if cell.quantity.added_to else 0.0))
            cell.by_seed = {}
        step = planned.published.step if planned.published else 0.0
        if cell.verdict == DIVERGED or not cell.runs:
            cell.verdict = cell.verdict or ABSENT
        elif cell.obtained is None or table.profile == SMOKE:
            cell.verdict = TRIAL if cell.obtained else MISSING
        elif cell.published is None or cell.difference is None:
            cell.verdict = "misprint" if cell.misprint else UNPUBLISHED
        elif cell.quantity and (cell.difference == 0 or round(abs(cell.difference), 9) < step):
            cell.verdict = MATCH
        elif _is_counted(cell):  # chance has no part in it
            cell.verdict = DIFFERS
        else:
            seeds = list(cell.by_seed.values())
            cell.verdict, cell.noise = beside_published(seeds, cell.published.mean, cell.published.std)
    _mark_best(table, cells)
    return cells


def _cell(table: ResolvedTable, planned: TableCell, runs: list[Measured]) -> Cell:
    """Return a cell whose verdict says no more than whether it diverged."""
    quantity, printed = planned.quantity, planned.published
    unit, metric = (quantity.unit, quantity.key) if quantity else (PERCENT, table.metric)
    diverged = any(run.diverged for run in runs)
    known = [(run.resolved.seed, run.values_of(planned.client)) for run in runs if not diverged]
    known = [(seed, values) for seed, values in known if metric in values]
    by_seed = defaultdict[int, list[float]](list)
    for seed, values in known:
        by_seed[seed].append(values[metric].mean)
    cell = Cell(
        labels=planned.labels,
        runs=tuple(planned.runs),
        obtained=_average([values[metric] for _, values in known], len(runs), unit),
        n=len(known),
        verdict=DIVERGED if diverged else "",
        last=_average([values["final"] for _, values in known], 0, unit) if metric == LAST_TEN else None,
        client=planned.client,
        by_seed={seed: statistics.fmean(several) for seed, several in by_seed.items()},
        quantity=quantity,
        figure=PRECISION if any("figure" in run.facts for run in runs) else ACCURACY,
    )
    if known and _is_counted(cell):  # the same for any seed
        cell.obtained = replace(known[0][1][metric], unit=unit)
    if printed:
        text = printed.printed
        cell.published = Value(printed.mean, printed.std, unit=unit, printed=text) if printed.mean is not None else None
        cell.misprint = text if printed.misprint else ""
        cell.quoted, cell.note, cell.explained = printed.quoted, printed.note, printed.explained
    return cell


def _average(values: list[Value], planned: int, unit: str) -> Value | None:
    """Return the mean of runs; ± is what one of them says of itself only where one is all there is to be."""
    means = [value.mean for value in values]
    if len(means) < 2:
        return Value(means[0], values[0].std if planned == 1 else None, unit=unit) if means else None
    return Value(statistics.fmean(means), statistics.pstdev(means), unit=unit)


def _is_counted(cell: Cell) -> bool:
    return bool(cell.quantity and cell.quantity.known and cell.quantity.known.source == "plan")


def _mark_best(table: ResolvedTable, cells: list[Cell]) -> None:
    """Mark the best accuracies of each column, equal as printed is equal, and what ties with the best obtained one."""
    columns, sign = defaultdict[Key, list[Cell]](list), 1.0 if table.better == "lower" else -1.0
    for cell in cells:
        if not cell.quantity:
            columns[cell.key(table.columns)].append(cell)
    for column in columns.values():
        printed = {at: sign * cell.published.mean for at, cell in enumerate(column) if cell.published}
        for at in _least(printed, table.decimals):
            column[at].best_published = True
        scores = {at: sign * cell.obtained.mean for at, cell in enumerate(column) if cell.obtained}
        if scores and table.profile != SMOKE:
            best, *others = sorted(scores, key=lambda at: (scores[at], at))
            ties = _tied_with(column[best], [column[at] for at in others])
            for at, tied in zip(others, ties, strict=True):
                column[at].tied = tied
            for at in _least(scores, table.decimals):
                column[at].best_obtained, column[at].tied = True, None


def _least(scores: dict[int, float], decimals: int) -> list[int]:
    rounded = {at: round(score, decimals) for at, score in scores.items()}
    return [at for at, score in rounded.items() if score == min(rounded.values())]


def _tied_with(one: Cell, others: list[Cell]) -> list[bool | None]:
    """Return of each of the others whether seeds cannot distinguish it from one; None: they do not share two seeds."""
    found = significant([(one.by_seed, other.by_seed) for other in others])
    return [None if differs is None else not differs for differs in found]


class Span(NamedTuple):
    """A header over `width` neighbouring columns that starts at column `start` (from 0)."""

    text: str
    start: int
    width: int


class Layout:
    """Rows and columns of a resolved table, label tuples in the order of its labels, ``[()]`` for a side without axes.
    Combinations that no cell has are left out."""

    def __init__(self, table: ResolvedTable, cells: list[Cell]) -> None:
        self.row_axes, self.column_axes, self._table = table.rows, table.columns, table
        self._cells = {(cell.key(table.rows), cell.key(table.columns)): cell for cell in cells}
        self.rows = self._ordered(self.row_axes, {row for row, _ in self._cells})
        self.columns = self._ordered(self.column_axes, {column for _, column in self._cells})

    def _ordered(self, axes: list[str], keys: set[Key]) -> list[Key]:
        labels = [self._table.labels[axis] for axis in axes]
        return sorted(keys, key=lambda key: [own.index(label) for own, label in zip(labels, key, strict=True)])

    @property
    def figure(self) -> str:
        """What is measured of clients, as it heads a column or stands at an axis."""
        return next((cell.figure for cell in self._cells.values() if cell.figure != ACCURACY), ACCURACY)

    def cell(self, row: Key, column: Key) -> Cell | None:
        """Return the cell at a row and a column; None where the study has none."""
        return self._cells.get((row, column))

    @property
    def places(self) -> list[tuple[Key, Key]]:
        """Row and column of every combination, row by row, whether there is a cell or not."""
        return list(itertools.product(self.rows, self.columns))

    @property
    def cells(self) -> list[Cell]:
        """All cells, row by row."""
        return [self._cells[place] for place in self.places if place in self._cells]

    def of_runs(self) -> Layout:
        """Return the same for what is said of a run once: without the cells that are about one client. Where there are
        no others, their axis is taken away, and cells that differ in nothing else become one; so is an axis that
        chooses quantities."""
        table, dropped = self._table, {*self._table.clients, *self._table.quantities}
        whole = [cell for cell in self._cells.values() if cell.client is None]
        if not table.quantities and (not dropped or any(cell.runs for cell in whole)):
            return Layout(table, whole)
        rows, columns = ([axis for axis in axes if axis not in dropped] for axes in (table.rows, table.columns))
        merged = dict[Key, Cell]()
        for cell in self._cells.values():
            labels = {axis: label for axis, label in cell.labels.items() if axis not in dropped}
            key = tuple(labels.values())
            runs = (*merged[key].runs, *cell.runs) if key in merged else cell.runs
            merged[key] = replace(cell, labels=labels, runs=tuple(dict.fromkeys(runs)), client=None)
        return Layout(table.model_copy(update={"rows": rows, "columns": columns}), list(merged.values()))

    def column_title(self, column: Key) -> str:
        """Return the whole header of one column in one line."""
        return titled(self.column_axes, column)

    def whereabouts(self, cells: Iterable[Cell]) -> str:
        """Name some cells: by their rows, and by their columns where not all cells of a row are meant."""
        chosen, by_columns = [id(cell) for cell in cells], defaultdict[str, list[str]](list)
        for row in self.rows:
            own = [(column, cell) for column in self.columns if (cell := self.cell(row, column))]
            some = [self.column_title(column) for column, cell in own if id(cell) in chosen]
            if some:
                by_columns["" if len(some) == len(own) else ", ".join(some)].append(titled(self.row_axes, row))
        return "; ".join(" · ".join(filter(None, (", ".join(rows), at))) for at, rows in by_columns.items())


class RankColumns(NamedTuple):
    """The columns of one entry of ``table.derived``: their name in files and heading, for each its own heading and the
    columns of the table that it is the mean over, and values by row and place of the group; a row is left out that
    lacks a number in one of the columns."""

    name: str
    title: str
    groups: list[tuple[str, list[Key]]]
    values: dict[tuple[Key, int], float]


@dataclass(frozen=True)
class Results:
    """A resolved table filled in, with its cells in the table's order."""

    table: ResolvedTable
    frame: Frame
    cells: list[Cell]
    layout: Layout

    @classmethod
    def of(cls, table: ResolvedTable, frame: Frame) -> Results:
        """Return the results of a table from the frame of its runs."""
        cells = _collect_cells(table, frame)
        return cls(table, frame, cells, Layout(table, cells))

    @property
    def runs(self) -> dict[str, Measured]:
        """The runs by id, sorted."""
        return self.frame.measured

    @cached_property
    def of_runs(self) -> Results:
        """The same, laid out for what is said of a run once: see :meth:`Layout.of_runs`."""
        return replace(self, layout=self.layout.of_runs())

    def under(self, protocol: str) -> Results:
        """Return the same runs with another protocol as the metric; it may be one that no spec can name."""
        return Results.of(self.table.model_copy(update={"metric": protocol}), self.frame)

    @property
    def selections(self) -> dict[str, str]:
        """What select stages wrote, by id."""
        return dict(zip(self.frame.selections["selection"], self.frame.selections["content"], strict=True))

    def ranks(self, column: Key) -> dict[Key, float]:
        """Return the ranks of rows that are complete within a column, 1 the best: from the best downwards as many as
        cannot be told apart from it or are equal as printed share the mean of their ranks, then anew from the next."""
        cells = {row: cell for row in self.layout.rows if (cell := self.layout.cell(row, column)) and cell.complete}
        sign = 1.0 if self.table.better == "lower" else -1.0
        scores = {row: sign * cell.obtained.mean for row, cell in cells.items() if cell.obtained}
        left, ranks = sorted(scores, key=scores.__getitem__), dict[Key, float]()
        while left:
            first, *others = left
            tied = _tied_with(cells[first], [cells[row] for row in others])
            printed = [round(scores[row], self.table.decimals) for row in left]
            same = [bool(one) or own == printed[0] for one, own in zip(tied, printed[1:], strict=True)]
            size = [True, *same, False].index(False)
            ranks |= dict.fromkeys(left[:size], len(ranks) + (size + 1) / 2)
            left = left[size:]
        return {row: ranks[row] for row in scores}

    @cached_property
    def derived(self) -> list[RankColumns]:
        """The columns of ranks of the table, in the order of its spec."""
        ranks = {column: self.ranks(column) for column in self.layout.columns} if self.table.derived else {}
        found = []
        for over in (one.over for one in self.table.derived):
            grouped = defaultdict[str, list[Key]](list)
            for column in self.layout.columns:
                labels = zip(self.layout.column_axes, column, strict=True)
                grouped[" · ".join(headed(axis, label) for axis, label in labels if axis not in over)].append(column)
            values = {
                (row, at): statistics.fmean(ranks[column][row] for column in group)
                for row in self.layout.rows
                for at, group in enumerate(grouped.values())
                if all(row in ranks[column] for column in group)
            }
            title = f"mean rank over {', '.join(map(short, over))}" if len(grouped) > 1 else "mean rank"
            name = f"rank_over_{'_'.join(over)}" if over else "rank"
            found.append(RankColumns(name, title if over else "rank", list(grouped.items()), values))
        return found

    @property
    def headers(self) -> list[list[Span]]:
        """The levels over cells and ranks, outer to inner; the last has a span for every column."""
        heads: list[Key] = [tuple(map(headed, self.layout.column_axes, column)) for column in self.layout.columns]
        if not self.layout.column_axes:
            quantity = self.table.cells[0].quantity if self.table.cells else None
            heads = [(quantity.heading if quantity else self.layout.figure,)]
        for one in self.derived:
            heads += [(one.title, inner) if len(one.groups) > 1 else (one.title,) for inner, _ in one.groups]
        depth, levels = max(map(len, heads)), []
        heads = [("",) * (depth - len(head)) + head for head in heads]
        for level in range(1, depth + 1):
            row, start = list[Span](), 0
            for outer, group in itertools.groupby(heads, key=lambda head: head[:level]):
                row.append(Span(outer[-1], start, len(list(group))))
                start += row[-1].width
            levels.append(row)
        return levels

    def to_arrow(self) -> pa.Table:
        """Return tidy rows, one per cell, as the columns of a ``table/2`` artifact, among them run ids joined by spaces
        and the last day on which a kept run of the cell was obtained; what is unknown is null. Raises
        :class:`UserError`: an axis has the name of one of the other columns."""
        more = {_LAST: pa.float64()} if self.table.metric == LAST_TEN else {}
        more |= {one.name: pa.float64() for one in self.derived}
        if taken := [axis for axis in self.table.axes if axis in ("spec", _LAST, *_COLUMNS, *more)]:
            message = f"an axis cannot be named {taken[0]!r}, which is a column of every report"
            raise UserError(f"{self.table.spec}: {message}")
        labels = dict.fromkeys(("spec", *self.table.axes), pa.string())
        return pa.Table.from_pylist(list(map(self._row, self.cells)), schema=pa.schema({**labels, **_COLUMNS, **more}))

    def _row(self, cell: Cell) -> dict[str, object]:
        row, column = cell.key(self.layout.row_axes), cell.key(self.layout.column_axes)
        ranks = {
            one.name: one.values.get((row, at))
            for one in self.derived
            for at, (_, group) in enumerate(one.groups)
            if column in group
        }
        values = {"published": cell.published, "obtained": cell.obtained}
        return {
            "spec": self.table.spec,
            **cell.labels,
            **{name: getattr(cell, name) for name in _COLUMNS if hasattr(cell, name)},
            **{f"{side}_mean": value and value.mean for side, value in values.items()},
            **{f"{side}_std": value and value.std for side, value in values.items()},
            "runs": " ".join(cell.runs),
            "kept_since": max((self.runs[run].kept for run in cell.runs), default="") or None,
            _LAST: cell.last and cell.last.mean,
            "by_seed": [{"seed": seed, "value": value} for seed, value in cell.by_seed.items()],
            **ranks,
        }


def headed(axis: str, label: str) -> str:
    """Return a label where its axis is not in sight: a bare number is printed as ``clients = 50``."""
    try:
        float(label)
    except ValueError:
        return label
    return f"{short(axis)} = {label}"


def titled(axes: Iterable[str], labels: Iterable[str]) -> str:
    """Return labels in one line."""
    return " · ".join(map(headed, axes, labels))


def short(axis: str) -> str:
    """``backbone.mlp_dim`` as ``mlp dim``."""
    return axis.rpartition(".")[2].replace("_", " ")


def format_value(value: Value | None, decimals: int) -> str:
    """Return ``90.31±0.26``, ``90.31`` without a deviation; of a quantity ``45.18 K`` or ``45.60 MB``; "" for None."""
    if value is None or value.printed:
        return value.printed if value else ""
    mean = _scaled(value.mean, decimals, value.unit)
    return mean if value.std is None else f"{mean}±{_scaled(value.std, decimals, value.unit)}"


def signed(difference: float, decimals: int, unit: str = PERCENT) -> str:
    """Return ``+0.80`` or ``−0.80``; of a quantity ``+0.26 K``."""
    return (MINUS if difference < 0 else "+") + _scaled(abs(difference), decimals, unit)


def printed_rank(rank: float) -> str:
    """Return ``2`` or ``2.5``; a mean of ranks with at most two decimals."""
    return f"{rank:.2f}".rstrip("0").rstrip(".")


def _scaled(number: float, decimals: int, unit: str) -> str:
    """Return it in thousands, millions, … where the unit is of that kind; below a thousand such a number is whole."""
    if unit not in (COUNT, BYTES):
        return f"{number:.{decimals}f}"
    scale = next((power for power in (12, 9, 6, 3) if round(number / 10**power, decimals) >= 1), 0)
    prefix = {0: "", 3: "k" if unit == BYTES else "K", 6: "M", 9: "G", 12: "T"}[scale]
    digits = f"{number / 10**scale:,.{decimals if scale else 0}f}"
    return f"{digits} {prefix}{BYTES if unit == BYTES else ''}".rstrip()


def texts(cell: Cell | None, decimals: int) -> dict[str, Any]:
    """Return a cell as it is printed; "" for what there is not.

    Partial is ``2/3`` where 2 of 3 runs are done; compared is ``+1.53 beyond noise (0.90)``, by how much the two may
    differ by chance; sort has the obtained and the published mean and the difference as numbers.
    """
    cell = cell or Cell({}, (), None, 0)  # a hole in the grid
    placeholder = "" if not cell.runs else DIVERGED if cell.verdict == DIVERGED else NO_VALUE
    difference, unit = cell.difference if cell.compared else None, cell.quantity.unit if cell.quantity else PERCENT
    numbers = (cell.obtained and cell.obtained.mean, cell.published and cell.published.mean, difference)
    words = [] if difference is None else [signed(difference, decimals, unit)]
    words += [cell.verdict] if cell.verdict != NO_VERDICT else []
    words += [] if cell.noise is None else [f"({cell.noise:.{decimals}f})"]
    return {
        "obtained": format_value(cell.obtained, decimals) or placeholder,
        "published": cell.misprint + MISPRINT if cell.misprint else format_value(cell.published, decimals),
        **{name: getattr(cell, name) for name in ("quoted", "best_obtained", "best_published", "verdict")},
        "tied": TIED if cell.tied else "",
        "dagger": UNPLANNED if cell.published and not cell.runs else "",
        "partial": f"{cell.n}/{len(cell.runs)}" if cell.obtained and not cell.complete else "",
        "last": format_value(cell.last, decimals),
        "compared": " ".join(words),
        "sort": tuple("" if number is None else f"{number:.6g}" for number in numbers),
    }
