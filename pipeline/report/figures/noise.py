"""How accuracy falls with a client's noise: a point per client, the mean of each method dotted (FedTP, figure 10)."""

from __future__ import annotations

import json

import pandas as pd
from matplotlib.axes import Axes

from pipeline.report.drawing.panels import Style, draw_panels, left_out
from pipeline.report.drawing.sections import Picture, PlainTable, Section, counted
from pipeline.report.figures._data import TableData
from pipeline.report.table import ACCURACY

TITLE = "Accuracy and noise"
NEEDS = "partitions"

_TEXT = (
    "A point is a client: its test accuracy after the last round against the standard deviation of the noise on its "
    "images, as its partition says. Dotted: the mean of a method over its clients, all counting the same. Least and "
    "most noise: the mean accuracy of the clients of a cell that have it."
)


def draw(data: TableData) -> Section:
    """Draw the clients; one line when no partition has noise. CSV: run, client, noise, accuracy."""
    noisy = data.runs.dropna(subset="noise")
    noise = {run: pd.Series(json.loads(of)) for run, of in zip(noisy["run"], noisy["noise"], strict=True)}
    clients = noisy.drop(columns="noise").merge(data.accuracies, on="run")
    if clients.empty:
        return Section("No measured run of this table has clients with noise on their images.")
    clients["noise"] = [noise[run][client] for run, client in zip(clients["run"], clients["client"], strict=True)]
    axes = data.axes(clients)
    by_cell = clients.groupby(axes, observed=True)
    ends = {name: clients["noise"] == by_cell["noise"].transform(name) for name in ("min", "max")}
    least, most = (clients[at].groupby(axes, observed=True)["accuracy"].mean() for at in ends.values())
    mean = by_cell["accuracy"].mean()
    summary = pd.DataFrame({"mean": mean, "least noise": least, "most noise": most})
    summary = summary.map(f"{{:.{data.table.decimals}f}}".format).assign(clients=by_cell.size().map("{:,}".format))
    alt = (
        f"Accuracy of clients against their noise, {counted(clients['series'].nunique(), 'method')}: noise from "
        f"{clients['noise'].min():g} to {clients['noise'].max():g}, mean accuracies from {mean.min():.2f} to "
        f"{mean.max():.2f} percent."
    )
    figure = draw_panels(clients, "noise of the client (std)", ACCURACY, _cloud, {"linestyle": ":"})
    lines = clients.sort_values(axes, kind="stable")[[*axes, "run", "client", "noise", "accuracy"]]
    table = PlainTable.of(summary.reset_index(), axes)
    return Section(_TEXT + left_out(clients, "noise"), Picture(figure, alt), table, lines)


def _cloud(axes: Axes, clients: pd.DataFrame, style: Style) -> None:
    style = {**style, "markersize": 4.0}
    # Hollow, so that points over one another can be seen.
    hollow = {"markerfacecolor": "none", "markeredgewidth": 1.0, "linestyle": "none"}
    axes.plot(clients["noise"], clients["accuracy"], **{**style, **hollow})
    ends, mean = [clients["noise"].min(), clients["noise"].max()], clients["accuracy"].mean()
    axes.plot(ends, [mean] * 2, **{**style, "linestyle": ":", "linewidth": 1.3})
