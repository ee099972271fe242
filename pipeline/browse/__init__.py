"""What there is to choose from, on the terminal: specs, registered entries, partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from pflcore.errors import UserError
from pipeline.parsing import parse_yaml


def plain_table(*columns: str, right: int | None = None) -> Table:
    """Return a table without lines; the columns from number `right` on are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        justify = "right" if right is not None and at >= right else "left"
        style = {"style": "cyan", "no_wrap": True} if at == 0 and column == "name" else {"overflow": "fold"}
        table.add_column(column, justify=justify, **style)  # type: ignore[arg-type]
    return table


def given_options(words: Sequence[str], name: str) -> dict[str, Any]:
    """Return options of `name` that are given on the command line as ``key=value``, with the value in YAML, by key.
    Raises :class:`UserError` for a word that is none."""
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UserError(f"--set {word!r} must be option=value, with an option of {name!r}")
        try:
            values[key] = parse_yaml(value)
        except ValueError:
            raise UserError(f"--set {word!r}: the value is not YAML") from None
    return values
