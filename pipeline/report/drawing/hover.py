"""What the curves of an HTML page say under the pointer: the points themselves, few enough to be inlined."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.report.drawing.curves import Curve, panels_of
from pipeline.report.drawing.svg import Drawing
from pipeline.report.table.layout import Layout

MOST_POINTS = 200


def hover_data(layout: Layout, curves: list[Curve], drawn: Drawing) -> dict[str, Any]:
    """The curves as JSON data: where each panel lies in the drawing, and the points of its curves.

    A curve of more than :data:`MOST_POINTS` points is thinned to evenly spaced ones of them, the last among them.

    Returns:
        ``rounds``, distinct lists of rounds, which curves share; and ``panels``, each with its title, its box (left,
        top, width, height in units of the drawing), the ranges ``x`` and ``y`` that the box spans, and its curves:
        name, index into ``rounds``, accuracies in percent, and the number of its row, which is part of its name in the
        drawing (:func:`~pipeline.report.drawing.curves.series_id`).
    """
    rounds: list[list[int]] = []
    panels = []
    for column, box in zip(panels_of(layout, curves)[0], drawn.boxes, strict=True):
        lines = []
        for curve in (curve for curve in curves if curve.column == column and len(curve.points)):
            points = curve.points.iloc[_spread(len(curve.points))]
            at = [int(r) for r in points.index]
            if at not in rounds:
                rounds.append(at)
            values = [round(float(accuracy), 2) for accuracy in points]
            lines.append([" · ".join(curve.row), rounds.index(at), values, layout.rows.index(curve.row)])
        panels.append(
            {
                "title": layout.column_title(column),
                "box": [round(x, 2) for x in (box.left, box.top, box.width, box.height)],
                "x": [float(f"{x:.7g}") for x in box.x],
                "y": [float(f"{y:.7g}") for y in box.y],
                "curves": lines,
            }
        )
    return {"rounds": rounds, "panels": panels}


def _spread(count: int) -> list[int]:
    """Indices of at most :data:`MOST_POINTS` of `count` points, the first and the last among them."""
    return [int(i) for i in np.linspace(0, count - 1, min(count, MOST_POINTS)).round()]
