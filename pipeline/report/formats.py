"""What the pages of all kinds are made with: templates, Markdown without surprises, SVG within HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from pflcore import sources

if TYPE_CHECKING:
    import pandas as pd

# What a spreadsheet executes; a number is none.
_FORMULA = re.compile(r"\s*[=@]|\t|[+-](?![\d.]+$)")

# Read with the code and not when they are needed: a stage answers for both alike.
_TEMPLATES = {path.name: sources.read(path) for path in sorted(Path(__file__).parent.glob("templates/*.j2"))}


def inline_svg(svg: str, name: str = "") -> Markup:
    """Return an SVG document of our own as an element of an HTML page.

    Args:
        name: Goes before the ids in it, which must not be those of another drawing on the page.
    """
    element = svg[svg.index("<svg") :]
    return Markup(re.sub(r'(\bid="|\bhref="#|\burl\(#)', rf"\g<1>{name}-", element) if name else element)


def legible(name: str) -> str:
    """Return a name that can be seen: the characters of a text are classes too, blanks and line ends among them."""
    return name if name.isprintable() and name.strip() else repr(name)


def csv_text(frame: pd.DataFrame, index_label: str | None = None) -> str:
    """Return a table as CSV, the same bytes for the same table; with its index if that has a label.

    A text that a spreadsheet would execute has an apostrophe before it.
    """
    shown = frame.rename(columns=_inert)
    for place, kind in enumerate(shown.dtypes):
        if kind.kind not in "biuf":
            shown.isetitem(place, shown.iloc[:, place].map(_inert).to_numpy())
    index = index_label is not None
    return str(shown.to_csv(float_format="%.6g", lineterminator="\n", index=index, index_label=index_label))


def _inert(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # which would begin a line of the file
    return f"'{text}" if _FORMULA.match(text) else text


def aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Return a Markdown table, its columns padded; the first `left` ones are left-aligned. The first row heads it."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    marks = [":" + "-" * (w - 1) if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    padded = [
        [cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [padded[0], marks, *padded[1:]])


def environment(*, autoescape: bool, angled: bool = False) -> Environment:
    """Return a strict environment; `angled` delimiters (<< >>, <% %>) are for LaTeX, where braces mean something."""
    kinds = {"block": ("<%", "%>"), "variable": ("<<", ">>"), "comment": ("<#", "#>")} if angled else {}
    delimiters: dict[str, Any] = {f"{kind}_start_string": start for kind, (start, _) in kinds.items()}
    return Environment(
        loader=DictLoader(_TEMPLATES),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **delimiters | {f"{kind}_end_string": end for kind, (_, end) in kinds.items()},
    )
