"""What there is to choose from, on the terminal: specs, registered entries, partitions."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def plain_table(*columns: str, right: int | None = None, **named: Any) -> Table:
    """Return a table without lines; the columns from number `right` on are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", **named)
    for at, column in enumerate(columns):
        justify = "right" if right is not None and at >= right else "left"
        style = {"style": "cyan", "no_wrap": True} if at == 0 and column == "name" else {"overflow": "fold"}
        table.add_column(column, justify=justify, **style)  # type: ignore[arg-type]
    return table
