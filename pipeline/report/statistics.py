"""Statistics over seeds: intervals and tests of paired differences, the one rule for noise, ranks over data sets.

The clients of a run share one training, so the seed is what is counted: each gives one number, and one decides nothing.
It is the t test, as three seeds cannot reach 5 % by flipping signs; it asks that differences of seeds, which are means
over clients and test samples, are about normal. SciPy is imported by functions: it takes longer than most reports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BySeed = Mapping[int, float]
"""A value under each of its seeds."""
LEVEL = 0.05
"""The error that is allowed: how often chance alone is called a difference."""
POWER = 0.8
FEWEST_SEEDS = 3
"""Of our own, below which no verdict is given beside a published value."""

WITHIN, BEYOND, NO_VERDICT = "within noise", "beyond noise", "no verdict"
NOISE_LEGEND = (
    "Noise: a difference is beyond noise where its 95 % interval excludes zero (for a claim: its margin), and within "
    "noise otherwise. The interval is by t over our seeds; a printed ± counts as the standard deviation of the printed "
    f"value. Beside a published value fewer than {FEWEST_SEEDS} seeds of ours have no verdict."
)


@dataclass(frozen=True)
class Effect:
    """A difference with its 95 % interval and p-value, in the unit of the values; NaN where no seed has both values.

    Attributes:
        low, high: Infinite where the spread between seeds is not known.
        p: Two-sided; 1 where the spread is not known. Of printed values 0 where the interval excludes the margin.
        n: Seeds; None of printed values.
        seeds: What the t test is of: the difference of each seed less the margin.
    """

    difference: float
    low: float = -math.inf
    high: float = math.inf
    p: float = 1.0
    n: int | None = None
    seeds: tuple[float, ...] = field(default=(), compare=False)

    @property
    def flipped(self) -> float | None:
        """The p of the test that flips signs of seeds, which assumes no normality; None for fewer than three."""
        if len(self.seeds) < FEWEST_SEEDS:
            return None
        from scipy import stats

        random = np.random.default_rng(0)  # which more than 13 seeds need
        return float(stats.permutation_test((self.seeds,), np.mean, permutation_type="samples", rng=random).pvalue)

    @property
    def detectable(self) -> float | None:
        """The true difference that so many seeds of that spread find with :data:`POWER`; None for fewer than three."""
        if len(self.seeds) < FEWEST_SEEDS:
            return None
        from scipy import optimize, stats

        count = len(self.seeds)
        bar = float(stats.t.ppf(1 - LEVEL / 2, count - 1))
        shift = optimize.brentq(lambda shift: float(stats.nct.sf(bar, count - 1, shift)) - POWER, 0.0, 10 * (bar + 1))
        return float(shift * stats.sem(self.seeds))


def half_interval(seeds: Sequence[float], deviation: float = 0.0) -> float:
    """Return half the width of the 95 % interval of a difference; infinite where the spread of seeds is not known.

    There are no seeds where both values are printed; `deviation` is the ± of printed ones, which counts as the standard
    deviation of the printed value. Half widths of both sides are added in squares (MOVER, Zou and Donner 2008): with
    three seeds it errs in at most 5 of 100 cases, where Welch's degrees of freedom err in up to 8.
    """
    printed = NormalDist().inv_cdf(1 - LEVEL / 2) * deviation
    if not len(seeds):
        return printed
    # Seeds that differ by the same to the last digit differ by rounding and not by chance.
    if len(seeds) < 2 or max(seeds) - min(seeds) <= 1e-9 * max(map(abs, seeds)):
        return math.inf
    from scipy import stats

    return math.hypot(float(stats.t.ppf(1 - LEVEL / 2, len(seeds) - 1) * stats.sem(seeds)), printed)


def beside_published(seeds: Sequence[float], published: float, deviation: float | None) -> tuple[str, float | None]:
    """Return the verdict on values per seed beside a published one, and by how much the two may differ by chance."""
    differences = [value - published for value in seeds]
    bound = half_interval(differences, deviation or 0.0) if len(seeds) >= FEWEST_SEEDS else math.inf
    if math.isinf(bound):
        return NO_VERDICT, None
    return WITHIN if abs(math.fsum(differences) / len(differences)) <= bound else BEYOND, bound


def compare(differences: Array, margin: float = 0.0) -> Effect:
    """Return the mean of paired differences [seeds], judged by a t test over the seeds against a margin."""
    shifted, n = differences - margin, len(differences)
    seeds, mean = tuple(shifted.tolist()), float(shifted.mean()) if n else math.nan
    reach = half_interval(seeds) if n else math.inf
    if math.isinf(reach):
        return Effect(mean + margin, n=n, seeds=seeds)
    from scipy import stats

    p = float(stats.ttest_1samp(shifted, 0.0).pvalue)
    return Effect(mean + margin, mean - reach + margin, mean + reach + margin, p, n, seeds)


def compare_printed(difference: float, margin: float, deviation: float) -> Effect:
    """Return the effect of printed values, of which their ± is all that is known, against a margin."""
    size = half_interval((), deviation)
    p = 0.0 if round(abs(difference - margin), 9) > size else 1.0
    return Effect(difference, difference - size, difference + size, p)


def compare_spreads(first: Array, second: Array, margin: float = 0.0) -> Effect:
    """Return by how much the first of two paired samples [seeds] spreads more, by the test of Pitman and Morgan.

    Sum and difference of two normal sides are correlated exactly if one varies more, which is what is tested; other
    ratios are tested after scaling. A ratio of deviations is turned into a difference at their geometric mean, so that
    of no difference p is exact. p is about a difference of `margin`. Fewer than three seeds say nothing.
    """
    n = len(first)
    ours, theirs = (float(side.std()) if n else 0.0 for side in (first, second))
    if n < 3 or min(ours, theirs) <= 1e-9:
        return Effect(ours - theirs, n=n)
    from scipy import stats

    correlation = float(stats.pearsonr(first, second).statistic)
    half = 2 * (1 - correlation**2) * float(stats.t.ppf(1 - LEVEL / 2, n - 2)) ** 2 / (n - 2)
    # By this the deviations may be off, one to either side, at the end of the interval of their ratio.
    factor = (1 + half + math.sqrt(half * (half + 2))) ** 0.25
    # And by this where they differ by just the margin.
    shift = (math.sqrt(margin**2 + 4 * ours * theirs) - margin) / (2 * theirs)
    scaled = first * theirs * shift**2 / ours
    p = float(stats.pearsonr(scaled + second, scaled - second).pvalue)
    return Effect(ours - theirs, ours / factor - theirs * factor, ours * factor - theirs / factor, p, n)


def variance_components(values: Array) -> tuple[float, float]:
    """Return the variances between and within groups [groups, members] by one-way random effects, 0 if negative."""
    within = float(values.var(axis=1, ddof=1).mean())
    between = float(values.mean(axis=1).var(ddof=1)) - within / values.shape[1]
    return max(between, 0.0), within


def holm(ps: Sequence[float]) -> list[float]:
    """Return the p of several comparisons, so that any false one is as likely as a single one alone."""
    order, adjusted = np.argsort(ps, kind="stable"), np.zeros(len(ps))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.sort(ps) * np.arange(len(ps), 0, -1)))
    return [float(p) for p in adjusted]


def significant(pairs: Sequence[tuple[BySeed, BySeed]]) -> list[bool | None]:
    """Return of each pair of values whether the two differ, by moderated paired t tests over the seeds that both have
    (at 5 % over all pairs together, Holm); None where they do not share two seeds."""
    shared = [sorted(one.keys() & other.keys()) for one, other in pairs]
    judged = [at for at, seeds in enumerate(shared) if len(seeds) > 1]
    effects = [compare(np.array([pairs[at][0][seed] - pairs[at][1][seed] for seed in shared[at]])) for at in judged]
    found = dict(zip(judged, (p <= LEVEL for p in holm(moderated_ps(effects))), strict=True))
    return [found.get(at) for at in range(len(pairs))]


def moderated_ps(effects: Sequence[Effect]) -> list[float]:
    """Return the two-sided p of each comparison, where those with a known spread share what they know of it.

    Moderated t tests (Smyth, 2004): three seeds tell a spread badly, but the variances of a table's comparisons scatter
    about something that all together tell well, and each is drawn towards it. One above it is left as it is, since one
    method may be less steady than all others. Fewer than three comparisons are judged each by itself.
    """
    known = [at for at, one in enumerate(effects) if math.isfinite(one.low)]
    ps = [one.p for one in effects]
    if len(known) < 3:
        return ps
    from scipy import stats

    n = np.array([effects[at].n for at in known], dtype=np.float64)
    differences = np.array([effects[at].difference for at in known])
    own = np.array([np.std(effects[at].seeds, ddof=1) ** 2 for at in known])
    moved, degrees = moderated(own, n - 1)
    t = np.abs(differences) / np.sqrt(np.maximum(own, moved) / n)
    for at, p in zip(known, 2 * stats.t.sf(t, degrees), strict=True):
        ps[at] = float(p)
    return ps


def moderated(variances: Array, degrees: Array) -> tuple[Array, Array]:
    """Return variances [comparisons] drawn towards a common one, and the degrees of freedom that they have then.

    True variances are taken for draws from a scaled inverse χ², whose scale s² and degrees d are found by the mean and
    variance of the logarithms; what is observed with its own degrees and s² with d are averaged (Smyth, 2004, section
    6). Where they scatter no more than chance explains, all are the same. There are never more degrees than all have.
    """
    from scipy import optimize, special

    logs = np.log(variances) - special.digamma(degrees / 2) + np.log(degrees / 2)
    beyond = float(logs.var(ddof=1) - special.polygamma(1, degrees / 2).mean())
    if beyond <= 0:
        return np.full_like(variances, np.exp(logs.mean())), np.full_like(degrees, degrees.sum())

    def excess(log: float) -> float:
        return float(np.log(special.polygamma(1, np.exp(log)) / beyond))

    # The trigamma function falls from infinity to 0; beyond these bounds it makes no difference.
    low, high = np.log(1e-4), np.log(1e8)
    inside = excess(low) > 0 > excess(high)
    half = float(np.exp(optimize.brentq(excess, low, high) if inside else high if beyond < 1 else low))
    common = np.exp(logs.mean() + special.digamma(half) - np.log(half))
    moved = (2 * half * common + degrees * variances) / (2 * half + degrees)
    return moved, np.minimum(2 * half + degrees, degrees.sum())


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean ranks, 1 the best: p of the Friedman test that all have the same; the difference beyond
    which two of them differ (Nemenyi); and the largest sets of methods that do not, all where p is above 5 %."""

    mean_ranks: Array
    p: float
    critical: float
    groups: list[list[int]]


