"""A spec's derived columns, checked against the axes and labels of its table and written out."""

from __future__ import annotations

from pflcore.registry import did_you_mean
from pipeline.spec.derived import OVER_COLUMNS, Derived
from pipeline.spec.draft import Patcher
from pipeline.spec.schema import TableSection
from pipeline.spec.table import TableDerived
from pipeline.spec.yamlfile import Address, show


def resolve_derived(layout: TableSection, labels: dict[str, list[str]], patcher: Patcher) -> list[TableDerived]:
    """The derived columns as the report works them out, with all axes named.

    Args:
        labels: Those of each axis of the table.

    Raises:
        UserError: An axis or a label is unknown or on the wrong side of the table, or a column is asked for twice.
    """
    written: list[TableDerived] = []
    for index, derived in enumerate(layout.derived):
        address: Address = ("table", "derived", index)
        one = TableDerived(
            show=derived.show,
            than=_than(derived, layout, labels, patcher, (*address, "than")),
            over=_over(derived, layout, patcher, (*address, "over")),
        )
        if one in written:
            raise patcher.document.error(address, f"the same columns as derived[{written.index(one)}]")
        written.append(one)
    return written


def _than(
    derived: Derived, layout: TableSection, labels: dict[str, list[str]], patcher: Patcher, address: Address
) -> dict[str, str]:
    for axis, label in derived.than.items():
        if axis not in layout.rows:
            raise patcher.document.error((*address, axis), f"no axis of the rows{did_you_mean(axis, layout.rows)}")
        if label not in labels[axis]:
            hint = did_you_mean(label, labels[axis])
            raise patcher.document.error((*address, axis), f"unknown label {show(label)}{hint}")
    return derived.than


def _over(derived: Derived, layout: TableSection, patcher: Patcher, address: Address) -> list[str]:
    """The axes in the order of the table's columns."""
    if derived.over is None:
        return layout.columns if derived.show in OVER_COLUMNS else []
    for index, axis in enumerate(derived.over):
        if axis not in layout.columns:
            hint = did_you_mean(axis, layout.columns)
            raise patcher.document.error((*address, index), f"{show(axis)} is no axis of the columns{hint}")
    if not derived.over and derived.show == "mean":
        raise patcher.document.error(address, "a mean over no axis is the table itself")
    return [axis for axis in layout.columns if axis in derived.over]
