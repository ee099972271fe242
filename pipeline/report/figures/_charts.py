"""Curves over rounds and epochs, and charts of a table's cells with published values beside them.

There are no bars: a bar has to begin at 0, where a point or two between methods cannot be seen.
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
from pipeline.report.drawing.sections import Picture, PlainTable, Section, counted
from pipeline.report.figures._data import OF_QUANTITIES, TableData, joined
from pipeline.report.printed import NO_VALUE, headed, short

_UNEQUAL = 5  # times as many rounds: on a linear axis the shorter curve could not be seen
_CLOSE = 95.0  # percent that most curves reach: on a linear axis their differences could not be seen
_FULL = 100.1  # percent; above 100, so that 100 has a place on an axis of errors
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
FEWEST_RUNS = 5  # of a box: with five runs its five numbers are those of the runs
_HOLLOW: Style = {"linestyle": "none", "markerfacecolor": "none", "alpha": 0.8}
_LETTER, _MARK, _WIDEST = 0.075, 0.2, 9.0  # inches: a letter of a label, a mark with its gap, the widest panel
_SLANT = 35.0  # degrees, of labels that are too long to be side by side
_NOTHING = Section("No number of this table has been obtained yet.")
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
    return _chart(data, section, lambda axes, own, style, _: _marks(axes, own, style))


def draw_boxes(data: TableData) -> Section:
    """Draw the spread of each cell's runs as box plots, with their means. CSV: a line per run."""
    if data.table.quantities:
        return OF_QUANTITIES
    if data.quantity and data.quantity.relative:
        return Section("Its numbers are shares of other rows; a run by itself has none.")
    values, metric = data.results.frame.values, data.quantity.key if data.quantity else data.table.metric
    runs = data.place(values[values["metric"] == metric], single=True).rename(columns={"mean": "accuracy"})
    axes, shown = data.axes(runs), data.cells.dropna(subset="mean")
    there = {*shown[axes].itertuples(index=False, name=None)}  # not those of which a run never reached an accuracy
    runs = runs[[key in there for key in runs[axes].itertuples(index=False, name=None)]]
    if runs.empty:
        return _NOTHING
    by_cell = runs.groupby(axes, observed=True)["accuracy"]
    spreads = {key: own.to_numpy() for key, own in by_cell}

    def draw(panel: Axes, cells: pd.DataFrame, style: Style, slot: float) -> None:
        for at, *key in cells[["at", *axes]].itertuples(index=False, name=None):
            numbers, line = spreads.get(tuple(key), np.empty(0)), {"color": style["color"], "linewidth": 0.9}
            parts: Style = {f"{part}props": line for part in ("box", "whisker", "cap")}
            parts |= {"medianprops": {**line, "linewidth": 1.8}, "whis": (0, 100), "manage_ticks": False}
            if len(numbers) >= FEWEST_RUNS:  # the published value is beside the box
                panel.boxplot([numbers], positions=[at], widths=0.55 * slot, **parts)
            elif len(numbers):
                panel.plot([at] * len(numbers), numbers, ".", color=style["color"], markersize=3.0)
        _marks(panel, cells.assign(std=np.nan), {**style, "linewidth": 0.9})

    five = by_cell.describe()
    few = five["count"] < FEWEST_RUNS
    printed = five.drop(columns=["count", "std"]).map(f"{{:.{data.table.decimals}f}}".format).rename(columns=_NAMES)
    printed.loc[few, list(_NAMES.values())[1:4]] = NO_VALUE
    printed.insert(0, "runs", five["count"].astype(int))
    text = _BOXES + f" Of a cell of fewer than {FEWEST_RUNS} runs, dots show them one by one." * any(few)
    table = PlainTable.of(printed.reset_index(), axes)
    section = Section(text, table=table, data=runs[[*axes, "run", "accuracy"]], name="boxes")
    return _chart(data, section, draw, boxed=True)


def _marks(axes: Axes, cells: pd.DataFrame, style: Style, side: str = "") -> None:
    """Draw means with their deviations; a line, if the style has one, breaks where a mean is missing."""
    marks = {"linewidth": 1.3, "elinewidth": 0.9, "capsize": 2.0, "markersize": 4.5, **style}
    axes.errorbar(cells["at"], cells[f"{side}mean"], yerr=cells[f"{side}std"], **marks)


