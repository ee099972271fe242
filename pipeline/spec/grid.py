"""The grid of a spec: the product of its axes, less what is excluded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pflcore.registry import did_you_mean
from pipeline.spec.axes import Axis, read_axes
from pipeline.spec.draft import Draft, Patch, Patcher
from pipeline.spec.parts import Where
from pipeline.spec.schema import Grid
from pipeline.spec.yamlfile import Address, Document, dotted, show

MAX_RUNS = 20_000

Labels = dict[str, list[str]]
"""Those of each axis."""


@dataclass(frozen=True)
class Point:
    """One run of a grid before its record is made: a label per axis, and what the spec says about it."""

    labels: dict[str, str]
    draft: Draft


@dataclass(frozen=True)
class Points:
    """All runs of a grid.

    Attributes:
        known: The labels of each axis in order.
        labels: Those that `only` keeps.
    """

    known: Labels
    labels: Labels
    points: list[Point]

    @property
    def left_out(self) -> Labels:
        """The labels of each axis that `only` leaves out."""
        return {
            axis: [label for label in known if label not in self.labels[axis]] for axis, known in self.known.items()
        }


def expand(grid: Grid, patcher: Patcher) -> Points:
    """Return the runs of a grid.

    Raises:
        UserError: An axis or a label is not well formed or unknown, or nothing is left.
    """
    document = patcher.document
    axes = read_axes(grid.axes, patcher)
    labels = {axis.name: list(axis.patches) for axis in axes}
    for index, override in enumerate(grid.overrides):
        check_where(override.when, labels, document, ("grid", "overrides", index, "when"))
    for index, excluded in enumerate(grid.exclude):
        check_where(excluded, labels, document, ("grid", "exclude", index))
    check_where(grid.only, labels, document, ("grid", "only"))
    kept = {axis: [label for label in known if label in grid.only.get(axis, known)] for axis, known in labels.items()}
    size = math.prod(map(len, kept.values()))
    if size > MAX_RUNS:
        raise document.error(("grid", "axes"), f"{size} runs; a spec holds at most {MAX_RUNS}")
    points = list(_points(grid, axes, kept, patcher))
    if not points:
        raise document.error(("grid", "exclude"), "excludes every run of the grid")
    return Points(labels, kept, points)


def matches(where: Where, labels: Mapping[str, str]) -> bool:
    """Return whether a run or cell with these labels is among the selected ones."""
    return all(labels[axis] in wanted for axis, wanted in where.items())


def check_where(where: Where, labels: Mapping[str, list[str]], document: Document, address: Address) -> None:
    """Raise :class:`UserError` for an axis or a label that does not exist."""
    check_axes(where, labels, document, address)
    for axis, wanted in where.items():
        for index, label in enumerate(wanted):
            if label not in labels[axis]:
                here = (*address, axis, index)
                here = here if here in document.marks else here[:-1]
                raise document.error(here, f"unknown label {show(label)}{did_you_mean(label, labels[axis])}")


def check_axes(named: Mapping[str, Any], labels: Mapping[str, list[str]], document: Document, address: Address) -> None:
    """Raise :class:`UserError` for an axis that does not exist."""
    for axis in named:
        if axis not in labels:
            raise document.error((*address, axis), f"unknown axis{did_you_mean(axis, list(labels))}")


def without_effect(points: Points, patcher: Patcher) -> Iterator[str]:
    """Yield a line for each setting of the base that something else sets in every run.

    A base that is inherited may well be overridden by what extends it.
    """
    document = patcher.document
    drafts = [point.draft for point in points.points]
    base = drafts[0][0]
    for field, part in base.values.items():
        stated = list(part) if isinstance(part, dict) else [None]
        setters = {option: [_setter(draft, field, option) for draft in drafts] for option in stated}
        idle = [option for option in stated if all(patch is not base for patch in setters[option])]
        if not idle:
            continue
        option, last = idle[0], {id(patch): patch for patch in setters[idle[0]]}.values()
        of_option = [option is not None and option in patch.values[field] for patch in last]
        places = [
            patcher.place([patch], field, option if own else "name" if isinstance(part, dict) else None)
            for patch, own in zip(last, of_option, strict=True)
        ]
        whole = len(idle) == len(stated) > 1
        address = ("grid", "base", field) if whole else patcher.place([base], field, option)
        mark = document.mark(address)
        if mark.file in {document.mark(place).file for place in ((), *places)}:
            names = {f"axis {place[2]}" if place[1] == "axes" else dotted(place[:3]): None for place in places}
            what = f"{field}.{option}" if option != "name" and all(of_option) else field
            verb = "sets" if len(names) == 1 else "set"
            yield f"{mark}: {dotted(address)} has no effect: {' and '.join(names)} {verb} {what} everywhere"


def _setter(draft: Draft, field: str, option: str | None) -> Patch:
    """Return the last patch that states an option, or that puts something else in the place of the whole field."""
    return next(
        patch
        for patch in reversed(draft)
        if field in patch.values and (option is None or option in patch.values[field] or "name" in patch.values[field])
    )


def _points(grid: Grid, axes: list[Axis], kept: Labels, patcher: Patcher) -> Iterator[Point]:
    base = patcher.read(grid.base, ("grid", "base"))
    # Settings of a label are about what other axes have chosen, and an option set by an axis of its own survives
    # whatever replaces the whole part.
    patches = [(axis.name, axis.patches) for axis in axes if not axis.dotted]
    patches += [(axis.name, axis.settings) for axis in axes]
    options = [(axis.name, axis.patches) for axis in axes if axis.dotted]
    overrides = [
        (override.when, patcher.read(override.set, ("grid", "overrides", index, "set")))
        for index, override in enumerate(grid.overrides)
    ]
    for combination in itertools.product(*kept.values()):
        labels = dict(zip(kept, combination, strict=True))
        if any(matches(excluded, labels) for excluded in grid.exclude):
            continue
        own = [by_label[labels[axis]] for axis, by_label in options]
        draft = [base, *(by_label[labels[axis]] for axis, by_label in patches if labels[axis] in by_label), *own]
        for when, change in overrides:
            if matches(when, labels):
                draft += [change, *(patch for patch in own if _survives(patch, change, patcher))]
        yield Point(labels, draft)


def _survives(option: Patch, change: Patch, patcher: Patcher) -> bool:
    """Return whether what an axis of an option set holds for the other entry that a change puts in the place."""
    ((field, stated),) = option.values.items()
    part = change.values.get(field, {})
    known = patcher.fields.known(field, part["name"]) if "name" in part else []
    return all(name in known and name not in part for name in stated)
