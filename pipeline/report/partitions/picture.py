"""The picture of a partition: who holds which classes, how many samples, and how noisy they are, as SVG."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pflcore.data.assignment import Assignment
from pflcore.data.heterogeneity import Heterogeneity
from pflcore.data.samples import Samples
from pipeline.report.drawing.svg import svg_with_boxes
from pipeline.report.formats import legible

MAX_CLIENTS = 100
_MAX_NAMES = 24  # values of an attribute that are worth a panel, and classes that are worth their names
_SPLITS = {"train": "#0072B2", "test": "#E69F00", "validation": "#009E73"}


def shown_clients(clients: int) -> np.ndarray:
    """The clients that there is room for, evenly spaced over all."""
    return np.unique(np.linspace(0, clients - 1, min(clients, MAX_CLIENTS)).round().astype(np.int64))


def partition_svg(samples: Samples, assignment: Assignment, measures: Heterogeneity) -> str:
    """Clients as rows: a heat map over classes, one over each attribute with few values, and bars of their sizes."""
    return svg_with_boxes(lambda: _draw(samples, assignment, measures), {"axes.grid": False}).svg


def _draw(samples: Samples, assignment: Assignment, measures: Heterogeneity) -> Figure:
    shown = shown_clients(measures.clients)
    maps = [("class", measures.train[shown], samples.class_names)]
    for name, counts in measures.attributes.items():
        if 1 < counts.shape[1] <= _MAX_NAMES:
            maps.append((name, counts[shown], samples.attributes[name].names))
    bars = 1 + (assignment.noise is not None)
    widths = [_width(counts.shape[1]) for _, counts, _ in maps] + [1.7] * bars
    named = [len(name) for _, _, names in maps if len(names) <= _MAX_NAMES for name in names]
    height = float(np.clip(0.16 * len(shown), 1.4, 8.0)) + 1.2 + 0.075 * max(named, default=0)
    figure = Figure(figsize=(sum(widths) + 1.2, height), layout="constrained")
    panels = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
    for panel, (name, counts, names) in zip(panels, maps, strict=False):
        _heat_map(figure, panel, counts, names, name)
    position = np.arange(len(shown))
    _sizes(panels[len(maps)], position, measures, shown)
    if assignment.noise:
        noise = panels[len(maps) + 1]
        noise.barh(position, np.array(assignment.noise.std)[shown], color="#555555", height=0.8)
        noise.set_xlabel("noise (std)")
    novel = np.isin(shown, assignment.novel)
    first = panels[0]
    first.set_ylabel("client" + (" (circle: novel)" if novel.any() else ""))
    first.plot(
        np.full(novel.sum(), -0.02),
        position[novel],
        "o",
        markersize=3,
        color="#D55E00",
        clip_on=False,
        transform=first.get_yaxis_transform(),
    )
    ticks = position if len(shown) <= 20 else position[:: int(np.ceil(len(shown) / 10))]
    first.set_yticks(ticks, [str(client) for client in shown[ticks]])
    first.set_ylim(len(shown) - 0.5, -0.5)
    return figure


def _heat_map(figure: Figure, panel: Axes, counts: np.ndarray, names: tuple[str, ...], title: str) -> None:
    # Shares, so that a large client does not bleach the others; sizes have a panel of their own.
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = panel.imshow(shares, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    panel.set_xlabel(title)
    if len(names) <= _MAX_NAMES:
        panel.set_xticks(range(len(names)), [legible(name) for name in names], rotation=90, parse_math=False)
    else:
        panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    what = "training samples" if title == "class" else "samples"
    figure.colorbar(image, ax=panel, shrink=0.6, pad=0.01, label=f"share of the client's {what}")


def _sizes(panel: Axes, position: np.ndarray, measures: Heterogeneity, shown: np.ndarray) -> None:
    left = np.zeros(len(shown))
    for (name, colour), counts in zip(
        _SPLITS.items(), (measures.train, measures.test, measures.validation), strict=True
    ):
        if counts is None:
            continue
        size = counts[shown].sum(axis=1)
        panel.barh(position, size, left=left, height=0.8, color=colour, label=name)
        left += size
    panel.set_xlabel("samples")
    panel.xaxis.set_major_locator(MaxNLocator(3))
    panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8, handlelength=1.0)


def _width(columns: int) -> float:
    return float(np.clip(1.4 + 0.2 * columns, 2.4, 6.0))


def alt_text(samples: Samples, measures: Heterogeneity) -> str:
    """The picture in a sentence."""
    held = (measures.train > 0).sum(axis=1)
    return (
        f"Heat map of {measures.clients:,} clients against {samples.classes} classes of {samples.name}: a client "
        f"trains on {held.min()} to {held.max()} classes and holds {measures.train.sum(axis=1).min():,} to "
        f"{measures.train.sum(axis=1).max():,} training samples."
    )
