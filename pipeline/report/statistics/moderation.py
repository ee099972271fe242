"""Several comparisons that lend each other what they know of chance: moderated t tests (Smyth, 2004).

Of three seeds a spread is known so badly that t asks for differences of many times its size, the more so when many
comparisons are made at once. But the comparisons of a table are alike: their variances scatter about something that all
of them together tell well. Each is taken for what lies between its own and that, weighed by how much the variances
scatter beyond what so few seeds explain. Where they differ much from each other, little changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.report.statistics.comparison import Array, Comparison

FEWEST = 3  # comparisons whose variances say something of a common one


def moderated_ps(comparisons: Sequence[Comparison]) -> list[float]:
    """The two-sided p of each comparison, of which those with a known spread share what they know of it.

    A variance above the common one is left as it is. Fewer than three comparisons are judged each by itself.
    """
    known = [index for index, one in enumerate(comparisons) if math.isfinite(one.low)]
    ps = [one.p for one in comparisons]
    if len(known) < FEWEST:
        return ps
    from scipy import stats

    n = np.array([comparisons[index].n for index in known], dtype=np.float64)
    differences = np.array([comparisons[index].difference for index in known])
    own = np.array([comparisons[index].spread ** 2 for index in known])
    moved, degrees = moderated(own, n - 1)
    variances = np.maximum(own, moved)  # one method may be less steady than all others, and must not be taken for them
    for index, p in zip(known, 2 * stats.t.sf(np.abs(differences) / np.sqrt(variances / n), degrees), strict=True):
        ps[index] = float(p)
    return ps


def moderated(variances: Array, degrees: Array) -> tuple[Array, Array]:
    """Variances drawn towards a common one, and the degrees of freedom that they have then (Smyth, 2004, section 6).

    True variances are taken for draws from a scaled inverse χ², whose scale s² and degrees d are found by the mean and
    variance of the logarithms; what is observed with its own degrees and s² with d are averaged. Where they scatter no
    more than chance explains, all are the same. There are never more degrees than all comparisons have together.

    Args:
        variances, degrees: [comparisons], positive; three or more.
    """
    from scipy import special

    logs = np.log(variances) - special.digamma(degrees / 2) + np.log(degrees / 2)
    beyond = float(logs.var(ddof=1) - special.polygamma(1, degrees / 2).mean())
    if beyond <= 0:
        return np.full_like(variances, np.exp(logs.mean())), np.full_like(degrees, degrees.sum())
    half = _inverse_trigamma(beyond)
    common = np.exp(logs.mean() + special.digamma(half) - np.log(half))
    moved = (2 * half * common + degrees * variances) / (2 * half + degrees)
    return moved, np.minimum(2 * half + degrees, degrees.sum())


def _inverse_trigamma(value: float) -> float:
    """x > 0 of which the trigamma function, which falls from infinity to 0, has this value."""
    from scipy import optimize, special

    low, high = np.log(1e-4), np.log(1e8)
    if not special.polygamma(1, np.exp(high)) < value < special.polygamma(1, np.exp(low)):
        return float(np.exp(high if value < 1 else low))
    found = optimize.brentq(lambda log: np.log(special.polygamma(1, np.exp(log)) / value), low, high)
    return float(np.exp(found))
