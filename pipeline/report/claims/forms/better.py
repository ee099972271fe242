"""Cells, or their means, are better than others."""

from __future__ import annotations

import math

from pipeline.report.claims.form import Form, Pair
from pipeline.report.claims.noise import Yardstick
from pipeline.report.claims.sides import Match
from pipeline.report.table.measured import Value


class Better(Form):
    """The difference of two cells, or of the means over as many as both sides have."""

    senses = ("better", "worse")

    @property
    def things(self) -> tuple[str, str]:
        return "pair", f" of means{self.span}" if self.over else ""

    def measure(self, match: Match, scale: Yardstick) -> Pair:
        noise = scale.of_mean(list(zip(match.first, match.second, strict=True)))
        groups = ([scale.value(cell) for cell in group] for group in (match.first, match.second))
        ours, theirs = (_mean(values, independent=not noise.paired) for values in groups)
        difference = theirs.mean - ours.mean if self.lower else ours.mean - theirs.mean
        return self.pair(match, (ours, theirs), difference, noise)


def _mean(values: list[Value], *, independent: bool) -> Value:
    """Deviations of independent values add in squares; of others that of their mean is not known."""
    if len(values) == 1:
        return values[0]
    deviations = [value.std for value in values if value.std is not None and independent]
    mean = math.fsum(value.mean for value in values) / len(values)
    return Value(mean, math.hypot(*deviations) / len(values) if deviations else None)
