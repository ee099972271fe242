"""The range of some cells is narrower than that of others; over no axis, the ± of single cells."""

from __future__ import annotations

from pipeline.report.claims.form import Form, Pair
from pipeline.report.claims.sides import Match
from pipeline.report.claims.yardstick import Yardstick
from pipeline.report.table.measured import Value


class Steadier(Form):
    """How much narrower a range is, from its lowest cell to its highest, or how much less a single cell spreads.

    Which cells are the ends is itself seen from noisy values, and makes either range too wide. The difference of the
    two is hardly moved by that, and is judged as that of four cells that were known beforehand; where all cells of a
    side are alike that is too careful (``benchmarks/claims.py``).
    """

    @property
    def least(self) -> int:
        return 2 if self.over else 1

    def tells(self, value: Value) -> bool:
        return bool(self.over) or value.std is not None

    def measure(self, match: Match, scale: Yardstick) -> Pair:
        if not self.over:
            (one,), (other,) = match.first, match.second
            values = (Value(scale.value(one).std or 0.0), Value(scale.value(other).std or 0.0))
            return self.pair(match, values, scale.spreads(other, one, self.margin))
        (high, low), (top, bottom) = ends = [self.ends(group, scale) for group in (match.first, match.second)]
        chance = scale.contrast([top, low], [bottom, high], self.margin)
        named = tuple((self.along(highest), self.along(lowest)) for highest, lowest in ends)
        return self.pair(match, (scale.width(high, low), scale.width(top, bottom)), chance, ends=named)
