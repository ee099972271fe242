"""``pfl list`` and ``pfl describe``: specs, registered entries, datasets and partitions on the terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rich.table import Table

from pipeline.spec.yamlfile import parse_setting


def plain_table(*columns: str, right: Collection[str] = ()) -> Table:
    """Return a table without lines; the columns named in `right` are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        if index == 0 and column == "name":
            table.add_column(column, style="cyan", no_wrap=True)
        else:
            table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def parse_options(words: Sequence[str], name: str) -> dict[str, Any]:
    """Return the options of `name` that the command line gives as ``key=value``, by key (:func:`parse_setting`)."""
    return dict(parse_setting(word, f"OPTION=VALUE, with an option of {name!r}") for word in words)