def _chart(
    data: TableData, section: Section, draw: Callable[[Axes, pd.DataFrame, Style, float], None], boxed: bool = False
) -> Section:
    """Return a section with a chart of the table and sentences that explain it; only a sentence if nothing is obtained.
    `draw` draws the cells of a series at their positions (``at``), in the width of each. If `boxed`, series lie side by
    side, because boxes are wide."""
    axis, cells = _laid_out(data)
    if cells.empty:
        return _NOTHING
    labels = list(data.cells[axis].sort_values().unique()) if axis else [""]
    numeric, ticks = _are_numbers(labels), [float(at) for at in range(len(labels))]
    if numeric:
        labels.sort(key=float)
        numbers = list(map(float, labels))  # at true distances, if all can be read there
        ticks = numbers if min(np.diff(numbers)) >= (0.1 - 1e-9) * (numbers[-1] - numbers[0]) else ticks
    positions = dict(zip(labels, ticks, strict=True))
    present = [str(one) for one in cells["series"].cat.categories if (cells["series"] == one).any()]
    slot = 0.8 * min(np.diff(ticks), default=1.0) / len(present) if boxed or not numeric else 0.0
    beside = 0.4 * slot if slot else 0.02 * (ticks[-1] - ticks[0])
    cells = cells.assign(at=cells[axis].map(positions).astype(float) if axis else 0.0).sort_values("at", kind="stable")

    def series(axes: Axes, own: pd.DataFrame, style: Style) -> None:
        style = style if numeric else {**style, "linestyle": "none"}
        own = own.assign(at=own["at"] + slot * (present.index(str(own["series"].iloc[0])) - (len(present) - 1) / 2))
        draw(axes, own, style, slot)
        if len(there := own.dropna(subset="published_mean")):
            _marks(axes, there.assign(at=there["at"] + beside), {**style, **_HOLLOW}, "published_")

    published = bool(cells["published_mean"].notna().any())
    more = [("published", {"color": "#666666", "marker": "o", **_HOLLOW})] * published
    legend = {} if numeric else {"linestyle": "none"}
    figure = draw_panels(cells, short(axis) if numeric else "", data.measure, series, legend, more)
    _set_ticks(figure, ticks, [label if numeric else headed(axis, label) for label in labels], len(present), slot)
    panels, means = cells["panel"].nunique(), cells["mean"]
    words = " The axis upwards does not begin at 0: compare where marks lie."
    words += " Each panel has a scale of its own." * (panels > 1)
    words += " A line breaks where a number is missing." * numeric
    words += " To the right labels are evenly spaced." * (numeric and ticks != list(map(float, labels)))
    words += " Hollow, beside it: the published value." * published
    shown = f"{len(present)} series in {counted(min(MAX_PANELS, panels), 'panel')}"
    known = bool(data.quantity and data.quantity.definition)
    what = f"{data.measure[:1].upper()}{data.measure[1:]}" if known else f"Test {data.measure}"
    alt = f"{what}{f' over {short(axis)}' if axis else ''}, {shown}: "
    picture = Picture(figure, f"{alt}from {means.min():.2f} to {means.max():.2f}.")
    return replace(section, text=section.text + words + left_out(cells, section.name), picture=picture)


def _laid_out(data: TableData) -> tuple[str, pd.DataFrame]:
    """Return the horizontal axis, and the cells with series and panels, without empty ones.

    The axis is the innermost column axis of numbers, else the innermost such row axis, else the innermost axis with
    several labels. The other row axes form series, the other column axes panels. If this gives one series and panels
    over several axes, the innermost of these forms series as well.
    """
    cells, inward = data.cells, [*reversed(data.columns), *reversed(data.rows)]
    several = [axis for axis in inward if cells[axis].nunique() > 1]
    axis = [*(axis for axis in several if _are_numbers(list(cells[axis].unique()))), *several, *inward, ""][0]
    rows, columns = ([name for name in axes if name != axis] for axes in (data.rows, data.columns))
    if len(columns) > 1 and (not rows or len(cells[rows].drop_duplicates()) < 2):
        rows.append(columns.pop())
    cells = cells.assign(series=joined(cells, rows), panel=joined(cells, columns))
    cells = cells[cells["panel"].isin(cells.dropna(subset="mean")["panel"])]
    return axis, cells[cells["series"].isin(cells.dropna(subset=["mean", "published_mean"], how="all")["series"])]


def _are_numbers(labels: Sequence[str]) -> bool:
    """Return whether labels are two or more different numbers."""
    numbers = pd.to_numeric(pd.Series(labels, dtype=object), errors="coerce")
    return len(labels) > 1 and bool(np.isfinite(numbers).all()) and numbers.is_unique


def _set_ticks(figure: Figure, ticks: list[float], labels: list[str], series: int, slot: float) -> None:
    """Set ticks with labels, slanted if they are long; with a `slot`, series lie side by side in wider panels."""
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
            for one, other in itertools.pairwise(ticks):
                axes.axvline((one + other) / 2, color="#dddddd", linewidth=0.6)
        axes.set_xticks(ticks, labels, parse_math=False, **style)


