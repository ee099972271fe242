"""How well obtained values agree with the published ones, for one table or several."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.report.cells import Cell, Key
from pipeline.report.claims import CLAIM_VERDICTS, Judgement
from pipeline.report.printed import MINUS
from pipeline.report.statistics import BEYOND, MIN_SEEDS, NO_VERDICT, WITHIN
from pipeline.report.table import Results

WITHIN_POINTS = (1.0, 2.5, 5.0)
"""Distances in percentage points; the report counts obtained values within each distance of the published one."""
AGREEMENT_LEGEND = (
    f"Against the published values: distances are in percentage points; verdicts are on cells with {MIN_SEEDS} "
    "seeds of ours or more, not all equal; order of rows: rank correlations of the obtained with the published values "
    "of a column, Spearman / Kendall (τ-b); comparisons are those that claims make, as far as cells are obtained."
)


class Order(NamedTuple):
    """Rank correlations of the obtained with the published values of a column: Spearman's, and Kendall's τ-b."""

    table: str
    column: str
    rows: int
    spearman: float
    kendall: float


@dataclass(frozen=True)
class Agreement:
    """The agreement of obtained with published values, for one table or several.

    Attributes:
        published: Number of published accuracies.
        differences: Obtained minus published accuracy per cell with both, in points; `verdicts` counts their verdicts.
        claims: Counts: ``stated`` claims; ``compared``: claims with obtained values to compare; ``agree``: claims that
            all such comparisons agree with, ignoring chance; ``comparisons``; ``agreeing``: comparisons that agree.
        decided: Verdicts on claims with at least three of our seeds in every comparison.
    """

    published: int = 0
    differences: list[float] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    orders: list[Order] = field(default_factory=list)
    claims: Counter[str] = field(default_factory=Counter)
    decided: Counter[str] = field(default_factory=Counter)

    @classmethod
    def from_results(cls, results: Results, judgements: Sequence[Judgement]) -> Agreement:
        """Return the agreement of one table."""
        cells, claims = compared_cells(results), Counter(stated=len(judgements))
        for judgement in judgements:
            if judgement.comparable:
                agree = judgement.agreeing == judgement.comparable
                claims.update(compared=1, agree=agree, comparisons=judgement.comparable, agreeing=judgement.agreeing)
        return cls(
            results.table.published_accuracies,
            [round(cell.difference, 6) for cell in cells if cell.difference is not None],
            Counter(cell.verdict for cell in cells if cell.verdict != NO_VERDICT),
            _orders(results, cells),
            claims,
            Counter(judgement.obtained.verdict for judgement in judgements if judgement.decided),
        )

    @classmethod
    def total(cls, agreements: Iterable[Agreement], published: int) -> Agreement:
        """Return the agreement of several tables, which publish this number of different accuracies."""
        total = cls(published)
        for agreement in agreements:
            total.differences.extend(agreement.differences)
            total.orders.extend(agreement.orders)
            total.verdicts.update(agreement.verdicts)
            total.claims.update(agreement.claims)
            total.decided.update(agreement.decided)
        return total

    def numbers(self) -> list[tuple[str, str]]:
        """Return names and values to print: distances, verdicts, rank correlations and claims, as far as they exist."""
        numbers, claims = dict[str, str](), self.claims
        if self.published:
            numbers = {"published accuracies": f"{self.published:,}", "obtained": f"{len(self.differences)}"}
        if self.differences:
            counts = zip(count_within(self.differences), WITHIN_POINTS, strict=True)
            distances = ", ".join(f"{count} within {points:g}" for count, points in counts)
            numbers["distance in points"] = f"{distances}; median {statistics.median(map(abs, self.differences)):.2f}"
            others = len(self.differences) - self.verdicts.total()
            verdicts = {WITHIN: self.verdicts[WITHIN], BEYOND: self.verdicts[BEYOND], "without a verdict": others}
            numbers["verdicts"] = ", ".join(f"{count} {name}" for name, count in verdicts.items() if count)
        if self.orders:
            tables, texts = {order.table for order in self.orders}, []
            for table, column, rows, spearman, kendall in self.orders:
                correlations = f"{spearman:.2f} / {kendall:.2f} of {rows} rows".replace("-", MINUS)
                texts.append(": ".join(filter(None, (table if len(tables) > 1 else "", column, correlations))))
            numbers["order of rows"] = "; ".join(texts)
        if claims["compared"]:
            numbers["claims"] = (
                f"{claims['compared']} of {claims['stated']} can be compared, in {claims['agree']} every comparison "
                f"agrees in direction; {claims['agreeing']} of {claims['comparisons']} comparisons do"
            )
            decided = [f"{self.decided[verdict]} {verdict}" for verdict in CLAIM_VERDICTS if self.decided[verdict]]
            numbers[f"claims with {MIN_SEEDS} seeds or more"] = ", ".join(decided) or "none"
        return list(numbers.items())


def compared_cells(results: Results) -> list[Cell]:
    """Return the cells whose obtained and published accuracy can be compared, in the table's order."""
    cells = results.cells if results.table.shows_accuracy else []
    return [cell for cell in cells if cell.is_comparable and cell.quantity is None]


def count_within(differences: Iterable[float]) -> list[int]:
    """Count the differences within each of :data:`WITHIN_POINTS`, without counting float errors."""
    distances = [round(abs(difference), 9) for difference in differences]
    return [sum(distance <= points for distance in distances) for points in WITHIN_POINTS]


def _orders(results: Results, cells: Iterable[Cell]) -> list[Order]:
    """Return the correlations of each column with at least three compared rows and two values on either side."""
    columns, table = defaultdict[Key, list[tuple[float, float]]](list), results.table
    for cell in cells:
        assert cell.published and cell.obtained
        columns[cell.key(table.columns)].append((cell.published.mean, cell.obtained.mean))
    orders, name = list[Order](), (table.paper.table if table.paper else "") or table.spec
    for column, pairs in columns.items():
        published, obtained = zip(*pairs, strict=True)
        if len(pairs) >= 3 and len(set(published)) > 1 and len(set(obtained)) > 1:
            from scipy import stats  # importing it takes longer than writing most reports

            spearman = float(stats.spearmanr(published, obtained).statistic)
            kendall = float(stats.kendalltau(published, obtained).statistic)
            orders.append(Order(name, results.column_title(column), len(pairs), spearman, kendall))
    return orders
