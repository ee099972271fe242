"""How clients that took no part in training fare when only one part of the model is tuned for them (FedTP)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pipeline.report.drawing.panels import Style, draw_panels, left_out
from pipeline.report.drawing.sections import Picture, PlainTable, Section, counted
from pipeline.report.figures._data import TableData, joined

_TEXT = (
    "The share of the novel clients' test samples that are classified correctly while one part of the model is tuned "
    "on their training samples and the rest stays as it was trained; epoch 0 is before. Of several runs the "
    "mean is shown."
)


def draw(data: TableData) -> Section:
    """Draw a curve per method and tuned part, pooled over clients, the mean over runs. CSV: tuned, epoch, accuracy.

    Items are called ``<part>.correct`` and ``<part>.total``, and their index is the epoch.
    """
    found = data.findings("adaptation").rename(columns={"index": "epoch"})
    axes = data.axes(found)
    names = found["item"].str.rpartition(".")
    found = found.assign(tuned=pd.Categorical(names[0], names[0].unique(), ordered=True), count=names[2])
    place = [*axes, "panel", "tuned", "epoch"]
    counts = found.pivot_table("value", [*place, "run"], "count", aggfunc="sum", observed=True)
    accuracy = 100.0 * counts["correct"] / counts["total"]
    curves = accuracy.groupby(place, observed=True).mean().rename("accuracy").reset_index()
    curves["series"] = joined(curves, [*(axis for axis in data.rows if axis in axes), "tuned"])
    by_curve = curves.groupby([*axes, "tuned"], observed=True)
    summary = by_curve.agg(epochs=("epoch", "last"), before=("accuracy", "first"), after=("accuracy", "last"))
    ends = summary[["before", "after"]].map(f"{{:.{data.table.decimals}f}}".format)
    table = PlainTable.of(summary.assign(**ends).reset_index(), axes, "tuned")
    figure = draw_panels(curves, "epoch", "accuracy of novel clients (%)", _curve)
    for panel in figure.axes:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    best = summary["after"].max()
    alt = f"Accuracy of novel clients over epochs of tuning, {counted(len(summary), 'curve')}, to {best:.2f} percent."
    lines = curves[[*axes, "tuned", "epoch", "accuracy"]]
    return Section(_TEXT + left_out(curves, "adaptation"), Picture(figure, alt), table, lines)


def _curve(axes: Axes, curve: pd.DataFrame, style: Style) -> None:
    axes.plot(curve["epoch"], curve["accuracy"], linewidth=1.3, markersize=3.5, **style)
