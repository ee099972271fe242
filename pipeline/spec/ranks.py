"""A spec's columns of ranks, checked against the axes of its table and written out."""

from __future__ import annotations

from pflcore.registry import did_you_mean
from pipeline.spec.draft import Patcher
from pipeline.spec.schema import TableSection
from pipeline.spec.table import TableRank
from pipeline.spec.yamlfile import show


def resolve_ranks(layout: TableSection, patcher: Patcher) -> list[TableRank]:
    """Return the columns of ranks as the report works them out, axes in the order of the table's columns.

    Raises:
        UserError: An axis is unknown or not of the columns, or columns are asked for twice.
    """
    written: list[TableRank] = []
    for index, derived in enumerate(layout.derived):
        for place, axis in enumerate(derived.over or ()):
            if axis not in layout.columns:
                hint = did_you_mean(axis, layout.columns)
                raise patcher.document.error(
                    ("table", "derived", index, "over", place), f"{show(axis)} is no axis of the columns{hint}"
                )
        over = [axis for axis in layout.columns if derived.over is None or axis in derived.over]
        if TableRank(over=over) in written:
            first = written.index(TableRank(over=over))
            raise patcher.document.error(("table", "derived", index), f"the same columns as derived[{first}]")
        written.append(TableRank(over=over))
    return written
