"""Curves over rounds and epochs, and charts of a table's cells with published values.

There are no bars: a bar has to begin at 0, where differences of a point or two cannot be seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from numpy.typing import ArrayLike, NDArray

from pflcore.settings import USUAL
from pipeline.report.cells import ACCURACY, PRECISION
from pipeline.report.drawing.panels import MAX_PANELS, Style, draw_panels, grid_shape, left_out, name_lines
from pipeline.report.drawing.sections import Picture, PlainTable, Section, pluralize
from pipeline.report.figures._data import MIXED_QUANTITIES, TableData, joined_labels
from pipeline.report.printed import NO_VALUE, axis_title, full_label

_UNEQUAL = 5  # ratio of rounds from which the axis is logarithmic, so that the shorter curve can be seen
_CLOSE = 95.0  # median percent from which the axis is logarithmic in the error, so that differences can be seen
_FULL = 100.1  # percent; above 100, so that 100 is finite on an axis of errors
_TICKS = (0, 50, 80, 90, 95, 97, 98, 99, 99.5, 99.9, 100)
_VISITS = (
    " A local epoch of all clients visits each sample once. Work beyond local epochs is not counted: a second model, "
    "inner steps of a method, tuning before a measurement."
)
_USUAL = " Of personal models on their own test samples, after aggregation, though the table shows others."
_ADAPTATION = (
    "Accuracy on the novel clients' test samples while one part of the model is tuned on their training samples and "
    "the rest stays as it was trained; epoch 0 is before. Of several runs the mean is shown."
)
MIN_RUNS = 5  # of a box; its five numbers are then those of the runs
_HOLLOW: Style = {"linestyle": "none", "markerfacecolor": "none", "alpha": 0.8}
_LETTER, _MARK, _WIDEST = 0.075, 0.2, 9.0  # inches: a letter of a label, a mark with its gap, the widest panel
_SLANT = 35.0  # degrees, of labels that are too long for a horizontal row
_NO_VALUES = Section("No number of this table has been obtained yet.")
_BOXES = (
    "A box shows the runs of a cell: their median and quartiles, and with its whiskers the least and the greatest of "
    "their numbers; of five runs, these are the five. The mark is their mean."
)
_NAMES = {"min": "least", "25%": "first quartile", "50%": "median", "75%": "third quartile", "max": "greatest"}


def draw_values(data: TableData) -> Section:
    """Draw the cells. CSV: obtained and published means and deviations, and the number of runs."""
    cells = data.cells.dropna(subset=["mean", "published_mean"], how="all")
    cells = cells.rename(columns={"mean": "obtained_mean", "std": "obtained_std"})
    columns = ["obtained_mean", "obtained_std", "published_mean", "published_std", "n"]
    text = "The numbers of the table; error bars are their ±."
    section = Section(text, data=cells[[*data.axes(cells), *columns]], name="values")
    return _chart(data, section, lambda axes, series, style, _: _draw_means(axes, series, style))


def draw_boxes(data: TableData) -> Section:
    """Draw the spread of each cell's runs as box plots, with their means. CSV: a line per run."""
    if data.table.quantities:
        return MIXED_QUANTITIES
    if data.quantity and data.quantity.relative:
        return Section("Its numbers are shares of other rows; a run by itself has none.")
    values, metric = data.results.frame.values, data.quantity.key if data.quantity else data.table.metric
    runs = data.place(values[values["metric"] == metric], single=True).rename(columns={"mean": "accuracy"})
    axes = data.axes(runs)
    runs = runs.merge(data.cells.dropna(subset="mean")[axes])  # not if a run never reached the accuracy
    if runs.empty:
        return _NO_VALUES
    by_cell = runs.groupby(axes, observed=True)["accuracy"]
    accuracies = {key: values.to_numpy() for key, values in by_cell}

    def draw(panel: Axes, cells: pd.DataFrame, style: Style, slot: float) -> None:
        for x, *key in cells[["x", *axes]].itertuples(index=False, name=None):
            values, line = accuracies.get(tuple(key), np.empty(0)), {"color": style["color"], "linewidth": 0.9}
            parts: Style = {f"{part}props": line for part in ("box", "whisker", "cap")}
            parts |= {"medianprops": {**line, "linewidth": 1.8}, "whis": (0, 100), "manage_ticks": False}
            if len(values) >= MIN_RUNS:
                panel.boxplot([values], positions=[x], widths=0.55 * slot, **parts)
            elif len(values):
                panel.plot([x] * len(values), values, ".", color=style["color"], markersize=3.0)
        _draw_means(panel, cells.assign(std=np.nan), {**style, "linewidth": 0.9})

    summary, text = by_cell.describe(), _BOXES
    printed = summary.drop(columns=["count", "std"]).map(f"{{:.{data.table.decimals}f}}".format).rename(columns=_NAMES)
    too_few = summary["count"] < MIN_RUNS
    printed.loc[too_few, list(_NAMES.values())[1:4]] = NO_VALUE
    printed.insert(0, "runs", summary["count"].astype(int))
    if too_few.any():
        text += f" Of a cell of fewer than {MIN_RUNS} runs, dots show them one by one."
    table = PlainTable.of(printed.reset_index(), axes)
    section = Section(text, table=table, data=runs[[*axes, "run", "accuracy"]], name="boxes")
    return _chart(data, section, draw, boxed=True)


