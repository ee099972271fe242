"""What each client gains over training alone, as a density per method (FedPerfix, figure 3).

A client's gain is the accuracy of a method on it less that of Local on the same client: same partition, same seed, same
backbone. The densities are Gaussian kernel estimates with Scott's bandwidth.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pipeline.report.drawing.panels import Style, columns_of, draw_columns, with_room
from pipeline.report.drawing.sections import OfCell, Section, all_points, counted, draw_picture, line_per_cell
from pipeline.report.table.cells import Key
from pipeline.report.table.printed import signed
from pipeline.report.table.results import Measured, Results, closest

TITLE = "Gain of the clients over Local"

_POINTS = 256
_TEXT = (
    "Accuracy of a method on a client less that of Local on the same client, after the last round, in percentage points"
    ": the same partition and seed, and the same backbone. The curves are Gaussian kernel densities over the clients of"
    " all runs of a cell; a vertical line is a method that gives all clients the same."
)
_NOTHING = "Nothing to compare: no measured run of Local shares its partition and backbone with another method here."


class Gain(OfCell):
    """The gains of one cell: a row per client of each run: run, local (the run compared with), client, gain."""

    @property
    def values(self) -> NDArray[np.float64]:
        """Percentage points, one per client and run."""
        return self.points["gain"].to_numpy(np.float64)

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def winners(self) -> float:
        """The share of clients, in percent, that gain anything."""
        return 100.0 * float((self.values > 0).mean())


def draw(results: Results) -> Section:
    """The section; one line when there is no Local to compare with."""
    results = results.of_runs
    layout, gains = results.layout, collect_gains(results)
    if not gains:
        return Section(_NOTHING)
    header = ("mean gain", "clients that gain (%)", "clients")
    table = line_per_cell(layout, gains, header, lambda g: _numbers(g, results.table.decimals))
    drawn, left_out = with_room(columns_of(layout, gains), "gain")
    labels = "gain over Local (points)", "density of clients"
    picture = draw_picture(lambda: draw_columns(layout, gains, layout.rows, drawn, labels, _panel), _alt(gains))
    return Section(_TEXT + left_out, picture, table, all_points(layout, gains))


def collect_gains(results: Results) -> list[Gain]:
    """The gains of all cells but Local's own, rows first; cells without a counterpart are left out."""
    measured = {place: results.measured(*place) for place in results.layout.places}
    locals_: dict[str, list[Measured]] = {}
    for run in (run for runs in measured.values() for run in runs if run.resolved.method == "local"):
        locals_.setdefault(run.resolved.federation_id, []).append(run)
    gains = []
    for (row, column), runs in measured.items():
        points = [
            _points(run, local)
            for run in runs
            if run.resolved.method != "local" and (local := closest(run, locals_.get(run.resolved.federation_id, [])))
        ]
        if points:
            gains.append(Gain(row, column, pd.concat(points, ignore_index=True)))
    return gains


def density(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """A Gaussian kernel density with Scott's bandwidth, up to three bandwidths beyond the outermost values.

    Returns:
        Where it was evaluated, evenly spaced, and the density per unit there; None when all values are the same.
    """
    from scipy.stats import gaussian_kde  # takes longer to import than most reports to write

    if np.ptp(values) < 1e-9 * max(1.0, float(np.abs(values).max())):
        return None
    estimate = gaussian_kde(values)
    reach = 3.0 * float(np.sqrt(estimate.covariance[0, 0]))
    at = np.linspace(values.min() - reach, values.max() + reach, _POINTS)
    return at, estimate(at)


def _points(run: Measured, local: Measured) -> pd.DataFrame:
    gained = (run.clients - local.clients).dropna()
    return pd.DataFrame({"run": run.id, "local": local.id, "client": gained.index, "gain": gained.to_numpy()})


def _numbers(gain: Gain, decimals: int) -> tuple[str, ...]:
    return signed(gain.mean, decimals), f"{gain.winners:.1f}", f"{len(gain.values):,}"


def _panel(panel: Axes, gains: list[Gain], styles: dict[Key, Style]) -> None:
    panel.axvline(0.0, color="#888888", linewidth=0.8)
    for g in gains:
        curve = density(g.values)
        line = {"linewidth": 1.3, "markersize": 3.5, **styles[g.row]}
        if curve is None:
            panel.axvline(g.mean, **line)
        else:
            panel.plot(*curve, markevery=(_POINTS // 12, _POINTS // 6), **line)
    panel.set_ylim(bottom=0.0)


def _alt(gains: list[Gain]) -> str:
    means = [g.mean for g in gains]
    return (
        f"Densities of the clients' gain over Local, {counted(len({g.row for g in gains}), 'method')} in "
        f"{counted(len({g.column for g in gains}), 'setting')}: mean gains from {signed(min(means), 2)} to "
        f"{signed(max(means), 2)} points."
    )
