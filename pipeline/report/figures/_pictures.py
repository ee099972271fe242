"""Figures of analyses: maps of embeddings, weights of attention, test images with attention or detections."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from pipeline.report.drawing.panels import COLOURS, MAX_PANELS, add_legend, mark_series, panel_grid, styles_of
from pipeline.report.drawing.sections import Picture, PlainTable, Section, pluralize
from pipeline.report.figures._data import TableData
from pipeline.report.printed import NO_VALUE

_MAX_NAMED = 40  # groups with a legend
_LUMA = np.array([0.299, 0.587, 0.114])  # weights of red, green and blue in the lightness of a pixel (ITU-R BT.601)
_EMBEDDINGS = (
    "What the server has learned about each client, in two dimensions (t-SNE): a point is a client, its colour and "
    "marker the class that most of its training samples are of. Only who is near whom means anything. Same group: the "
    "share of clients whose nearest neighbour has the same; by chance: what that would be if positions were dealt out "
    "at random. Of several runs of a cell the first is shown."
)
_MIXING = (
    "The weights that clients give to the kinds of attention at each position in the network; those of a position sum "
    "to one. Mean and population standard deviation over the clients of all runs of a cell."
)
_ROLLOUT = (
    "Test images of some clients, and over them in grey what the class token of the client's own model attends to "
    "(attention rollout, relative to its strongest patch): dark is nothing, light is most."
)
_DETECTIONS = (
    "Test images of some clients: above with the objects that are there, below with what a client's own model finds, "
    "if its score reaches the analysis's `least`. A colour is a class; difficult objects are dashed."
)
Kinds = dict[str, NDArray[np.float64]]
"""The data of an image (pixels, attention or boxes), by kind."""
Show = Callable[[Axes, Kinds, bool], None]


def draw_embeddings(data: TableData) -> Section:
    """Draw a map of the clients per cell. CSV: client, x, y (without unit), group (whole number)."""
    findings = data.findings("embeddings")
    axes = data.axes(findings)
    first_runs = findings[findings["run"] == findings.groupby(axes, observed=True)["run"].transform("first")]
    keys = list(dict.fromkeys([*axes, "series", "panel", "client"]))
    points = first_runs.pivot(index=keys, columns="item", values="value").reset_index()
    points = points.sort_values([*axes, "client"]).astype({"group": int})
    cells = points.groupby(axes, observed=True)
    table = cells[["x", "y", "group"]].apply(_neighbours).reset_index()
    maps = [cell for _, cell in cells][:MAX_PANELS]
    titles = [" · ".join(filter(None, cell.iloc[0][["series", "panel"]])) for cell in maps]
    figure, panels = panel_grid(titles, "", "", height=3.0)
    groups = sorted(points["group"].unique())
    styles = {group: {**style, "linestyle": "none"} for group, style in styles_of(groups).items()}
    for panel, cell in zip(panels, maps, strict=True):
        for group, clients in cell.groupby("group"):
            with mark_series(panel, f"group {group}"):
                panel.plot(clients["x"], clients["y"], markersize=4.5, **styles[group])
        panel.set(xticks=[], yticks=[])
        panel.set_aspect("equal", adjustable="datalim")
        panel.spines[:].set(visible=True, color="#bbbbbb")
    if len(groups) <= _MAX_NAMED:
        add_legend(figure, [(str(group), styles[group]) for group in groups], "group")
    excess = len(table) - MAX_PANELS
    text = _EMBEDDINGS + (f" Cells without a panel: {excess}; see embeddings.csv." if excess > 0 else "")
    alt = f"Embeddings of {pluralize(len(maps[0]), 'client')} in the plane, for {pluralize(len(table), 'cell')}."
    return Section(text, Picture(figure, alt), PlainTable.of(table, axes), points[[*axes, "client", "x", "y", "group"]])


def _neighbours(points: pd.DataFrame) -> pd.Series[str]:
    """Return the numbers of clients and groups, the percentage of clients whose nearest neighbour is in the same group,
    and its mean over all permutations of positions."""
    positions, group, count = points[["x", "y"]].to_numpy(), points["group"].to_numpy(), len(points)
    sizes, share, chance = np.unique(group, return_counts=True)[1], NO_VALUE, NO_VALUE
    if count > 1:
        nearest = (cdist(positions, positions) + np.diag([np.inf] * count)).argmin(1)
        share = f"{100.0 * (group[nearest] == group).mean():.1f}"
        chance = f"{100.0 * (sizes * (sizes - 1)).sum() / (count * (count - 1)):.1f}"
    numbers = {"clients": f"{count:,}", "groups": f"{len(sizes):,}"}
    return pd.Series({**numbers, "same group (%)": share, "by chance (%)": chance})


def draw_mixing(data: TableData) -> Section:
    """Print a line per cell and position with a column per kind of attention. Items are ``<position>.<kind>``. CSV:
    position, kind, mean, std, clients."""
    findings = data.findings("mixing")
    axes, names = data.axes(findings), findings["item"].str.rpartition(".")
    for column, part in (("position", names[0]), ("kind", names[2])):
        findings[column] = pd.Categorical(part, part.unique(), ordered=True)
    weights = findings.groupby([*axes, "position", "kind"], observed=True)["value"]
    summary = pd.DataFrame({"mean": weights.mean(), "std": weights.std(ddof=0), "clients": weights.size()})
    printed = summary["mean"].map("{:.3f}".format) + summary["std"].map("±{:.3f}".format)
    wide = printed.unstack("kind").astype(object).fillna(NO_VALUE).rename(columns=str)
    return Section(_MIXING, table=PlainTable.of(wide.reset_index(), axes, "position"), data=summary.reset_index())


def draw_rollout(data: TableData) -> Section:
    """Draw test images, then a line per method with its models' attention: ``image.<row>`` has the pixels 0..255 of an
    image, channels first, ``mask.<row>`` the attention of its patches, 0 to 1, rows first."""

    def show(panel: Axes, kinds: Kinds, first: bool) -> None:
        image, side = pixels(kinds["image"]), math.isqrt(len(kinds.get("mask", ())))
        panel.imshow(image if first else overlay(image, kinds["mask"].reshape(side, -1)), interpolation="none")

    return _draw_images(data.findings("rollout"), _ROLLOUT, "image", show, max_images=10, inches=0.95)


def overlay(image: NDArray[np.uint8], mask: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return the mean of an image [H, W, 3] in grey and a mask [h, w], 0 to 1, as heat, interpolated."""
    for axis, size in enumerate(image.shape[:2]):
        x, centres = np.arange(size) + 0.5, (np.arange(mask.shape[axis]) + 0.5) * size / mask.shape[axis]
        mask = np.apply_along_axis(lambda values, x, xp: np.interp(x, xp, values), axis, mask, x, centres)
    heat = 255.0 * colormaps["inferno"](mask)[..., :3]
    return np.asarray(np.rint(((image @ _LUMA)[..., None] + heat) / 2), np.uint8)