def _draw_means(axes: Axes, cells: pd.DataFrame, style: Style, side: str = "") -> None:
    """Draw means with their deviations; a line, if the style has one, breaks where a mean is missing."""
    marks = {"linewidth": 1.3, "elinewidth": 0.9, "capsize": 2.0, "markersize": 4.5, **style}
    axes.errorbar(cells["x"], cells[f"{side}mean"], yerr=cells[f"{side}std"], **marks)


def _chart(
    data: TableData, section: Section, draw: Callable[[Axes, pd.DataFrame, Style, float], None], boxed: bool = False
) -> Section:
    """Return a section with a chart of the table and sentences that explain it; only a sentence if nothing is obtained.
    `draw` draws the cells of a series at their positions ``x`` in a width; `boxed` series are always side by side."""
    axis, cells = _layout(data)
    if cells.empty:
        return _NO_VALUES
    labels = list(data.cells[axis].sort_values().unique()) if axis else [""]
    numeric, evenly_spaced, ticks = _are_numbers(labels), True, list(map(float, range(len(labels))))
    if numeric:
        labels.sort(key=float)
        numbers = list(map(float, labels))
        if min(np.diff(numbers)) >= (0.1 - 1e-9) * (numbers[-1] - numbers[0]):  # if labels would not overlap
            ticks = numbers
        evenly_spaced = ticks != numbers
    positions = dict(zip(labels, ticks, strict=True))
    present = [str(name) for name in cells["series"].cat.categories if (cells["series"] == name).any()]
    slot = 0.8 * min(np.diff(ticks), default=1.0) / len(present) if boxed or not numeric else 0.0
    offset = 0.4 * slot if slot else 0.02 * (ticks[-1] - ticks[0])
    cells = cells.assign(x=cells[axis].map(positions).astype(float) if axis else 0.0).sort_values("x", kind="stable")

    def draw_series(axes: Axes, series: pd.DataFrame, style: Style) -> None:
        style = style if numeric else {**style, "linestyle": "none"}
        index = present.index(str(series["series"].iloc[0]))
        series = series.assign(x=series["x"] + slot * (index - (len(present) - 1) / 2))
        draw(axes, series, style, slot)
        published = series.dropna(subset="published_mean")
        if len(published):
            _draw_means(axes, published.assign(x=published["x"] + offset), {**style, **_HOLLOW}, "published_")

    published = bool(cells["published_mean"].notna().any())
    entries: list[tuple[str, Style]] = [("published", {"color": "#666666", "marker": "o", **_HOLLOW})]
    legend, xlabel = ({}, axis_title(axis)) if numeric else ({"linestyle": "none"}, "")
    figure = draw_panels(cells, xlabel, data.measure, draw_series, legend, entries if published else ())
    _set_ticks(figure, ticks, [label if numeric else full_label(axis, label) for label in labels], len(present), slot)
    panels, means = cells["panel"].nunique(), cells["mean"]
    text = f"{section.text} The axis upwards does not begin at 0: compare where marks lie."
    if panels > 1:
        text += " Each panel has a scale of its own."
    if numeric:
        text += " A line breaks where a number is missing."
    if numeric and evenly_spaced:
        text += " To the right labels are evenly spaced."
    if published:
        text += " Hollow, beside it: the published value."
    is_quantity = bool(data.quantity and data.quantity.definition)
    alt = f"{data.measure[:1].upper()}{data.measure[1:]}" if is_quantity else f"Test {data.measure}"
    alt += f" over {axis_title(axis)}" if axis else ""
    alt += f", {len(present)} series in {pluralize(min(MAX_PANELS, panels), 'panel')}: "
    picture = Picture(figure, f"{alt}from {means.min():.2f} to {means.max():.2f}.")
    return replace(section, text=text + left_out(cells, section.name), picture=picture)


