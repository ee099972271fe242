"""Which values can be told apart: by their differences, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.report.statistics.comparison import Comparison, compare, holm
from pipeline.report.statistics.moderation import moderated_ps
from pipeline.report.statistics.power import LEVEL

BySeed = Mapping[int, float]
"""A cell's value under each of its seeds."""


def tied_with(one: BySeed, others: Sequence[BySeed]) -> list[bool | None]:
    """Of each of the others, whether it cannot be told apart from one; None where they do not share two seeds.

    Moderated paired t tests over the seeds that both have, at 5 % over all of them together (Holm).
    """
    return [None if apart is None else not apart for apart in told_apart([(one, other) for other in others])]


def told_apart(pairs: Sequence[tuple[BySeed, BySeed]]) -> list[bool | None]:
    """Of each of some pairs, whether its two can be told apart; None where they do not share two seeds. Likewise."""
    shared = [sorted(one.keys() & other.keys()) for one, other in pairs]
    judged = [index for index, seeds in enumerate(shared) if len(seeds) > 1]
    ps = moderated_ps([_comparison(*pairs[index], shared[index]) for index in judged])
    apart = dict(zip(judged, (p <= LEVEL for p in holm(ps)), strict=True))
    return [apart.get(index) for index in range(len(pairs))]


def _comparison(one: BySeed, other: BySeed, seeds: list[int]) -> Comparison:
    first, second = (np.array([side[seed] for seed in seeds]) for side in (one, other))
    return compare(first, second)
