"""Statistics over seeds: intervals and tests of paired differences, the rule for noise, ranks over data sets.

The clients of a run share one training, so the sample is the seeds, one number each. Tests are t tests, because
sign-flip tests of three seeds cannot reach 5 %. They assume that differences of seeds (means over clients and samples)
are about normal. Functions import SciPy late, because importing it takes longer than writing most reports.
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
"""Values by seed."""
LEVEL = 0.05
"""The significance level of all tests."""
POWER = 0.8
MIN_SEEDS = 3
"""The minimum number of our seeds for a verdict against a published value."""

WITHIN, BEYOND, NO_VERDICT = "within noise", "beyond noise", "no verdict"
NOISE_LEGEND = (
    "Noise: a difference is beyond noise where its 95 % interval excludes zero (for a claim: its margin), and within "
    "noise otherwise. The interval is by t over our seeds; a printed ± counts as the standard deviation of the printed "
    f"value. Beside a published value fewer than {MIN_SEEDS} seeds of ours, or equal ones, have no verdict."
)


@dataclass(frozen=True)
class Effect:
    """A difference with its 95 % interval and p-value, in the unit of the values; it is NaN if no seed has both values.

    Attributes:
        low, high: Infinite if the spread between seeds is not known.
        p: Two-sided; 1 if the spread is not known. For printed values 0 if the interval excludes the margin, else 1.
        n: Number of seeds; None for printed values.
        seeds: The sample of the t test: the difference of each seed minus the margin.
    """

    difference: float
    low: float = -math.inf
    high: float = math.inf
    p: float = 1.0
    n: int | None = None
    seeds: tuple[float, ...] = field(default=(), compare=False)

    @property
    def sign_flip_p(self) -> float | None:
        """The p of a sign-flip test over seeds, which does not assume normality; None for fewer than three seeds."""
        if len(self.seeds) < MIN_SEEDS:
            return None
        from scipy import stats

        random = np.random.default_rng(0)  # for more than 13 seeds
        return float(stats.permutation_test((self.seeds,), np.mean, permutation_type="samples", rng=random).pvalue)

    @property
    def detectable(self) -> float | None:
        """The true difference that this number of seeds detects with :data:`POWER`; None for fewer than three."""
        if len(self.seeds) < MIN_SEEDS:
            return None
        from scipy import optimize, stats

        degrees = len(self.seeds) - 1
        critical = float(stats.t.ppf(1 - LEVEL / 2, degrees))
        bounds = 0.0, 10 * (critical + 1)
        shift = optimize.brentq(lambda shift: float(stats.nct.sf(critical, degrees, shift)) - POWER, *bounds)
        return float(shift * stats.sem(self.seeds))


def half_interval(seeds: Sequence[float], deviation: float = 0.0) -> float:
    """Return half the width of the 95 % interval of a difference; infinite if the spread between seeds is not known.

    `seeds` is empty if both values are printed. `deviation` is the ± of printed values, taken as a standard deviation.
    The squared half widths of both sides are added (MOVER, Zou and Donner 2008): with three seeds this errs in at most
    5 of 100 cases, Welch's degrees of freedom in up to 8.
    """
    printed = NormalDist().inv_cdf(1 - LEVEL / 2) * deviation
    if not len(seeds):
        return printed
    # Values of seeds that are equal up to the last digit differ by rounding, so their spread is unknown.
    if len(seeds) < 2 or max(seeds) - min(seeds) <= 1e-9 * max(map(abs, seeds)):
        return math.inf
    from scipy import stats

    return math.hypot(float(stats.t.ppf(1 - LEVEL / 2, len(seeds) - 1) * stats.sem(seeds)), printed)


def noise_verdict(seeds: Sequence[float], published: float, deviation: float | None) -> tuple[str, float | None]:
    """Return the verdict on values by seed against a published value, and how far the two may differ by chance."""
    differences = [value - published for value in seeds]
    bound = half_interval(differences, deviation or 0.0) if len(seeds) >= MIN_SEEDS else math.inf
    if math.isinf(bound):
        return NO_VERDICT, None
    return WITHIN if abs(math.fsum(differences) / len(differences)) <= bound else BEYOND, bound


def compare(differences: Array, margin: float = 0.0) -> Effect:
    """Return the mean of paired differences [seeds], judged by a t test over the seeds against a margin."""
    shifted, n = differences - margin, len(differences)
    seeds, mean = tuple(shifted.tolist()), float(shifted.mean()) if n else math.nan
    half = half_interval(seeds) if n else math.inf
    if math.isinf(half):
        return Effect(mean + margin, n=n, seeds=seeds)
    from scipy import stats

    p = float(stats.ttest_1samp(shifted, 0.0).pvalue)
    return Effect(mean + margin, mean - half + margin, mean + half + margin, p, n, seeds)


def compare_printed(difference: float, margin: float, deviation: float) -> Effect:
    """Return the effect of printed values, of which only the ± is known, against a margin."""
    half = half_interval((), deviation)
    p = 0.0 if round(abs(difference - margin), 9) > half else 1.0
    return Effect(difference, difference - half, difference + half, p)


def compare_spreads(first: Array, second: Array, margin: float = 0.0) -> Effect:
    """Return the difference of the standard deviations of two paired samples [seeds], by the test of Pitman and Morgan.

    The sum and the difference of two normal samples are correlated if and only if one sample varies more; other ratios
    are tested after scaling. The interval of the ratio is converted into one of the difference, at the geometric mean
    of the deviations. p tests a difference of `margin`, exactly for 0. At least three seeds are needed.
    """
    n = len(first)
    s1, s2 = (float(side.std()) if n else 0.0 for side in (first, second))
    if n < 3 or min(s1, s2) <= 1e-9:
        return Effect(s1 - s2, n=n)
    from scipy import stats

    correlation = float(stats.pearsonr(first, second).statistic)
    half = 2 * (1 - correlation**2) * float(stats.t.ppf(1 - LEVEL / 2, n - 2)) ** 2 / (n - 2)
    # At the ends of the interval of their ratio, one deviation is multiplied and the other divided by this factor;
    factor = (1 + half + math.sqrt(half * (half + 2))) ** 0.25
    # if their difference equals the margin, by this one.
    shift = (math.sqrt(margin**2 + 4 * s1 * s2) - margin) / (2 * s2)
    scaled = first * s2 * shift**2 / s1
    p = float(stats.pearsonr(scaled + second, scaled - second).pvalue)
    return Effect(s1 - s2, s1 / factor - s2 * factor, s1 * factor - s2 / factor, p, n)


def variance_components(values: Array) -> tuple[float, float]:
    """Return the variances between and within groups [groups, members] by one-way random effects, 0 if negative."""
    within_groups = float(values.var(axis=1, ddof=1).mean())
    between_groups = float(values.mean(axis=1).var(ddof=1)) - within_groups / values.shape[1]
    return max(between_groups, 0.0), within_groups


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method, which bounds the family-wise error rate."""
    order, adjusted = np.argsort(ps, kind="stable"), np.zeros(len(ps))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.sort(ps) * np.arange(len(ps), 0, -1)))
    return [float(p) for p in adjusted]


