"""Differences of printed values, of which their ± is all that is known; one without ± is exact."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.report.claims.chance import Chance, of_printed
from pipeline.report.claims.yardstick import Yardstick
from pipeline.report.table.cells import Cell
from pipeline.report.table.measured import Value


class Printed(Yardstick):
    """Values of a paper. Those of several cells count as independent, so their deviations add in squares."""

    def __init__(self, metric: str) -> None:
        """
        Args:
            metric: That of the table; under `clients` the ± of a single run is the spread between its clients.
        """
        self._of_clients = metric == "clients"

    def pick(self, cell: Cell) -> Value | None:
        return cell.published

    def mean(self, cells: Sequence[Cell]) -> Value:
        values = [self.value(cell) for cell in cells]
        if len(values) == 1:
            return values[0]
        known = any(value.std is not None for value in values)
        mean = math.fsum(value.mean for value in values) / len(values)
        return Value(mean, self._deviation(cells) / len(values) if known else None)

    def width(self, high: Cell, low: Cell) -> Value:
        return Value(self.value(high).mean - self.value(low).mean, self._deviation((high, low)))

    def contrast(self, plus: Sequence[Cell], minus: Sequence[Cell], asked: float, parts: int = 1) -> Chance:
        ours, theirs = (math.fsum(self.value(cell).mean for cell in side) / parts for side in (plus, minus))
        cells = [*plus, *minus]
        deviation = self._deviation(cells) / parts
        single = all(len(cell.runs) <= 1 and cell.client is None for cell in cells)
        return of_printed(
            ours - theirs, asked, deviation, between_clients=self._of_clients and single and deviation > 0
        )

    def spreads(self, plus: Cell, minus: Cell, asked: float) -> Chance:
        ours, theirs = (self.value(cell).std or 0.0 for cell in (plus, minus))
        return of_printed(ours - theirs, asked, 0.0)

    def _deviation(self, cells: Sequence[Cell]) -> float:
        return math.hypot(*(self.value(cell).std or 0.0 for cell in cells))


class Counted(Printed):
    """Obtained numbers that are counted before training: neither seeds nor chance have a part in them."""

    def pick(self, cell: Cell) -> Value | None:
        return cell.obtained if cell.complete else None


class SoFar(Printed):
    """Obtained values as they stand, of however many runs: to see which way they point, and for no verdict."""

    def pick(self, cell: Cell) -> Value | None:
        return cell.obtained
