"""Cells that differ on some axes only are close together."""

from __future__ import annotations

import itertools
from dataclasses import replace

from pipeline.report.claims.form import Form, Pair
from pipeline.report.claims.sides import Match
from pipeline.report.claims.yardstick import Yardstick
from pipeline.report.table.layout import short


class Within(Form):
    """How wide the range of each group is, from its lowest cell to its highest.

    It is that narrow when any two cells are that close, so of all pairs of cells the least certain counts. It is wider
    when any two are farther apart, of which the widest apart are picked after the fact, so their p is multiplied by the
    number of pairs.
    """

    least = 2

    def measure(self, match: Match, scale: Yardstick) -> Pair:
        high, low = self.ends(match.first, scale)
        values = scale.value(high), scale.value(low)
        chance = scale.contrast([high], [low], self.margin)
        surplus = round(self.margin - chance.difference, 9)
        pairs = list(itertools.permutations(match.first, 2))
        if surplus < 0:
            p = min(1.0, chance.p * len(pairs) / 2)
        else:
            p = max(scale.contrast([one], [other], self.margin).p for one, other in pairs)
        return Pair(
            better=self.along(high),
            than=self.along(low),
            labels=match.labels,
            values=values,
            chance=replace(chance, p=p),
            surplus=surplus,
            cells=len(match.first),
            ends=((self.along(high),), (self.along(low),)),
        )

    def what(self, pair: Pair) -> str:
        axes = ", ".join(map(short, self.over[:-1])) + " and " * (len(self.over) > 1) + short(self.over[-1])
        return f"highest and lowest over {axes}"  # which may be other cells in print
