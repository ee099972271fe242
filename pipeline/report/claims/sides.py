"""Which cells a claim is about: pairs of single cells, or pairs of groups that run along the axes it is taken over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.report.table.cells import Cell

Group = tuple[Cell, ...]
"""Cells that differ only on the axes a claim is taken over; a single one where it is taken over none."""

SIDES = ("better", "steadier", "sooner")
"""The keys of a claim of which each names a form, and the cells that it speaks for."""


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


def side(claim: dict[str, Any]) -> dict[str, list[str]]:
    """The labels that a resolved claim speaks for; none for one that compares a group's cells among themselves."""
    return next((claim[key] for key in SIDES if key in claim), {})


def matches(table: dict[str, Any], claim: dict[str, Any], cells: Iterable[Cell]) -> list[Match]:
    """All that a claim compares among `cells`. Groups are cut down to what both have."""
    first, second, over = side(claim), claim.get("than", {}), claim.get("over", [])
    axes = [*table["rows"], *table["columns"]]
    compared = [axis for axis in axes if axis in first]
    shared = [axis for axis in axes if axis not in compared and axis not in over]
    # A range needs two cells; of one alone there is a mean.
    least = 1 if "better" in claim or "sooner" in claim or not over else 2

    def groups(by: dict[str, list[str]]) -> dict[tuple[tuple[str, ...], tuple[str, ...]], dict[Any, Cell]]:
        found: dict[Any, dict[Any, Cell]] = {}
        for cell in cells:
            if _chosen(cell, claim["where"]) and _chosen(cell, by):
                found.setdefault((cell.key(shared), cell.key(compared)), {})[cell.key(over)] = cell
        return found

    if not first:
        return [_match(tuple(group.values()), (), [], shared) for group in groups({}).values() if len(group) >= least]
    pairs = []
    others = groups(second)
    for (where, mine), group in groups(first).items():
        for (there, theirs), other in others.items():
            common = [key for key in group if key in other]
            if where == there and mine != theirs and len(common) >= least:
                ours, rivals = (tuple(side_of[key] for key in common) for side_of in (group, other))
                pairs.append(_match(ours, rivals, compared, shared))
    return pairs


def _chosen(cell: Cell, by: dict[str, list[str]]) -> bool:
    return all(cell.labels[axis] in [str(label) for label in labels] for axis, labels in by.items())


def _match(first: Group, second: Group, compared: list[str], shared: list[str]) -> Match:
    one = {axis: first[0].labels[axis] for axis in compared}
    other = {axis: second[0].labels[axis] for axis in compared} if second else {}
    return Match(first, second, (one, other), {axis: first[0].labels[axis] for axis in shared})