def _layout(data: TableData) -> tuple[str, pd.DataFrame]:
    """Return the horizontal axis, and the cells with series and panels, without empty ones. The axis is the innermost
    column axis of numbers, else the innermost such row axis, else the innermost axis with several labels. The other row
    axes form series, the other column axes panels; if there is one series, the innermost of several axes of panels
    forms series as well."""
    cells, inward = data.cells, [*reversed(data.columns), *reversed(data.rows)]
    varying = [axis for axis in inward if cells[axis].nunique() > 1]
    axis = [*(axis for axis in varying if _are_numbers(list(cells[axis].unique()))), *varying, *inward, ""][0]
    rows, columns = ([name for name in axes if name != axis] for axes in (data.rows, data.columns))
    if len(columns) > 1 and (not rows or len(cells[rows].drop_duplicates()) < 2):
        rows.append(columns.pop())
    cells = cells.assign(series=joined_labels(cells, rows), panel=joined_labels(cells, columns))
    cells = cells[cells["panel"].isin(cells.dropna(subset="mean")["panel"])]
    return axis, cells[cells["series"].isin(cells.dropna(subset=["mean", "published_mean"], how="all")["series"])]


def _are_numbers(labels: Sequence[str]) -> bool:
    """Return whether labels are two or more different numbers."""
    numbers = pd.to_numeric(pd.Series(labels, dtype=object), errors="coerce")
    return len(labels) > 1 and bool(np.isfinite(numbers).all()) and numbers.is_unique


def _set_ticks(figure: Figure, ticks: list[float], labels: list[str], series: int, slot: float) -> None:
    """Set ticks with labels, slanted if they are long; with a `slot`, series are side by side in wider panels."""
    across, down = grid_shape(len(figure.axes))
    if slot:
        figure.set_figwidth(max(figure.get_figwidth(), min(_WIDEST, _MARK * series * len(ticks)) * across))
    longest = _LETTER * max(map(len, labels))
    slant = _SLANT if longest > 0.8 * figure.get_figwidth() / across / len(ticks) else 0.0
    figure.set_figheight(figure.get_figheight() + longest * math.sin(math.radians(slant)) * down)
    edge = min(np.diff(ticks), default=1.0) / 2 if slot else 0.05 * (ticks[-1] - ticks[0])
    style: Style = {"rotation": slant, "ha": "right", "rotation_mode": "anchor"} if slant else {}
    for axes in figure.axes:
        axes.margins(y=0.1)
        axes.set_xlim(ticks[0] - edge, ticks[-1] + edge)
        if slot and series > 1:  # lines between ticks show which marks belong together
            axes.grid(visible=False, axis="x")
            for left, right in itertools.pairwise(ticks):
                axes.axvline((left + right) / 2, color="#dddddd", linewidth=0.6)
        axes.set_xticks(ticks, labels, parse_math=False, **style)


