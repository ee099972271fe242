"""The figures that a report may have beside its table and its curves; :mod:`pipeline.report.figures` makes them."""

from __future__ import annotations

ANALYSES = {
    "embeddings": "Client embeddings",
    "mixing": "How local attention is mixed",
    "rollout": "Attention rollout",
    "adaptation": "Adaptation to novel clients",
}
"""Drawings of what a run was asked for by `evaluation.analyses`, called like it, and their headings."""

FIGURES = {
    "resources": "Resources",
    "gain": "Gain of the clients over Local",
    "noise": "Accuracy and noise",
    "values": "The table as a figure",
    "boxes": "Spread over the runs",
    **ANALYSES,
}
"""All of them; those that are no analyses need nothing but what every run leaves behind."""


def draws_analyses(figures: list[str] | None) -> bool:
    """Whether a report draws the analyses of its runs: it does unless its spec lists other figures only."""
    return figures is None or any(name in ANALYSES for name in figures)
