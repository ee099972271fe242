"""The figures that a report may have beside its table and its curves; :mod:`pipeline.report.figures` makes them.

What an analysis found is a figure too, called like the analysis.
"""

from __future__ import annotations

FIGURES = {
    "resources": "Resources",
    "gain": "Gain of the clients over Local",
    "noise": "Accuracy and noise",
    "values": "The table as a figure",
    "boxes": "Spread over the runs",
}
"""Those that need nothing but what every run leaves behind, and their headings."""


def draws_analyses(figures: list[str] | None) -> bool:
    """Whether a report draws the analyses of its runs: it does unless its spec lists other figures only."""
    return figures is None or any(name not in FIGURES for name in figures)
