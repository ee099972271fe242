"""Cells that differ on some axes only are close together."""

from __future__ import annotations

from pipeline.report.claims.form import Form, Pair, in_words
from pipeline.report.claims.noise import Yardstick
from pipeline.report.claims.sides import Match
from pipeline.report.table.printed import format_value


class Within(Form):
    """How wide the range of each group is, from its lowest cell to its highest."""

    senses = ("apart", "apart")
    least = 2

    @property
    def things(self) -> tuple[str, str]:
        return "range", self.span

    def measure(self, match: Match, scale: Yardstick) -> Pair:
        high, low = self.ends(match.first, scale)
        values = scale.value(high), scale.value(low)
        width = values[0].mean - values[1].mean
        return Pair(
            better=self.along(high),
            than=self.along(low),
            labels=match.labels,
            values=values,
            difference=width,
            surplus=round(self.margin - width, 9),
            noise=scale.between(high, low),
            cells=len(match.first),
        )

    def what(self, pair: Pair) -> str:
        return f"highest and lowest{self.span}"  # which need not be the same cells in print

    def sides(self, pair: Pair, decimals: int) -> str:
        high, low = (format_value(value, decimals) for value in pair.values)
        return f"from {low} ({in_words(pair.than)}) to {high} ({in_words(pair.better)})"

    def size(self, pair: Pair) -> str:
        return f", {pair.cells} cells in all"

    @property
    def asked(self) -> str:
        return f", at most {self.margin:g}"
