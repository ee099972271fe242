"""Convergence curves: test accuracy over rounds, a panel per column of the table, the mean over the runs of a cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import ScalarFormatter

from pipeline.report.drawing.panels import Style, draw_panels, left_out
from pipeline.report.drawing.sections import Picture, Section, counted
from pipeline.report.figures._data import TableData
from pipeline.report.table import ACCURACY

TITLE = "Convergence"

_UNEQUAL = 5  # times as many rounds: on an even axis the shorter curve could not be seen
_CLOSE = 95.0  # percent that most curves reach: on an even axis their differences could not be seen
_FULL = 100.1  # percent; a little more than all, so that 100 has a place on an axis of errors
_TICKS = (0, 50, 80, 90, 95, 98, 99, 99.5, 99.9, 100)


def draw(data: TableData) -> Section:
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
        panel.set_yscale("function", functions=(_log_error, _accuracy))
        panel.set_ylim(bottom, top)
        panel.set_yticks([tick for tick in _TICKS if bottom <= tick <= top])


def _log_error(accuracy: Any) -> Any:
    return -np.log10(np.maximum(_FULL - np.asarray(accuracy), 1e-3))


def _accuracy(log_error: Any) -> Any:
    return _FULL - 10.0 ** -np.asarray(log_error)
