"""How a hypernetwork's embeddings of the clients lie to one another, coloured by what the clients hold (FedTP)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.drawing.panels import MAX_PANELS, add_legend, panel_grid, styles_of
from pipeline.report.drawing.sections import NO_VALUE, OfCell, Section, all_points, counted, draw_picture, line_per_cell
from pipeline.report.table.layout import Layout
from pipeline.report.table.results import Findings, Results

_MAX_NAMED = 40  # groups that a legend is made for
_TEXT = (
    "What the server has learned about each client, in two dimensions (t-SNE): a point is a client, its colour and "
    "marker the class, or coarse class, that most of its training samples are of. Only who is near whom means "
    "anything. Same group: the share of clients whose nearest neighbour in the picture has the same; by chance: what "
    "that would be if positions were dealt out at random. Of several runs of a cell the first is shown."
)


class Map(OfCell):
    """The clients of one run in the plane: client, x, y (of no unit) and group (whole number)."""

    @property
    def same(self) -> float | None:
        """The share of clients, in percent, whose nearest neighbour is of their group; None for a single client."""
        at, group = self.points[["x", "y"]].to_numpy(), self.points["group"].to_numpy()
        if len(at) < 2:
            return None
        distance = np.square(at[:, None] - at[None]).sum(-1)
        np.fill_diagonal(distance, np.inf)
        return 100.0 * float((group[distance.argmin(1)] == group).mean())

    @property
    def chance(self) -> float | None:
        """What :attr:`same` is on average when positions are permuted."""
        sizes, clients = self.points["group"].value_counts().to_numpy(), len(self.points)
        return None if clients < 2 else 100.0 * float((sizes * (sizes - 1)).sum() / (clients * (clients - 1)))


def draw(results: Results) -> Section:
    """The section.

    Raises:
        UserError: A client has no position or no group.
    """
    layout = results.of_runs.layout
    maps = [Map(row, column, _points(first)) for row, column, (first, *_) in results.of_runs.found("embeddings")]
    table = line_per_cell(layout, maps, ("clients", "groups", "same group (%)", "by chance (%)"), _numbers)
    left_out = len(maps) - MAX_PANELS
    text = _TEXT + (f" Cells without a panel: {left_out}; see embeddings.csv." if left_out > 0 else "")
    picture = draw_picture(lambda: _draw(layout, maps[:MAX_PANELS]), _alt(maps), {"axes.grid": False})
    return Section(text, picture, table, all_points(layout, maps))


def _points(findings: Findings) -> pd.DataFrame:
    points = pd.DataFrame({name: findings.values(name) for name in ("x", "y", "group")})
    if not np.isfinite(points.to_numpy()).all():
        client = points.index[~np.isfinite(points.to_numpy()).all(1)][0]
        raise findings.damaged(f"client {client} lacks a position or a group")
    return points.astype({"group": int}).rename_axis("client").reset_index()


def _numbers(one: Map) -> tuple[str, ...]:
    clients, groups = len(one.points), one.points["group"].nunique()
    return f"{clients:,}", f"{groups:,}", _percent(one.same), _percent(one.chance)


def _draw(layout: Layout, maps: Sequence[Map]) -> Figure:
    columns = [layout.column_title(m.column) if len(layout.columns) > 1 else "" for m in maps]
    titles = [" · ".join(filter(None, (*m.row, column))) for m, column in zip(maps, columns, strict=True)]
    figure, panels = panel_grid(titles, "", "", height=3.0)
    groups = sorted({int(group) for m in maps for group in m.points["group"]})
    styles = {group: {**style, "linestyle": "none"} for group, style in styles_of(groups).items()}
    for panel, m in zip(panels, maps, strict=True):
        for group, points in m.points.groupby("group"):
            panel.plot(points["x"].to_numpy(), points["y"].to_numpy(), markersize=4.5, **styles[int(str(group))])
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_aspect("equal", adjustable="datalim")
        panel.spines[:].set(visible=True, color="#bbbbbb")
    if len(groups) <= _MAX_NAMED:
        add_legend(figure, [(str(group), styles[group]) for group in groups], "group")
    return figure


def _percent(share: float | None) -> str:
    return NO_VALUE if share is None else f"{share:.1f}"


def _alt(maps: Sequence[Map]) -> str:
    one = maps[0]
    return (
        f"Embeddings of {counted(len(one.points), 'client')} in the plane, in "
        f"{counted(one.points['group'].nunique(), 'group')}"
        + (f", for {counted(len(maps), 'cell')} of the table." if len(maps) > 1 else ".")
    )
