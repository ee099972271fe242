"""The figure ``loss``: train and test loss over the rounds that all runs of a cell measured."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pipeline.report.drawing.panels import Style, draw_panels, left_out
from pipeline.report.drawing.sections import Picture, Section, pluralize
from pipeline.report.figures._data import TableData
from pipeline.report.frame import ALL

TITLE = "Train and test loss"
_TEXT = (
    "Train loss, with marks: the mean over a client's local steps in a round, as its method defines the loss, then the "
    "mean over the clients that trained. Test loss, thin: the mean cross-entropy of the clients' personalised models "
    "on their test samples, after aggregation."
)
_UNKNOWN = " Runs without a train loss come from the ledger; they were kept before it was measured."


def draw(data: TableData) -> Section:
    """Draw both losses of each cell, the mean over its runs. CSV: round, train_loss, test_loss."""
    rounds = data.results.frame.rounds
    frame = data.place(rounds[rounds["client"] == ALL].rename(columns={"loss": "test_loss"}).drop(columns="client"))
    axes = data.axes(frame)
    keys = list(dict.fromkeys([*axes, "series", "panel", "finished", "round"]))
    by_round = frame.groupby(keys, observed=True)
    curves = by_round[["train_loss", "test_loss"]].mean().assign(size=by_round.size()).reset_index()
    curves = curves[curves["size"] == curves["finished"]]
    if curves.empty:
        return Section("No run has been measured yet.")
    figure = draw_panels(curves, "round", "loss", _lines)
    for panel in figure.axes:
        panel.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=(1, 2, 5, 10)))
    low, high = curves["train_loss"].min(), curves["train_loss"].max()
    losses = "" if pd.isna(low) else f", train losses from {low:.3g} to {high:.3g}"
    cells = pluralize(len(curves[axes].drop_duplicates()), "cell")
    picture = Picture(figure, f"Train and test loss over rounds of {cells}{losses}.")
    text = _TEXT + _UNKNOWN if curves["train_loss"].isna().any() else _TEXT
    return Section(text + left_out(curves, "loss"), picture, data=curves[[*axes, "round", "train_loss", "test_loss"]])


def _lines(axes: Axes, curve: pd.DataFrame, style: Style) -> None:
    axes.plot(curve["round"], curve["test_loss"], **{**style, "marker": ""}, linewidth=0.7, alpha=0.7)
    axes.plot(curve["round"], curve["train_loss"], markevery=max(1, len(curve) // 6), markersize=3.5, **style)
