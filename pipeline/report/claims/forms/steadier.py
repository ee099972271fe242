"""The range of some cells is narrower than that of others; over no axis, the ± of single cells."""

from __future__ import annotations

import math

from pipeline.report.claims.form import Form, Pair
from pipeline.report.claims.noise import Uncertainty, Yardstick
from pipeline.report.claims.sides import Match
from pipeline.report.table.measured import Value


class Steadier(Form):
    """How much narrower a range is, from its lowest cell to its highest, or how much less a single cell spreads."""

    senses = ("narrower", "wider")

    @property
    def things(self) -> tuple[str, str]:
        return "pair", f" of ranges{self.span}" if self.over else " of spreads"

    @property
    def least(self) -> int:
        return 2 if self.over else 1

    @property
    def exact(self) -> bool:
        return not self.over

    def tells(self, value: Value) -> bool:
        return bool(self.over) or value.std is not None

    def measure(self, match: Match, scale: Yardstick) -> Pair:
        if not self.over:
            ours, theirs = (Value(scale.value(group[0]).std or 0.0) for group in (match.first, match.second))
            return self.pair(match, (ours, theirs), theirs.mean - ours.mean, Uncertainty(0.0))
        ends = [self.ends(group, scale) for group in (match.first, match.second)]
        noises = [scale.between(high, low) for high, low in ends]
        ours, theirs = (
            Value(scale.value(high).mean - scale.value(low).mean, noise.size)
            for (high, low), noise in zip(ends, noises, strict=True)
        )
        named = tuple((self.along(high), self.along(low)) for high, low in ends)
        return self.pair(match, (ours, theirs), theirs.mean - ours.mean, _combined(*noises), ends=named)


def _combined(one: Uncertainty, other: Uncertainty) -> Uncertainty:
    """Of the difference of what has these noises."""
    between_clients = one.between_clients or other.between_clients
    return Uncertainty(math.hypot(one.size, other.size), min(one.paired, other.paired), between_clients)
