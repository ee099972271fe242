"""How clients that took no part in training fare when only one part of the model is tuned for them (FedTP)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pipeline.report.drawing.panels import Placed, Style, columns_of, draw_columns, with_room
from pipeline.report.drawing.sections import PlainTable, Section, counted, draw_picture, labelled
from pipeline.report.table.cells import Key
from pipeline.report.table.layout import Layout
from pipeline.report.table.results import Findings, Results

_TEXT = (
    "The share of the novel clients' test samples that are classified correctly while one part of the model is tuned "
    "on their training samples and the rest stays as it was trained; epoch 0 is before. Of several runs the "
    "mean is shown."
)


@dataclass(frozen=True)
class Adaptation(Placed):
    """One cell, one tuned part.

    Attributes:
        points: Accuracy in percent by epoch, ascending.
    """

    part: str
    points: pd.Series[float]

    @property
    def name(self) -> Key:
        return *self.row, self.part


def draw(results: Results) -> Section:
    """The section: a curve per method and part, a panel per column.

    Items are called ``<part>.correct`` and ``<part>.total``, and their index is the epoch.

    Raises:
        UserError: An item is called otherwise, or a part has no counts of one kind.
    """
    layout, decimals = results.of_runs.layout, results.table.decimals
    curves = [
        Adaptation(row, column, part, points)
        for row, column, of_cell in results.of_runs.found("adaptation")
        for part, points in _curves(of_cell).items()
    ]
    header = (*layout.place_header, "tuned")
    table = PlainTable(
        header=(*header, "epochs", "before", "after"),
        rows=[
            (
                *layout.place(c.row, c.column),
                c.part,
                f"{c.points.index[-1]}",
                *(f"{accuracy:.{decimals}f}" for accuracy in (c.points.iloc[0], c.points.iloc[-1])),
            )
            for c in curves
        ],
        labels=len(header),
    )
    columns, left_out = with_room(columns_of(layout, curves), "adaptation")
    names = dict.fromkeys(c.name for c in curves if c.column in columns)
    labels = "epoch", "accuracy of novel clients (%)"
    picture = draw_picture(lambda: draw_columns(layout, curves, names, columns, labels, _panel), _alt(curves))
    data = pd.concat([_data(layout, c) for c in curves], ignore_index=True)
    return Section(_TEXT + left_out, picture, table, data)


def _curves(of_cell: list[Findings]) -> dict[str, pd.Series[float]]:
    """The curve of each part: per run pooled over clients, then the mean over the runs that tuned it."""
    by_part: dict[str, list[pd.Series[float]]] = {}
    for findings in of_cell:
        names = [str(item).rpartition(".") for item in dict.fromkeys(findings.rows["item"])]
        odd = [f"{part}{dot}{count}" for part, dot, count in names if not part or count not in ("correct", "total")]
        if odd:
            raise findings.damaged(f"adaptation: the item {odd[0]!r} is not <part>.correct or <part>.total")
        sums = findings.rows.groupby(["item", "index"], sort=False)["value"].sum()
        for part in dict.fromkeys(part for part, _, _ in names):
            try:
                accuracy = 100.0 * sums[f"{part}.correct"] / sums[f"{part}.total"]
            except KeyError:
                raise findings.damaged(f"adaptation: {part} has no .correct or no .total") from None
            by_part.setdefault(part, []).append(accuracy.sort_index())
    return {part: pd.concat(series, axis=1, join="inner").mean(axis=1) for part, series in by_part.items()}


def _panel(panel: Axes, curves: list[Adaptation], styles: dict[Key, Style]) -> None:
    for c in curves:
        style = {"linewidth": 1.3, "markersize": 3.5, **styles[c.name]}
        panel.plot(np.asarray(c.points.index), c.points.to_numpy(), **style)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def _data(layout: Layout, curve: Adaptation) -> pd.DataFrame:
    accuracy = curve.points.rename("accuracy").rename_axis("epoch").reset_index()
    accuracy.insert(0, "tuned", curve.part)
    return labelled(layout, curve.row, curve.column, accuracy)


def _alt(curves: list[Adaptation]) -> str:
    best = max(curves, key=lambda c: float(c.points.iloc[-1]))
    return (
        f"Accuracy of novel clients over epochs of tuning, {counted(len(curves), 'curve')}; the highest ends at "
        f"{best.points.iloc[-1]:.2f} percent ({' · '.join(best.name)})."
    )
