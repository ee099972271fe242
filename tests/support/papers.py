"""The papers as text, where a checkout has them beside it: whether published values are printed there."""

from __future__ import annotations

import csv
import re
from pathlib import Path

PAPERS = next(Path(__file__).parents[3].glob("*/papers"), None)
"""The folder of texts; None where there is none, and then tests that need it are skipped."""

_MARKUP = r"[\s$*_{}]*"  # of Markdown, LaTeX and line breaks, between a value and its spread


def occurs(paper: Path, published: Path) -> list[str]:
    """The values of a CSV that a paper's text does not have, as the CSV writes them: ``"44.12±3.10"`` or ``"44.12"``.

    Args:
        paper: Its text, in any layout; a spread follows its value after ``±`` or ``\\pm``.
        published: Published values beside a spec.
    """
    text = paper.read_text(encoding="utf-8")
    with published.open(encoding="utf-8", newline="") as lines:
        rows = [(row["mean"], row["std"]) for row in csv.DictReader(lines) if row["mean"]]
    return [f"{mean}±{std}" if std else mean for mean, std in rows if not re.search(_printed(mean, std), text)]


def _printed(mean: str, std: str) -> str:
    spread = rf"{_MARKUP}(?:±|\\pm){_MARKUP}{re.escape(std)}" if std else ""
    return rf"(?<![\d.]){re.escape(mean)}{spread}(?!\d)"