def rank_methods(scores: Array) -> Ranking:
    """Rank methods by scores [data sets, methods], two methods at least and the highest the best, and compare the mean
    ranks (Demšar, 2006); equal scores share their mean rank, and data sets count as independent."""
    from scipy import stats

    count, methods = scores.shape
    ranks = stats.rankdata(-scores, axis=1)
    mean_ranks = ranks.mean(axis=0)
    # Friedman's test as SciPy has it, which wants three methods: the variance of ranks within data sets, ties included,
    # is what chance alone gives the sums (Conover, 1999).
    chance = float(((ranks - (methods + 1) / 2) ** 2).sum()) / (methods - 1)
    spread = float(((ranks.sum(axis=0) - count * (methods + 1) / 2) ** 2).sum())
    p = float(stats.chi2.sf(spread / chance, methods - 1)) if chance else 1.0
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, methods, math.inf)) / math.sqrt(2)
    critical = quantile * math.sqrt(methods * (methods + 1) / (6 * count))
    bound, groups = critical if p <= LEVEL else math.inf, list[list[int]]()
    order = [int(method) for method in np.argsort(mean_ranks, kind="stable")]
    for at, first in enumerate(order):
        group = [method for method in order[at:] if mean_ranks[method] - mean_ranks[first] <= bound]
        if len(group) > 1 and not (groups and group[-1] in groups[-1]):
            groups.append(group)
    return Ranking(mean_ranks, p, critical, groups)
