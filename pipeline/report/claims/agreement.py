"""How well tables agree with their papers by what needs no model of noise: distances, the order of rows, and claims."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.report.claims.claims import Judgement
from pipeline.report.claims.verdicts import VERDICTS
from pipeline.report.statistics.noise import BEYOND, FEWEST_SEEDS, NO_VERDICT, WITHIN
from pipeline.report.table.cells import Cell
from pipeline.report.table.layout import Key
from pipeline.report.table.results import Results

WITHIN_POINTS = (1.0, 2.5, 5.0)
"""Distances from a published value, in percentage points, within which obtained ones are counted."""

FEWEST_ROWS = 3
"""Of a column, below which its order says nothing."""


@dataclass(frozen=True)
class Order:
    """How well the obtained order of a column's rows agrees with the published one.

    Attributes:
        table: As the paper numbers it, or the spec.
        column: "" of a table that has one.
        rows: Those that have both values.
        spearman, kendall: Rank correlations, from −1 (reversed) to 1 (the same); Kendall's is τ-b.
    """

    table: str
    column: str
    rows: int
    spearman: float
    kendall: float

    @property
    def words(self) -> str:
        """``0.80 / 0.67 of 5 rows``."""
        numbers = f"{self.spearman:.2f} / {self.kendall:.2f}".replace("-", "\N{MINUS SIGN}")
        return f"{numbers} of {self.rows} rows"


@dataclass(frozen=True)
class Agreement:
    """What is obtained of a table, or of several, beside what their papers print.

    Attributes:
        published: How many accuracies are published.
        differences: Obtained minus published accuracy of each cell that has both, in percentage points.
        verdicts: Verdict → how many of these cells have it; of the others fewer than three seeds are there.
        orders: Of the columns of which enough rows have both.
        claims: How many are stated.
        compared: How many of them have a comparison with obtained values, of however many seeds.
        agree: In how many of these every such comparison comes out as the claim says, whatever chance may explain.
        comparisons: How many of the comparisons do so, of how many.
        decided: Verdict → how many claims have it, with three seeds of ours or more in every comparison.
    """

    published: int = 0
    differences: tuple[float, ...] = ()
    verdicts: Counter[str] = field(default_factory=Counter)
    orders: tuple[Order, ...] = ()
    claims: int = 0
    compared: int = 0
    agree: int = 0
    comparisons: tuple[int, int] = (0, 0)
    decided: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, results: Results, judgements: Sequence[Judgement]) -> Agreement:
        """That of one table."""
        cells, so_far = compared_cells(results), [judgement.so_far for judgement in judgements]
        return cls(
            published=sum(cell.published is not None and cell.quantity is None for cell in results.cells),
            differences=tuple(round(cell.difference, 6) for cell in cells if cell.difference is not None),
            verdicts=Counter(cell.verdict for cell in cells if cell.verdict != NO_VERDICT),
            orders=tuple(collect_orders(results)),
            claims=len(judgements),
            compared=sum(pairs > 0 for _, pairs in so_far),
            agree=sum(agree == pairs > 0 for agree, pairs in so_far),
            comparisons=(sum(agree for agree, _ in so_far), sum(pairs for _, pairs in so_far)),
            decided=Counter(judgement.obtained.verdict for judgement in judgements if judgement.decided),
        )

    @classmethod
    def total(cls, several: Iterable[Agreement], published: int) -> Agreement:
        """That of several tables, of which so many different accuracies are published."""
        all_ = list(several)
        agree, pairs = zip((0, 0), *(one.comparisons for one in all_), strict=True)
        return cls(
            published=published,
            differences=tuple(one for each in all_ for one in each.differences),
            verdicts=sum((one.verdicts for one in all_), Counter()),
            orders=tuple(order for one in all_ for order in one.orders),
            claims=sum(one.claims for one in all_),
            compared=sum(one.compared for one in all_),
            agree=sum(one.agree for one in all_),
            comparisons=(sum(agree), sum(pairs)),
            decided=sum((one.decided for one in all_), Counter()),
        )

    def to_json(self) -> dict[str, Any]:
        """Return its attributes as JSON has them, for :meth:`from_json`."""
        return {**vars(self), "orders": [vars(order) for order in self.orders]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Agreement:
        """From its attributes as JSON has them."""
        return cls(
            **{
                **data,
                "differences": tuple(data["differences"]),
                "verdicts": Counter(data["verdicts"]),
                "orders": tuple(Order(**one) for one in data["orders"]),
                "comparisons": tuple(data["comparisons"]),
                "decided": Counter(data["decided"]),
            }
        )

    @property
    def words(self) -> list[str]:
        """A sentence each on distances, order and claims, as far as there is any to tell of."""
        return list(filter(None, (self._distances, self._orders, self._claims)))

    @property
    def _distances(self) -> str:
        if not self.published:
            return ""
        words = f"Of {self.published:,} published accuracies"
        if not self.differences:
            return f"{words} none is obtained."
        first, *others = (
            f"{count} within {points:g}"
            for count, points in zip(count_within(self.differences), WITHIN_POINTS, strict=True)
        )
        median = statistics.median(map(abs, self.differences))
        return (
            f"{words} {len(self.differences)} {'is' if len(self.differences) == 1 else 'are'} obtained: "
            f"{', '.join([f'{first} point', *others])}; the median distance is {median:.2f}. {self._verdicts}."
        )

    @property
    def _verdicts(self) -> str:
        """On how many there is a verdict, which takes seeds."""
        words = [f"{self.verdicts[verdict]} {verdict}" for verdict in (WITHIN, BEYOND) if self.verdicts[verdict]]
        if not words:
            return f"None of them has {FEWEST_SEEDS} seeds, so there is no verdict on any"
        lacking = len(self.differences) - self.verdicts.total()
        return f"With {FEWEST_SEEDS} seeds or more: {', '.join(words)}" + (f"; {lacking} have fewer" if lacking else "")

    @property
    def _orders(self) -> str:
        if not self.orders:
            return ""
        several = len({order.table for order in self.orders}) > 1
        columns = [
            ": ".join(filter(None, (order.table if several else "", order.column, order.words)))
            for order in self.orders
        ]
        return (
            "Order of the rows, obtained against published, rank correlations of Spearman / Kendall: "
            f"{'; '.join(columns)}."
        )

    @property
    def _claims(self) -> str:
        if not self.compared:
            return ""
        agree, pairs = self.comparisons
        verdicts = [f"{self.decided[verdict]} {verdict}" for verdict in VERDICTS if self.decided[verdict]]
        return (
            f"Of {self.claims} claims {self.compared} can be compared as far as cells are obtained: in {self.agree} "
            f"every comparison agrees in direction, and {agree} of all {pairs} do; "
            f"with {FEWEST_SEEDS} seeds or more {', '.join(verdicts) or 'none has a verdict'}."
        )


def compared_cells(results: Results) -> list[Cell]:
    """The cells of a table whose accuracy is published and obtained, in its order; none of a trial."""
    return [
        cell
        for cell in results.cells
        if cell.published and cell.obtained and cell.quantity is None and cell.verdict != "trial"
    ]


def count_within(differences: Iterable[float]) -> list[int]:
    """How many differences are within each of :data:`WITHIN_POINTS`; the last digit of a float decides nothing."""
    distances = [round(abs(difference), 9) for difference in differences]
    return [sum(distance <= points for distance in distances) for points in WITHIN_POINTS]


def collect_orders(results: Results) -> list[Order]:
    """The order within each column of which enough rows have both values, and neither side has one value only."""
    orders, columns = [], dict[Key, list[tuple[float, float]]]()
    for cell in compared_cells(results):
        assert cell.published and cell.obtained
        columns.setdefault(cell.key(results.layout.column_axes), []).append((cell.published.mean, cell.obtained.mean))
    for column, pairs in columns.items():
        if len(pairs) >= FEWEST_ROWS and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            from scipy import stats  # takes longer to import than most reports to write

            published, obtained = zip(*pairs, strict=True)
            spearman, kendall = stats.spearmanr(published, obtained), stats.kendalltau(published, obtained)
            table, title = results.table, results.layout.column_title(column)
            name = table.paper.table if table.paper and table.paper.table else table.spec
            orders.append(Order(name, title, len(pairs), float(spearman.statistic), float(kendall.statistic)))
    return orders
