"""What seeds can tell, against draws and against the textbook."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.report.statistics.power import LEVEL, least_detectable


@pytest.mark.parametrize("n", [2, 3, 7])
def test_the_least_difference_is_found_in_four_of_five_draws(n: int) -> None:
    drawn = np.random.default_rng(n).normal(least_detectable(n, 2.5), 2.5, (20_000, n))
    found = stats.ttest_1samp(drawn, 0.0, axis=1)
    assert np.mean((found.pvalue <= 0.05) & (found.statistic > 0)) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("n", [2, 5])
def test_the_power_at_the_least_difference(n: int) -> None:
    shift = least_detectable(n, 3.0) / 3.0 * math.sqrt(n)
    assert stats.nct.sf(stats.t.isf(LEVEL / 2, n - 1), n - 1, shift) == pytest.approx(0.8, abs=1e-6)


def test_the_number_of_the_textbook() -> None:
    # A paired t test notices half a standard deviation with 80 % from 34 pairs on.
    assert least_detectable(34, 1.0) <= 0.5 < least_detectable(33, 1.0)
    assert least_detectable(1, 1.0) == math.inf
