"""How well tables agree with their papers by what needs no model of noise: distances, the order of rows, and claims."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.report.claims import VERDICTS, Judgement
from pipeline.report.statistics import BEYOND, FEWEST_SEEDS, NO_VERDICT, WITHIN
from pipeline.report.table.cells import TRIAL, Cell, Key
from pipeline.report.table.printed import MINUS
from pipeline.report.table.results import Results

WITHIN_POINTS = (1.0, 2.5, 5.0)
"""Distances from a published value, in percentage points, within which obtained ones are counted."""

_FEWEST_ROWS = 3  # of a column, below which its order says nothing

LEGEND = (
    f"Against the published values: distances are in percentage points; verdicts are on cells with {FEWEST_SEEDS} "
    "seeds of ours or more; order of rows: rank correlations of the obtained with the published values of a column, "
    "Spearman / Kendall (τ-b); comparisons are those that claims make, as far as cells are obtained."
)


@dataclass(frozen=True)
class Order:
    """How well the obtained order of a column's rows agrees with the published one.

    Attributes:
        table: As the paper numbers it, or the spec.
        column: "" of a table that has one.
        rows: How many have both values.
        spearman, kendall: Rank correlations, from −1 (reversed) to 1 (the same); Kendall's is τ-b.
    """

    table: str
    column: str
    rows: int
    spearman: float
    kendall: float


@dataclass(frozen=True)
class Agreement:
    """What is obtained of a table, or of several, beside what their papers print.

    Attributes:
        published: How many accuracies are published.
        differences: Obtained minus published accuracy of each cell that has both, in percentage points.
        verdicts: Verdict → how many of these cells have it; of the others fewer than three seeds are there.
        orders: Of the columns of which enough rows have both.
        claims: ``stated``; ``compared``: those with obtained values to compare, of however many seeds; ``agree``: those
            of which every such comparison comes out as the claim says, whatever chance may explain; ``comparisons``,
            and ``agreeing`` ones of them.
        decided: Verdict → how many claims have it, with three seeds of ours or more in every comparison.
    """

    published: int = 0
    differences: list[float] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    orders: list[Order] = field(default_factory=list)
    claims: Counter[str] = field(default_factory=Counter)
    decided: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, results: Results, judgements: Sequence[Judgement]) -> Agreement:
        """Return that of one table."""
        cells, so_far = compared_cells(results), [judgement.so_far for judgement in judgements]
        claims = {
            "stated": len(judgements),
            "compared": sum(pairs > 0 for _, pairs in so_far),
            "agree": sum(agree == pairs > 0 for agree, pairs in so_far),
            "comparisons": sum(pairs for _, pairs in so_far),
            "agreeing": sum(agree for agree, _ in so_far),
        }
        return cls(
            published=sum(cell.published is not None and cell.quantity is None for cell in results.cells),
            differences=[round(cell.difference, 6) for cell in cells if cell.difference is not None],
            verdicts=Counter(cell.verdict for cell in cells if cell.verdict != NO_VERDICT),
            orders=_orders(results, cells),
            claims=Counter(claims),
            decided=Counter(judgement.obtained.verdict for judgement in judgements if judgement.decided),
        )

    @classmethod
    def total(cls, several: Iterable[Agreement], published: int) -> Agreement:
        """Return that of several tables, of which so many different accuracies are published."""
        total = cls(published)
        for one in several:
            total.differences.extend(one.differences)
            total.orders.extend(one.orders)
            for mine, other in zip(
                (total.verdicts, total.claims, total.decided), (one.verdicts, one.claims, one.decided), strict=True
            ):
                mine.update(other)
        return total

    def numbers(self) -> list[tuple[str, str]]:
        """Return name and value of what there is to say: distances, verdicts, orders and claims."""
        verdicts = [f"{self.verdicts[verdict]} {verdict}" for verdict in (WITHIN, BEYOND) if self.verdicts[verdict]]
        fewer = len(self.differences) - self.verdicts.total()
        several = len({order.table for order in self.orders}) > 1
        orders = [
            ": ".join(filter(None, (order.table if several else "", order.column, _correlations(order))))
            for order in self.orders
        ]
        claims, decided = self.claims, [f"{self.decided[one]} {one}" for one in VERDICTS if self.decided[one]]
        compared = (
            f"{claims['compared']} of {claims['stated']} can be compared, in {claims['agree']} every comparison agrees "
            f"in direction; {claims['agreeing']} of {claims['comparisons']} comparisons do"
        )
        distances = [
            f"{count} within {points:g}"
            for count, points in zip(count_within(self.differences), WITHIN_POINTS, strict=True)
        ]
        found = {
            "published accuracies": f"{self.published:,}" if self.published else "",
            "obtained": f"{len(self.differences)}" if self.published else "",
            "distance in points": f"{', '.join(distances)}; median {statistics.median(map(abs, self.differences)):.2f}"
            if self.differences
            else "",
            "verdicts": ", ".join([*verdicts, *([f"{fewer} with fewer seeds"] if fewer else [])])
            if self.differences
            else "",
            "order of rows": "; ".join(orders),
            "claims": compared if claims["compared"] else "",
            f"claims with {FEWEST_SEEDS} seeds or more": (", ".join(decided) or "none") if claims["compared"] else "",
        }
        return [(name, value) for name, value in found.items() if value]


def compared_cells(results: Results) -> list[Cell]:
    """Return the cells of a table whose accuracy is published and obtained, in its order; none of a trial."""
    return [
        cell
        for cell in results.cells
        if cell.published and cell.obtained and cell.quantity is None and cell.verdict != TRIAL
    ]


def count_within(differences: Iterable[float]) -> list[int]:
    """Count the differences within each of :data:`WITHIN_POINTS`; the last digit of a float decides nothing."""
    distances = [round(abs(difference), 9) for difference in differences]
    return [sum(distance <= points for distance in distances) for points in WITHIN_POINTS]


def _orders(results: Results, cells: Iterable[Cell]) -> list[Order]:
    """Return the order of each column of which enough rows have both values, and neither side has one value only."""
    columns: dict[Key, list[tuple[float, float]]] = {}
    for cell in cells:
        assert cell.published and cell.obtained
        columns.setdefault(cell.key(results.layout.column_axes), []).append((cell.published.mean, cell.obtained.mean))
    orders, table = list[Order](), results.table
    for column, pairs in columns.items():
        if len(pairs) >= _FEWEST_ROWS and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            from scipy import stats  # takes longer to import than most reports to write

            published, obtained = zip(*pairs, strict=True)
            spearman, kendall = stats.spearmanr(published, obtained), stats.kendalltau(published, obtained)
            name, title = (table.paper.table if table.paper else "") or table.spec, results.layout.column_title(column)
            orders.append(Order(name, title, len(pairs), float(spearman.statistic), float(kendall.statistic)))
    return orders


def _correlations(order: Order) -> str:
    """Return ``0.80 / 0.67 of 5 rows``."""
    return f"{order.spearman:.2f} / {order.kendall:.2f}".replace("-", MINUS) + f" of {order.rows} rows"