def significant(
    pairs: Sequence[tuple[BySeed, BySeed]], references: Sequence[tuple[BySeed, BySeed]] = ()
) -> list[bool | None]:
    """Return for each pair of values whether they differ, by moderated paired t tests over shared seeds (at 5 % over
    all pairs, Holm); None if there are fewer than two. The pairs `references` only help to estimate variances."""
    effects = dict[int, Effect]()
    for i, (first, second) in enumerate([*pairs, *references]):
        seeds = sorted(first.keys() & second.keys())
        if len(seeds) > 1:
            effects[i] = compare(np.array([first[seed] - second[seed] for seed in seeds]))
    ps = {i: p for i, p in zip(effects, moderated_p_values([*effects.values()]), strict=True) if i < len(pairs)}
    verdicts = dict(zip(ps, (p <= LEVEL for p in holm([*ps.values()])), strict=True))
    return [verdicts.get(i) for i in range(len(pairs))]


def moderated_p_values(effects: Sequence[Effect]) -> list[float]:
    """Return the two-sided p of each comparison, by moderated t tests (Smyth, 2004).

    Three seeds estimate a variance badly, but the comparisons of a table together estimate a common value well, and
    each variance is moved towards it. A larger one stays, because one method may vary more than all others. Fewer than
    three comparisons are judged separately, and so are those without a known variance.
    """
    tested = [i for i, effect in enumerate(effects) if math.isfinite(effect.low)]
    ps = [effect.p for effect in effects]
    if len(tested) < 3:
        return ps
    from scipy import stats

    n = np.array([effects[i].n for i in tested], dtype=np.float64)
    differences = np.array([effects[i].difference for i in tested])
    variances = np.array([np.std(effects[i].seeds, ddof=1) ** 2 for i in tested])
    moved, degrees = moderate_variances(variances, n - 1)
    t = np.abs(differences) / np.sqrt(np.maximum(variances, moved) / n)
    for i, p in zip(tested, 2 * stats.t.sf(t, degrees), strict=True):
        ps[i] = float(p)
    return ps


