"""Cells, or their means, are better than others."""

from __future__ import annotations

from pipeline.report.claims.form import Form, Pair
from pipeline.report.claims.sides import Match
from pipeline.report.claims.yardstick import Yardstick


class Better(Form):
    """The difference of two cells, or of the means over as many as both sides have."""

    def measure(self, match: Match, scale: Yardstick) -> Pair:
        plus, minus = (match.second, match.first) if self.lower else (match.first, match.second)
        chance = scale.contrast(plus, minus, self.margin, len(plus))
        return self.pair(match, (scale.mean(match.first), scale.mean(match.second)), chance)
