"""How a hypernetwork's embeddings of the clients lie to one another, coloured by what the clients hold (FedTP)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.report.drawing.panels import MAX_PANELS, add_legend, mark_series, panel_grid, styles_of
from pipeline.report.drawing.sections import NO_VALUE, Picture, PlainTable, Section, counted
from pipeline.report.figures._data import TableData

_MAX_NAMED = 40  # groups that a legend is made for
_TEXT = (
    "What the server has learned about each client, in two dimensions (t-SNE): a point is a client, its colour and "
    "marker the class, or coarse class, that most of its training samples are of. Only who is near whom means "
    "anything. Same group: the share of clients whose nearest neighbour in the picture has the same; by chance: what "
    "that would be if positions were dealt out at random. Of several runs of a cell the first is shown."
)


def draw(data: TableData) -> Section:
    """Draw a map per cell. CSV: client, x, y (of no unit), group (whole number)."""
    found = data.findings("embeddings")
    axes = data.axes(found)
    first = found[found["run"] == found.groupby(axes, observed=True)["run"].transform("first")]
    place = list(dict.fromkeys([*axes, "series", "panel", "client"]))
    points = first.pivot(index=place, columns="item", values="value").reset_index()
    points = points.sort_values([*axes, "client"]).astype({"group": int})
    cells = points.groupby(axes, observed=True)
    table = cells[["x", "y", "group"]].apply(_neighbours).reset_index()
    maps = [own for _, own in cells][:MAX_PANELS]
    titles = [" · ".join(filter(None, own.iloc[0][["series", "panel"]])) for own in maps]
    figure, panels = panel_grid(titles, "", "", height=3.0)
    groups = sorted(points["group"].unique())
    styles = {group: {**style, "linestyle": "none"} for group, style in styles_of(groups).items()}
    for panel, own in zip(panels, maps, strict=True):
        for group, clients in own.groupby("group"):
            with mark_series(panel, f"group {group}"):
                panel.plot(clients["x"], clients["y"], markersize=4.5, **styles[group])
        panel.set(xticks=[], yticks=[])
        panel.set_aspect("equal", adjustable="datalim")
        panel.spines[:].set(visible=True, color="#bbbbbb")
    if len(groups) <= _MAX_NAMED:
        add_legend(figure, [(str(group), styles[group]) for group in groups], "group")
    more = len(table) - MAX_PANELS
    text = _TEXT + (f" Cells without a panel: {more}; see embeddings.csv." if more > 0 else "")
    alt = f"Embeddings of {counted(len(maps[0]), 'client')} in the plane, for {counted(len(table), 'cell')}."
    return Section(text, Picture(figure, alt), PlainTable.of(table, axes), points[[*axes, "client", "x", "y", "group"]])


def _neighbours(points: pd.DataFrame) -> pd.Series[str]:
    """Return how many clients and groups there are, the share of clients in percent whose nearest neighbour is of their
    group, and what that is on average when positions are permuted."""
    at, group, count = points[["x", "y"]].to_numpy(), points["group"].to_numpy(), len(points)
    same = chance = NO_VALUE
    if count > 1:
        distance = np.square(at[:, None] - at[None]).sum(-1)
        np.fill_diagonal(distance, np.inf)
        sizes = np.unique(group, return_counts=True)[1]
        same = f"{100.0 * (group[distance.argmin(1)] == group).mean():.1f}"
        chance = f"{100.0 * (sizes * (sizes - 1)).sum() / (count * (count - 1)):.1f}"
    numbers = {"clients": f"{count:,}", "groups": f"{len(set(group)):,}"}
    return pd.Series({**numbers, "same group (%)": same, "by chance (%)": chance})