def moderate_variances(variances: Array, degrees: Array) -> tuple[Array, Array]:
    """Return variances [comparisons] moved towards a common one, and their new degrees of freedom.

    True variances are modelled as draws from a scaled inverse χ². Its scale s² and degrees d follow from the mean and
    variance of the logarithms. The result is the mean of observed variance and s², weighted by degrees and d (Smyth,
    2004, section 6). If variances scatter no more than by chance, all become equal. Degrees are at most their total.
    """
    from scipy import optimize, special

    logs = np.log(variances) - special.digamma(degrees / 2) + np.log(degrees / 2)
    scatter = float(logs.var(ddof=1) - special.polygamma(1, degrees / 2).mean())
    if scatter <= 0:
        return np.full_like(variances, np.exp(logs.mean())), np.full_like(degrees, degrees.sum())

    def excess(log: float) -> float:
        return float(np.log(special.polygamma(1, np.exp(log)) / scatter))

    # The trigamma function falls from infinity to 0; outside these bounds the result does not change.
    low, high = np.log(1e-4), np.log(1e8)
    log_half = optimize.brentq(excess, low, high) if excess(low) > 0 > excess(high) else high if scatter < 1 else low
    half = float(np.exp(log_half))
    common = np.exp(logs.mean() + special.digamma(half) - np.log(half))
    moved = (2 * half * common + degrees * variances) / (2 * half + degrees)
    return moved, np.minimum(2 * half + degrees, degrees.sum())


@dataclass(frozen=True)
class Ranking:
    """Methods by mean ranks, 1 the best: p of the Friedman test that all are equal; two methods differ if their ranks
    are more than `critical` apart (Nemenyi); `groups`: the largest sets that do not differ, all if p > 5 %."""

    mean_ranks: Array
    p: float
    critical: float
    groups: list[list[int]]


def rank_methods(scores: Array) -> Ranking:
    """Rank two methods or more by scores [data sets, methods], where the highest is the best, and compare mean ranks
    (Demšar, 2006). Equal scores share their mean rank; data sets count as independent."""
    from scipy import stats

    datasets, methods = scores.shape
    ranks = stats.rankdata(-scores, axis=1)
    mean_ranks = ranks.mean(axis=0)
    # Friedman's test as in SciPy, which needs three methods (Conover, 1999, with ties).
    chance = float(((ranks - (methods + 1) / 2) ** 2).sum()) / (methods - 1)
    spread = float(((ranks.sum(axis=0) - datasets * (methods + 1) / 2) ** 2).sum())
    p = float(stats.chi2.sf(spread / chance, methods - 1)) if chance else 1.0
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, methods, math.inf)) / math.sqrt(2)
    critical = quantile * math.sqrt(methods * (methods + 1) / (6 * datasets))
    bound, groups = critical if p <= LEVEL else math.inf, list[list[int]]()
    order = [int(method) for method in np.argsort(mean_ranks, kind="stable")]
    for start, first in enumerate(order):
        group = [method for method in order[start:] if mean_ranks[method] - mean_ranks[first] <= bound]
        if len(group) > 1 and not (groups and group[-1] in groups[-1]):
            groups.append(group)
    return Ranking(mean_ranks, p, critical, groups)
