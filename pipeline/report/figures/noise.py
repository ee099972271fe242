"""How accuracy falls with a client's noise: a point per client, the mean of each method dotted (FedTP, figure 10)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pipeline.report.drawing.panels import Style, columns_of, draw_columns, with_room
from pipeline.report.drawing.sections import OfCell, Section, all_points, counted, draw_picture, line_per_cell
from pipeline.report.table.cells import ACCURACY, Key
from pipeline.report.table.results import Results

TITLE = "Accuracy and noise"
NEEDS = "partitions"

_TEXT = (
    "A point is a client: its test accuracy after the last round against the standard deviation of the noise on its "
    "images, as its partition says. Dotted: the mean of a method over its clients, all counting the same. Least and "
    "most noise: the mean accuracy of the clients of a cell that have it."
)
_NOTHING = "No measured run of this table has clients with noise on their images."


class Cloud(OfCell):
    """The clients of one cell: a row per client of each run: run, client, noise (standard deviation), accuracy
    (percent)."""

    @property
    def mean(self) -> float:
        """Percent."""
        return float(self.points["accuracy"].mean())

    def mean_at(self, noise: float) -> float:
        """Mean accuracy in percent of the clients with exactly this noise."""
        return float(self.points.loc[self.points["noise"] == noise, "accuracy"].mean())


def draw(results: Results) -> Section:
    """The section; one line when no partition has noise.

    Raises:
        UserError: A partition artifact is damaged.
    """
    results = results.of_runs
    layout, clouds = results.layout, collect_clouds(results)
    if not clouds:
        return Section(_NOTHING)
    header = ("mean", "least noise", "most noise", "clients")
    table = line_per_cell(layout, clouds, header, lambda c: _numbers(c, results.table.decimals))
    drawn, left_out = with_room(columns_of(layout, clouds), "noise")
    labels = "noise of the client (std)", ACCURACY
    picture = draw_picture(
        lambda: draw_columns(layout, clouds, layout.rows, drawn, labels, _panel, linestyle=":"), _alt(clouds)
    )
    return Section(_TEXT + left_out, picture, table, all_points(layout, clouds))


def collect_clouds(results: Results) -> list[Cloud]:
    """The clients of all cells whose partitions have noise, rows first. Raises as :func:`draw`."""
    clouds = []
    for row, column in results.layout.places:
        points = []
        for run in results.measured(row, column):
            noise = pd.Series(run.facts["noise"]) if "noise" in run.facts else None
            if noise is not None:
                accuracy = run.clients.rename("accuracy")
                own = accuracy.rename_axis("client").reset_index()
                own.insert(1, "noise", noise.reindex(own["client"]).to_numpy())
                own.insert(0, "run", run.id)
                points.append(own)
        if points:
            clouds.append(Cloud(row, column, pd.concat(points, ignore_index=True)))
    return clouds


def _numbers(cloud: Cloud, decimals: int) -> tuple[str, ...]:
    noise = cloud.points["noise"]
    means = (cloud.mean, cloud.mean_at(noise.min()), cloud.mean_at(noise.max()))
    return *(f"{mean:.{decimals}f}" for mean in means), f"{len(noise):,}"


def _panel(panel: Axes, clouds: list[Cloud], styles: dict[Key, Style]) -> None:
    for c in clouds:
        noise, accuracy = c.points["noise"].to_numpy(), c.points["accuracy"].to_numpy()
        style = {**styles[c.row], "markersize": 4.0}
        # Hollow, so that points over one another can be told apart.
        panel.plot(noise, accuracy, **{**style, "linestyle": "none"}, markerfacecolor="none", markeredgewidth=1.0)
        panel.plot([noise.min(), noise.max()], [c.mean] * 2, **{**style, "linestyle": ":", "linewidth": 1.3})


def _alt(clouds: list[Cloud]) -> str:
    means, noise = [c.mean for c in clouds], np.concatenate([c.points["noise"].to_numpy() for c in clouds])
    return (
        f"Accuracy of clients against their noise, {counted(len({c.row for c in clouds}), 'method')} in "
        f"{counted(len({c.column for c in clouds}), 'setting')}: noise from {noise.min():g} to {noise.max():g}, mean "
        f"accuracies from {min(means):.2f} to {max(means):.2f} percent."
    )