def draw_detections(data: TableData) -> Section:
    """Draw test images with objects, then a line per method with its detections: ``found.<row>`` and ``there.<row>``
    have six numbers per box: class, left, top, right, bottom, and score or whether it is difficult."""

    def show(panel: Axes, kinds: Kinds, first: bool) -> None:
        image = pixels(kinds["image"])
        height, width = image.shape[:2]
        panel.imshow(image, interpolation="none")
        boxes = kinds.get("there" if first else "found", np.empty(0)).reshape(-1, 6)
        for label, left, top, right, bottom, last in boxes:
            style: dict[str, Any] = {"linestyle": "--" if first and last else "-", "linewidth": 1.0, "fill": False}
            corner, style["edgecolor"] = (left * width - 0.5, top * height - 0.5), COLOURS[int(label) % len(COLOURS)]
            panel.add_patch(Rectangle(corner, (right - left) * width, (bottom - top) * height, **style))

    return _draw_images(data.findings("detections"), _DETECTIONS, "objects", show, max_images=6, inches=1.5)


def _draw_images(
    findings: pd.DataFrame, text: str, first: str, show: Show, *, max_images: int, inches: float
) -> Section:
    """Draw images, evenly chosen, for the first column of the table: a line of images called `first`, then a line per
    row. `show` also gets whether a panel is in the first line. Items are ``<kind>.<row of the image in the dataset>``.
    """
    panels = findings["panel"].unique()
    column = findings[findings["panel"] == panels[0]].sort_values(["series", "client", "item", "index"])
    lines: dict[str, dict[tuple[int, int], Kinds]] = {}  # by series, client and row
    for name, cell in column.groupby("series", observed=True):
        run = cell[cell["run"] == cell["run"].iloc[0]]
        for (client, item), values in run.groupby(["client", "item"])["value"]:
            kind, _, row = str(item).partition(".")
            kinds = lines.setdefault(str(name), {}).setdefault((int(client), int(row)), {})
            kinds[kind] = values.to_numpy(np.float64)
    # Methods on one partition have the same images; if one lacks an image, another has it.
    images = {key: kinds for items in reversed(lines.values()) for key, kinds in items.items()}
    keys = sorted(images)
    drawn = [keys[i] for i in np.linspace(0, len(keys) - 1, min(len(keys), max_images)).round().astype(int)]
    if len(panels) > 1:
        text += f" Shown for {panels[0]}, the first of {len(panels)} columns."
    if (findings.groupby(["series", "panel"], observed=True)["run"].nunique() > 1).any():
        text += " Of several runs of a cell the first is shown."
    if len(drawn) < len(keys):
        text += f" {len(drawn)} of {len(keys)} images."
    alt = f"{pluralize(len(drawn), 'test image')}, and the same for {pluralize(len(lines), 'method')}."
    lines = {first: images} | lines
    width = 0.075 * max(map(len, lines)) + inches * len(drawn)
    figure = Figure(figsize=(width, inches * len(lines) + 0.3), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.02, w_pad=0.02)  # type: ignore[union-attr, call-arg]
    grid: Any = figure.subplots(len(lines), len(drawn), squeeze=False)
    for panel in grid.flat:
        panel.grid(visible=False)
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_visible(False)
    for i, (row, (name, items)) in enumerate(zip(grid, lines.items(), strict=True)):
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", parse_math=False)
        for panel, key in zip(row, drawn, strict=True):
            if key in items:
                show(panel, items[key], i == 0)
    for panel, (client, _) in zip(grid[0], drawn, strict=True):
        panel.set_title(f"client {client}")
    return Section(text, Picture(figure, alt, photos=True))


def pixels(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return a square image [H, W, 3] of numbers 0..255, channels first: one if their count is a square, else three."""
    channels = 1 if math.isqrt(len(values)) ** 2 == len(values) else 3
    planes = values.reshape(channels, math.isqrt(len(values) // channels), -1)
    return np.repeat(np.moveaxis(planes, 0, -1), 3 // channels, axis=-1).clip(0, 255).round().astype(np.uint8)
