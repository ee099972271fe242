"""Whether a table's runs, had they all been shorter, would be nearer to what is published."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from pipeline.papers.obtained import accuracies, obtained_cells
from pipeline.report.table.results import Results

FEWEST = 5
"""Cells of which a common share of rounds says something."""

Curve = Mapping[float, float]
"""Accuracy in percent by the share of a run's rounds after which it was measured."""


def shorter_in_words(results: Results) -> str:
    """A sentence on the share of rounds at which a table's obtained cells are nearest to the published numbers.

    It is chosen on these numbers, so it explains nothing, but it says what to vary: a paper whose runs were shorter, or
    learned at a lower rate, is behind everywhere. "" where it is the end, or there are fewer than :data:`FEWEST` cells.
    """
    published, curves = list[float](), list[list[Curve]]()
    for cell in obtained_cells(results):
        assert cell.published and cell.published.mean is not None
        runs = [run for run in (results.runs[name] for name in cell.runs) if run.values_of(cell.client)]
        published.append(cell.published.mean)
        curves.append(
            [
                {at / run.resolved.training.rounds: value for at, value in accuracies(run, cell.client).items()}
                for run in runs
            ]
        )
    if len(curves) < FEWEST:
        return ""
    distances = distances_by_share(published, curves)
    nearest = min(distances, key=lambda share: (distances[share], -share))
    if nearest >= max(distances):
        return ""
    end = distances[max(distances)]
    return (
        f"Cut off after {100 * nearest:.0f} % of their rounds, the {len(curves)} cells are {distances[nearest]:.2f} "
        f"points from the published numbers on average, nearer than at any other share; at the end {end:.2f}. The "
        "share is chosen on these numbers: it hints at what to vary, such as the learning rate, and explains nothing."
    )


def distances_by_share(published: list[float], curves: list[list[Curve]]) -> dict[float, float]:
    """Mean distance of cells from what is published, in points, by share of their rounds.

    Args:
        curves: Of each cell those of its runs. Shares at which some run has not been measured are left out.
    """
    shares = set.intersection(*(set(curve) for cell in curves for curve in cell))
    return {
        share: statistics.fmean(
            abs(statistics.fmean(curve[share] for curve in cell) - value)
            for value, cell in zip(published, curves, strict=True)
        )
        for share in sorted(shares)
    }