def draw_curves(data: TableData, work: bool = False) -> Section:
    """Draw a curve per cell over the rounds that all of its runs measured. CSV: a column per cell. With `work` curves
    are over visits of a training sample (:func:`_visits`, summed over rounds); there is then no picture if all curves
    in a panel have equal visits per round, or if these are unknown or differ within a cell."""
    if data.table.quantities:
        return MIXED_QUANTITIES
    if data.results.frame.rounds.empty:
        return _NO_VALUES
    frame = data.rounds
    axes = data.axes(frame)
    keys = list(dict.fromkeys([*axes, "series", "panel", "finished", "round"]))
    by_round = frame.groupby(keys, observed=True)["accuracy"].agg(["mean", "size"]).reset_index()
    curves = by_round[by_round["size"] == by_round["finished"]].rename(columns={"mean": "accuracy"})
    if curves.empty:
        return _NO_VALUES
    if work:
        by_cell = frame.assign(visits=frame["run"].map(_visits(data))).groupby(axes, observed=True)["visits"]
        visits = by_cell.first().where(by_cell.nunique() == 1)
        curves = curves.join(visits, on=axes)
        by_panel = curves.groupby("panel", observed=True)["visits"]
        if curves["visits"].isna().any() or (by_panel.max() < 1.05 * by_panel.min()).all():
            return Section("Rounds visit a sample equally often, or it is not known before how often.")
        curves["round"] *= curves["visits"]
    measure = PRECISION if data.measure == PRECISION else ACCURACY  # even if the table has another metric
    name, unit, over = "curves", "round", "communication rounds"
    if work:
        name, unit, over = "curves_by_work", "visits", "visits of a training sample"
    figure = draw_panels(curves, over if work else unit, measure, _draw_curve, lines=True)
    last = curves.groupby(["series", "panel"], observed=True).tail(1)
    close = measure == ACCURACY and float(last["accuracy"].median()) >= _CLOSE
    for panel in figure.axes:
        panel.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=(1, 2, 5, 10)))
        _choose_scales(panel, close)
    name_lines(figure)
    best = last.nlargest(1, "accuracy").iloc[0]
    cell = " · ".join(filter(None, (best["series"], best["panel"])))
    end = f"{best['accuracy']:.2f} ({cell})" if cell else f"{best['accuracy']:.2f}"
    alt = f"Test {measure} over {over}, {pluralize(len(last), 'curve')}; the highest ends at {end}."
    metric = "Pooled test accuracy" if measure == ACCURACY else "Mean average precision, the mean over clients,"
    text = f"{metric} over {over}{'; in cells of one client, its own' if data.table.clients else ''}."
    if data.quantity and data.quantity.view != USUAL:
        text += _USUAL
    if work:
        text += _VISITS
    if close:
        text += " The axis of accuracies is logarithmic in the error; curves leave it below."
    names = [" / ".join(key) for key in curves[axes].itertuples(index=False, name=None)]
    wide = curves.assign(name=names).pivot(index="round", columns="name", values="accuracy")
    wide = wide[list(dict.fromkeys(names))].rename_axis(index=unit).reset_index()
    return Section(text + left_out(curves, name), Picture(figure, alt), data=wide)


def _visits(data: TableData) -> dict[str, float]:
    """Return by run how often a round uses a training sample, the mean over all samples; nan if steps are counted, or
    if sampled clients may be absent or do fewer steps."""
    visits = {}
    for id_, result in data.results.runs.items():
        run = result.resolved.with_chosen(result.facts.get("chosen") or {})
        if run.training.local_steps or run.condition == "availability":
            visits[id_] = math.nan
        else:
            visits[id_] = run.cohort / run.clients * run.training.local_epochs
    return visits


