"""What claims are measured by: the values of cells, and what their differences are worth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pipeline.report.claims.chance import Chance
from pipeline.report.table.cells import Cell
from pipeline.report.table.measured import Value


class Yardstick(ABC):
    """Obtained values have seeds (:mod:`.obtained`), printed ones a ± at best (:mod:`.printed`)."""

    @abstractmethod
    def pick(self, cell: Cell) -> Value | None:
        """The value that a cell is judged on; None while there is none."""

    @abstractmethod
    def mean(self, cells: Sequence[Cell]) -> Value:
        """The mean of some cells, with a deviation where it is known."""

    @abstractmethod
    def width(self, high: Cell, low: Cell) -> Value:
        """How far apart two cells are, with a deviation where it is known."""

    @abstractmethod
    def contrast(self, plus: Sequence[Cell], minus: Sequence[Cell], asked: float, parts: int = 1) -> Chance:
        """The sum of some cells less that of others, as many, in so many parts, against what is asked for."""

    @abstractmethod
    def spreads(self, plus: Cell, minus: Cell, asked: float) -> Chance:
        """The ± of a cell less that of another, against what is asked for."""

    def value(self, cell: Cell) -> Value:
        """A cell's value, which is known to be there."""
        value = self.pick(cell)
        assert value is not None
        return value