def draw_curves(data: TableData, work: bool = False) -> Section:
    """Draw a curve per cell over the rounds that all of its runs measured. CSV: a column per cell.

    With `work` curves are over visits of a training sample (:func:`_visits`, summed over rounds). There is then no
    picture if all rounds in a panel have as many, or if they are unknown or differ between the runs of a cell.
    """
    if data.table.quantities:
        return OF_QUANTITIES
    if data.results.frame.rounds.empty:
        return _NOTHING
    frame = data.rounds
    axes = data.axes(frame)
    place = list(dict.fromkeys([*axes, "series", "panel", "made", "round"]))
    by_round = frame.groupby(place, observed=True)["accuracy"].agg(["mean", "size"]).reset_index()
    curves = by_round[by_round["size"] == by_round["made"]].rename(columns={"mean": "accuracy"})
    if curves.empty:
        return _NOTHING
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
    figure = draw_panels(curves, over if work else unit, measure, _line, lines=True)
    last = curves.groupby(["series", "panel"], observed=True).tail(1)
    close = measure == ACCURACY and float(last["accuracy"].median()) >= _CLOSE
    for panel in figure.axes:
        panel.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=(1, 2, 5, 10)))
        _choose_scales(panel, close)
    name_lines(figure)
    best = last.nlargest(1, "accuracy").iloc[0]
    where = " · ".join(filter(None, (best["series"], best["panel"])))
    ends = f"{best['accuracy']:.2f}{f' ({where})' if where else ''}"
    alt = f"Test {measure} over {over}, {counted(len(last), 'curve')}; the highest ends at {ends}."
    what = "Pooled test accuracy" if measure == ACCURACY else "Mean average precision, the mean over clients,"
    text = f"{what} over {over}{'; in cells of one client, its own' if data.table.clients else ''}."
    text += _USUAL * bool(data.quantity and data.quantity.view != USUAL)
    text += _VISITS * work
    if close:
        text += " The axis of accuracies is logarithmic in the error; curves leave it below."
    names = [" / ".join(key) for key in curves[axes].itertuples(index=False, name=None)]
    wide = curves.assign(name=names).pivot(index="round", columns="name", values="accuracy")
    wide = wide[list(dict.fromkeys(names))].rename_axis(index=unit).reset_index()
    return Section(text + left_out(curves, name), Picture(figure, alt), data=wide)


def _visits(data: TableData) -> dict[str, float]:
    """Return by run how often a round uses a training sample, the mean over all samples; nan if steps are counted, or
    if sampled clients are absent or do fewer steps."""
    visits = {}
    for name, planned in data.results.runs.items():
        run = planned.resolved.with_chosen(planned.facts.get("chosen") or {})
        used = run.cohort / run.clients * run.training.local_epochs
        visits[name] = math.nan if run.training.local_steps or run.condition == "availability" else used
    return visits


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
        if bottom == top == 0:  # all curves lie on one tick
            top = _TICKS[1]
        elif bottom == top:
            bottom = _TICKS[_TICKS.index(top) - 1]
        panel.set_yscale("function", functions=(_log_error, _accuracy_at))
        panel.set_ylim(bottom, top)
        panel.set_yticks([tick for tick in _TICKS if bottom <= tick <= top])


def _log_error(accuracy: ArrayLike) -> NDArray[np.float64]:
    """Return the positions of accuracies on an axis that is logarithmic in the error."""
    return -np.log10(np.maximum(_FULL - np.asarray(accuracy), 1e-3))


def _accuracy_at(place: ArrayLike) -> NDArray[np.float64]:
    """Return the accuracies at positions, the inverse of :func:`_log_error`."""
    return _FULL - 10.0 ** -np.asarray(place)


def draw_adaptation(data: TableData) -> Section:
    """Draw a curve per method and tuned part over epochs, pooled over clients, the mean over runs. Items are
    ``<part>.correct`` and ``<part>.total``. CSV: tuned, epoch, accuracy."""
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
    measure = "accuracy of novel clients (%)"
    figure = draw_panels(curves.assign(round=curves["epoch"]), "epoch", measure, _line, lines=True)
    for panel in figure.axes:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_lines(figure)
    what = f"Accuracy of novel clients over epochs of tuning, {counted(len(summary), 'curve')}"
    picture = Picture(figure, f"{what}, to {summary['after'].max():.2f} percent.")
    table = PlainTable.of(summary.assign(**ends).reset_index(), axes, "tuned")
    lines = curves[[*axes, "tuned", "epoch", "accuracy"]]
    return Section(_ADAPTATION + left_out(curves, "adaptation"), picture, table, lines)
