"""What each client gains over training alone, as a density per method (FedPerfix, figure 3).

A client's gain is the accuracy of a method on it less that of Local on the same client: same partition, same seed, same
backbone.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pipeline.report.drawing.panels import Style, draw_panels, left_out
from pipeline.report.drawing.sections import Picture, PlainTable, Section, counted
from pipeline.report.figures._data import TableData, closest
from pipeline.report.table import signed

TITLE = "Gain of the clients over Local"

_POINTS = 256
_TEXT = (
    "Accuracy of a method on a client less that of Local on the same client, after the last round, in percentage points"
    ": the same partition and seed, and the same backbone. The curves are Gaussian kernel densities over the clients of"
    " all runs of a cell; a vertical line is a method that gives all clients the same."
)


def draw(data: TableData) -> Section:
    """Draw the densities; one line when there is no Local to compare with. CSV: run, local (the run that it is compared
    with), client, gain."""
    alone = data.runs["method"] == "local"
    others = data.runs[~alone]
    local = closest(others, data.runs[alone], "federation")["run"].rename("local")
    accuracies = data.accuracies
    gains = others.join(local, how="inner").merge(accuracies, on="run")
    gains = gains.merge(accuracies.rename(columns={"run": "local", "accuracy": "alone"}), on=["local", "client"])
    if gains.empty:
        return Section("Nothing to compare: no measured run of Local shares partition and backbone with others.")
    axes = data.axes(gains)
    gains = gains.assign(gain=gains["accuracy"] - gains["alone"]).sort_values(axes, kind="stable")
    by_cell = gains.groupby(axes, observed=True)["gain"]
    means = by_cell.mean()
    summary = {
        "mean gain": means.map(lambda mean: signed(mean, data.table.decimals)),
        "clients that gain (%)": by_cell.agg(lambda own: 100.0 * (own > 0).mean()).map("{:.1f}".format),
        "clients": by_cell.size().map("{:,}".format),
    }
    figure = draw_panels(gains, "gain over Local (points)", "density of clients", _density)
    for panel in figure.axes:
        panel.axvline(0.0, color="#888888", linewidth=0.8)
        panel.set_ylim(bottom=0.0)
    what = f"Densities of the clients' gain over Local, {counted(gains['series'].nunique(), 'method')}"
    alt = f"{what}: mean gains from {signed(means.min(), 2)} to {signed(means.max(), 2)} points."
    table = PlainTable.of(pd.DataFrame(summary).reset_index(), axes)
    lines = gains[[*axes, "run", "local", "client", "gain"]]
    return Section(_TEXT + left_out(gains, "gain"), Picture(figure, alt), table, lines)


def density(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return a Gaussian kernel density with Scott's bandwidth, up to three bandwidths beyond the outermost values:
    evenly spaced positions, and the density per unit there. None when all values are the same."""
    from scipy.stats import gaussian_kde  # takes longer to import than most reports to write

    if np.ptp(values) < 1e-9 * max(1.0, float(np.abs(values).max())):
        return None
    estimate = gaussian_kde(values)
    reach = 3.0 * float(np.sqrt(estimate.covariance[0, 0]))
    at = np.linspace(values.min() - reach, values.max() + reach, _POINTS)
    return at, estimate(at)


def _density(axes: Axes, gains: pd.DataFrame, style: Style) -> None:
    line = {"linewidth": 1.3, "markersize": 3.5, **style}
    if curve := density(gains["gain"].to_numpy()):
        axes.plot(*curve, markevery=(_POINTS // 12, _POINTS // 6), **line)
    else:
        axes.axvline(gains["gain"].mean(), **line)
