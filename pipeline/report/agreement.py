"""How much of a table is there, and how well it agrees with its paper by what needs no model of noise."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.report.claims import VERDICTS, Judgement
from pipeline.report.statistics import BEYOND, FEWEST_SEEDS, NO_VERDICT, WITHIN
from pipeline.report.table.cells import DIVERGED, MISSING, TRIAL, Cell, Key
from pipeline.report.table.printed import MINUS
from pipeline.report.table.results import Results

STATES = {
    "done": "done",
    "partly": "partly done",
    "missing": "missing",
    "diverged": "diverged",
    "quoted": "quoted",
    "unplanned": "not planned",
}
"""States of a cell, in their order, and their names in print.

``partly``: some of its runs are done; ``quoted``: no run is planned, and the paper has the value from an earlier one.
"""

CLAIM_STATES = (*VERDICTS, "contradicted")
"""Verdicts on obtained values, and ``contradicted``, how many of all claims the paper's own table contradicts."""

WITHIN_POINTS = (1.0, 2.5, 5.0)
"""Distances from a published value, in percentage points, within which obtained ones are counted."""

LEGEND = (
    f"Against the published values: distances are in percentage points; verdicts are on cells with {FEWEST_SEEDS} "
    "seeds of ours or more; order of rows: rank correlations of the obtained with the published values of a column, "
    "Spearman / Kendall (τ-b); comparisons are those that claims make, as far as cells are obtained."
)


def cover(cells: Iterable[Cell]) -> Counter[str]:
    """Count cells by state. A cell that nobody expects anything of (a hole in the grid) is not counted."""
    counts = Counter[str]()
    for cell in cells:
        if cell.verdict in (MISSING, DIVERGED):
            counts[cell.verdict] += 1
        elif cell.runs:
            counts["done" if cell.complete else "partly"] += 1
        elif cell.published or cell.misprint:
            counts["quoted" if cell.published and cell.quoted else "unplanned"] += 1
    return counts


def claim_counts(judgements: Iterable[Judgement]) -> Counter[str]:
    """Count claims by :data:`CLAIM_STATES`."""
    judgements = list(judgements)
    against = sum(judgement.contradicted_by_paper for judgement in judgements)
    return Counter(judgement.obtained.verdict for judgement in judgements) + Counter(contradicted=against)


@dataclass(frozen=True)
class Order:
    """How well the obtained order of a column's rows agrees with the published one, by rank correlations (τ-b).

    The table is named as the paper numbers it, or as the spec; the column is "" of a table that has one.
    """

    table: str
    column: str
    rows: int
    spearman: float
    kendall: float

    def words(self, several: bool) -> str:
        """Return ``0.80 / 0.67 of 5 rows``, after its column, and its table where there are several."""
        correlations = f"{self.spearman:.2f} / {self.kendall:.2f}".replace("-", MINUS)
        where = (self.table if several else "", self.column, f"{correlations} of {self.rows} rows")
        return ": ".join(filter(None, where))


@dataclass(frozen=True)
class Agreement:
    """What is obtained of a table, or of several, beside what their papers print.

    Attributes:
        published: How many accuracies are published.
        differences: Obtained minus published accuracy of each cell that has both, in percentage points.
        verdicts: Verdict → how many of these cells have it; of the others fewer than three seeds are there.
        claims: ``stated``; ``compared``: those with obtained values to compare; ``agree``: those of which every such
            comparison comes out as the claim says, whatever chance explains; ``comparisons``, and ``agreeing`` of them.
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
            total.verdicts.update(one.verdicts)
            total.claims.update(one.claims)
            total.decided.update(one.decided)
        return total

    def numbers(self) -> list[tuple[str, str]]:
        """Return name and value of what there is to say: distances, verdicts, orders and claims."""
        found, claims = dict[str, str](), self.claims
        if self.published:
            found = {"published accuracies": f"{self.published:,}", "obtained": f"{len(self.differences)}"}
        if self.differences:
            counts = zip(count_within(self.differences), WITHIN_POINTS, strict=True)
            distances = ", ".join(f"{count} within {points:g}" for count, points in counts)
            found["distance in points"] = f"{distances}; median {statistics.median(map(abs, self.differences)):.2f}"
            fewer = len(self.differences) - self.verdicts.total()
            verdicts = {**{name: self.verdicts[name] for name in (WITHIN, BEYOND)}, "with fewer seeds": fewer}
            found["verdicts"] = ", ".join(f"{count} {name}" for name, count in verdicts.items() if count)
        if self.orders:
            several = len({order.table for order in self.orders}) > 1
            found["order of rows"] = "; ".join(order.words(several) for order in self.orders)
        if claims["compared"]:
            found["claims"] = (
                f"{claims['compared']} of {claims['stated']} can be compared, in {claims['agree']} every comparison "
                f"agrees in direction; {claims['agreeing']} of {claims['comparisons']} comparisons do"
            )
            decided = ", ".join(f"{self.decided[one]} {one}" for one in VERDICTS if self.decided[one])
            found[f"claims with {FEWEST_SEEDS} seeds or more"] = decided or "none"
        return list(found.items())


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
    """Return the order of each column of which three rows or more have both values, and neither side one value only."""
    columns: dict[Key, list[tuple[float, float]]] = {}
    for cell in cells:
        assert cell.published and cell.obtained
        columns.setdefault(cell.key(results.layout.column_axes), []).append((cell.published.mean, cell.obtained.mean))
    orders, table = list[Order](), results.table
    name = (table.paper.table if table.paper else "") or table.spec
    for column, pairs in columns.items():
        if len(pairs) >= 3 and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            from scipy import stats  # takes longer to import than most reports to write

            published, obtained = zip(*pairs, strict=True)
            spearman, kendall = stats.spearmanr(published, obtained), stats.kendalltau(published, obtained)
            title = results.layout.column_title(column)
            orders.append(Order(name, title, len(pairs), float(spearman.statistic), float(kendall.statistic)))
    return orders
