"""Columns of ranks on a page: their headers to the right of the table's own, and their numbers, printed."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.report.drawing.sections import NO_VALUE
from pipeline.report.table.derived import RankColumns
from pipeline.report.table.layout import Key, Layout, Span, headed
from pipeline.report.table.ranks import printed_rank


def headers_with_derived(layout: Layout, derived: Sequence[RankColumns]) -> list[list[Span]]:
    """The header levels of a table with its derived columns; the last level has a span for every column."""
    titles = [_titles(layout, one) for one in derived]
    levels = [list(spans) for spans in layout.headers]
    if len(levels) == 1 and any(len(own) > 1 for own in titles):
        levels.insert(0, [Span("", 0, len(layout.columns))])
    start = len(layout.columns)
    for one, own in zip(derived, titles, strict=True):
        for level, spans in enumerate(levels[:-1]):
            spans.append(Span(one.title if level == 0 and len(own) > 1 else "", start, len(own)))
        leaves = own if len(own) > 1 else [one.title]
        levels[-1] += [Span(text, start + place, 1) for place, text in enumerate(leaves)]
        start += len(own)
    return levels


def numbers_of(row: Key, derived: Sequence[RankColumns]) -> list[tuple[str, str]]:
    """The ranks of a row, as printed and for sorting; a dash and "" where there is none."""
    cells = []
    for one in derived:
        for place in range(len(one.groups)):
            value = one.values.get((row, place))
            cells.append((NO_VALUE, "") if value is None else (printed_rank(value), f"{value:.6g}"))
    return cells


def _titles(layout: Layout, derived: RankColumns) -> list[str]:
    """What the columns of a group have in common, by group."""
    axes = [(index, axis) for index, axis in enumerate(layout.column_axes) if axis not in derived.over]
    return [" · ".join(headed(axis, group[0][index]) for index, axis in axes) for group in derived.groups]
