"""Which cells a claim is about: pairs of single cells, or pairs of groups that run along the axes it is taken over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.report.table.cells import Cell
from pipeline.report.table.layout import Key
from pipeline.spec.table import TableClaim

Group = tuple[Cell, ...]
"""Cells that differ only on the axes a claim is taken over; a single one where it is taken over none."""


@dataclass(frozen=True)
class Match:
    """Two groups, in which cells at the same place differ only in what the claim compares.

    Attributes:
        first: The cells that the claim speaks for.
        second: Those they are compared with, as many; none if the claim is about each group by itself.
        compared: The labels of either side that the claim compares.
        labels: What all cells share.
    """

    first: Group
    second: Group
    compared: tuple[dict[str, str], dict[str, str]]
    labels: dict[str, str]


def matches(claim: TableClaim, axes: list[str], cells: Iterable[Cell], least: int) -> list[Match]:
    """All that a claim compares among `cells` of a table with these axes. Groups are cut down to what both have, of
    which there have to be `least`.
    """
    compared = [axis for axis in axes if axis in claim.side]
    shared = [axis for axis in axes if axis not in compared and axis not in claim.over]

    def groups(by: dict[str, list[str]]) -> dict[tuple[Key, Key], dict[Key, Cell]]:
        by_labels: dict[tuple[Key, Key], dict[Key, Cell]] = {}
        for cell in cells:
            if _chosen(cell, claim.where) and _chosen(cell, by):
                by_labels.setdefault((cell.key(shared), cell.key(compared)), {})[cell.key(claim.over)] = cell
        return by_labels

    if not claim.side:
        return [_match(tuple(group.values()), (), [], shared) for group in groups({}).values() if len(group) >= least]
    pairs = []
    others = groups(claim.than)
    for (where, own), group in groups(claim.side).items():
        for (there, theirs), other in others.items():
            common = [key for key in group if key in other]
            if where == there and own != theirs and len(common) >= least:
                ours, rivals = (tuple(side[key] for key in common) for side in (group, other))
                pairs.append(_match(ours, rivals, compared, shared))
    return pairs


def _chosen(cell: Cell, by: dict[str, list[str]]) -> bool:
    return all(cell.labels[axis] in labels for axis, labels in by.items())


def _match(first: Group, second: Group, compared: list[str], shared: list[str]) -> Match:
    one = {axis: first[0].labels[axis] for axis in compared}
    other = {axis: second[0].labels[axis] for axis in compared} if second else {}
    return Match(first, second, (one, other), {axis: first[0].labels[axis] for axis in shared})