def _draw_curve(axes: Axes, curve: pd.DataFrame, style: Style) -> None:
    # Markers of different curves start at different points, so that they do not hide each other.
    every = max(1, len(curve) // 6)
    marks = {"markevery": (len(axes.lines) % every, every), "linewidth": 1.3, "markersize": 3.5}
    axes.plot(curve["round"], curve["accuracy"], **{**marks, **style})


def _choose_scales(panel: Axes, close: bool) -> None:
    rounds, values = zip(*(np.asarray(line.get_data(), float) for line in panel.lines), strict=True)
    last = [curve[-1] for curve in rounds]
    if max(last) >= _UNEQUAL * min(last) and min(curve[0] for curve in rounds) > 0:
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(ScalarFormatter())
    if close:
        low, high = min(np.median(curve) for curve in values), max(curve.max() for curve in values)
        bottom, top = max(tick for tick in _TICKS if tick <= low), min(tick for tick in _TICKS if tick >= high)
        if bottom == top == 0:  # all curves are on one tick
            top = _TICKS[1]
        elif bottom == top:
            bottom = _TICKS[_TICKS.index(top) - 1]
        panel.set_yscale("function", functions=(_log_error, _accuracy_at))
        panel.set_ylim(bottom, top)
        panel.set_yticks([tick for tick in _TICKS if bottom <= tick <= top])


def _log_error(accuracy: ArrayLike) -> NDArray[np.float64]:
    """Return the positions of accuracies on an axis that is logarithmic in the error."""
    return -np.log10(np.maximum(_FULL - np.asarray(accuracy), 1e-3))


def _accuracy_at(position: ArrayLike) -> NDArray[np.float64]:
    """Return the accuracies at positions, the inverse of :func:`_log_error`."""
    return _FULL - 10.0 ** -np.asarray(position)


def draw_adaptation(data: TableData) -> Section:
    """Draw a curve per method and tuned part over epochs, pooled over clients, the mean over runs. Items are
    ``<part>.correct`` and ``<part>.total``. CSV: tuned, epoch, accuracy."""
    findings = data.findings("adaptation").rename(columns={"index": "epoch"})
    axes, names = data.axes(findings), findings["item"].str.rpartition(".")
    findings = findings.assign(tuned=pd.Categorical(names[0], names[0].unique(), ordered=True), count=names[2])
    keys = [*axes, "panel", "tuned", "epoch"]
    counts = findings.pivot_table("value", [*keys, "run"], "count", aggfunc="sum", observed=True)
    accuracy = 100.0 * counts["correct"] / counts["total"]
    curves = accuracy.groupby(keys, observed=True).mean().rename("accuracy").reset_index()
    curves["series"] = joined_labels(curves, [*(axis for axis in data.rows if axis in axes), "tuned"])
    by_curve = curves.groupby([*axes, "tuned"], observed=True)
    summary = by_curve.agg(epochs=("epoch", "last"), before=("accuracy", "first"), after=("accuracy", "last"))
    ends = summary[["before", "after"]].map(f"{{:.{data.table.decimals}f}}".format)
    measure = "accuracy of novel clients (%)"
    figure = draw_panels(curves.assign(round=curves["epoch"]), "epoch", measure, _draw_curve, lines=True)
    for panel in figure.axes:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_lines(figure)
    alt = f"Accuracy of novel clients over epochs of tuning, {pluralize(len(summary), 'curve')}"
    picture = Picture(figure, f"{alt}, to {summary['after'].max():.2f} percent.")
    table = PlainTable.of(summary.assign(**ends).reset_index(), axes, "tuned")
    lines = curves[[*axes, "tuned", "epoch", "accuracy"]]
    return Section(_ADAPTATION + left_out(curves, "adaptation"), picture, table, lines)
