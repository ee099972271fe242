"""Curves over rounds and epochs: a panel per column of the table, the mean over the runs of a cell."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from pipeline.report.drawing.panels import Style, draw_panels, left_out
from pipeline.report.drawing.sections import Picture, PlainTable, Section, counted
from pipeline.report.figures._data import TableData, joined
from pipeline.report.table import ACCURACY

_UNEQUAL = 5  # times as many rounds: on an even axis the shorter curve could not be seen
_CLOSE = 95.0  # percent that most curves reach: on an even axis their differences could not be seen
_FULL = 100.1  # percent; a little more than all, so that 100 has a place on an axis of errors
_TICKS = (0, 50, 80, 90, 95, 98, 99, 99.5, 99.9, 100)
_ADAPTATION = (
    "Accuracy on the novel clients' test samples while one part of the model is tuned on their training samples and "
    "the rest stays as it was trained; epoch 0 is before. Of several runs the mean is shown."
)


def draw_curves(data: TableData) -> Section:
    """Draw a curve per cell over the rounds that all of its runs measured; as CSV a column per cell."""
    frame = data.place(data.results.frame.rounds, single=True, diverged=True)
    axes = data.axes(frame)
    place = list(dict.fromkeys([*axes, "series", "panel", "made", "round"]))
    by_round = frame.groupby(place, observed=True)["accuracy"].agg(["mean", "size"]).reset_index()
    curves = by_round.query("size == made").rename(columns={"mean": "accuracy"})
    if curves.empty or data.table.quantities:
        return Section("No run has been measured yet.")
    figure = draw_panels(curves, "round", data.measure, _line)
    last = curves.groupby(["series", "panel"], observed=True).tail(1)
    close = data.measure == ACCURACY and float(last["accuracy"].median()) >= _CLOSE
    for panel in figure.axes:
        _choose_scales(panel, close)
    best = last.nlargest(1, "accuracy").iloc[0]
    where = " · ".join(filter(None, (best["series"], best["panel"])))
    ends = f"{best['accuracy']:.2f}{f' ({where})' if where else ''}"
    alt = f"Test {data.measure} over rounds, {counted(len(last), 'curve')}; the highest ends at {ends}."
    what = "Pooled test accuracy" if data.measure == ACCURACY else "Mean average precision, the mean over clients,"
    text = f"{what} over communication rounds{'; in cells of one client, its own' if data.table.clients else ''}."
    text += " The axis of accuracies is logarithmic in the error; curves leave it below." * close
    names = [" / ".join(key) for key in curves[axes].itertuples(index=False, name=None)]
    wide = curves.assign(name=names).pivot(index="round", columns="name", values="accuracy")
    wide = wide[list(dict.fromkeys(names))].reset_index()
    return Section(text + left_out(curves, "curves"), Picture(figure, alt), data=wide)


def _line(axes: Axes, curve: pd.DataFrame, style: Style) -> None:
    # Markers of different curves start at different points, so that they do not hide one another.
    every = max(1, len(curve) // 6)
    marks = {"markevery": (len(axes.lines) % every, every), "linewidth": 1.3, "markersize": 3.5}
    axes.plot(curve["round"], curve["accuracy"], **{**marks, **style})


def _choose_scales(panel: Axes, close: bool) -> None:
    rounds, values = zip(*(np.asarray(line.get_data(), float) for line in panel.lines), strict=True)
    last = [own[-1] for own in rounds]
    if max(last) >= _UNEQUAL * min(last) and min(own[0] for own in rounds) > 0:
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(ScalarFormatter())
    if close:
        low, high = min(np.median(own) for own in values), max(own.max() for own in values)
        bottom, top = max(tick for tick in _TICKS if tick <= low), min(tick for tick in _TICKS if tick >= high)
        log_error = lambda accuracy: -np.log10(np.maximum(_FULL - np.asarray(accuracy), 1e-3))  # noqa: E731
        panel.set_yscale("function", functions=(log_error, lambda error: _FULL - 10.0 ** -np.asarray(error)))
        panel.set_ylim(bottom, top)
        panel.set_yticks([tick for tick in _TICKS if bottom <= tick <= top])


def draw_adaptation(data: TableData) -> Section:
    """Draw a curve per method and tuned part, pooled over clients, the mean over runs, of items ``<part>.correct`` and
    ``<part>.total`` by epoch. CSV: tuned, epoch, accuracy."""
    found = data.findings("adaptation").rename(columns={"index": "epoch"})
    axes, names = data.axes(found), found["item"].str.rpartition(".")
    found = found.assign(tuned=pd.Categorical(names[0], names[0].unique(), ordered=True), count=names[2])
    place = [*axes, "panel", "tuned", "epoch"]
    counts = found.pivot_table("value", [*place, "run"], "count", aggfunc="sum", observed=True)
    accuracy = 100.0 * counts["correct"] / counts["total"]
    curves = accuracy.groupby(place, observed=True).mean().rename("accuracy").reset_index()
    curves["series"] = joined(curves, [*(axis for axis in data.rows if axis in axes), "tuned"])
    by_curve = curves.groupby([*axes, "tuned"], observed=True)
    summary = by_curve.agg(epochs=("epoch", "last"), before=("accuracy", "first"), after=("accuracy", "last"))
    ends = summary[["before", "after"]].map(f"{{:.{data.table.decimals}f}}".format)
    figure = draw_panels(curves.assign(round=curves["epoch"]), "epoch", "accuracy of novel clients (%)", _line)
    for panel in figure.axes:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    what = f"Accuracy of novel clients over epochs of tuning, {counted(len(summary), 'curve')}"
    picture = Picture(figure, f"{what}, to {summary['after'].max():.2f} percent.")
    table = PlainTable.of(summary.assign(**ends).reset_index(), axes, "tuned")
    lines = curves[[*axes, "tuned", "epoch", "accuracy"]]
    return Section(_ADAPTATION + left_out(curves, "adaptation"), picture, table, lines)
