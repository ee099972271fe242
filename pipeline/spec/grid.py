"""The grid of a spec: the product of its axes, less what is excluded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pflcore.registry import did_you_mean
from pipeline.spec.axes import Axis, read_axes
from pipeline.spec.draft import Options, Patch, Patcher, Sourced, compose
from pipeline.spec.parts import Where
from pipeline.spec.schema import Grid
from pipeline.spec.yamlfile import Address, dotted, show

MAX_RUNS = 20_000


@dataclass(frozen=True)
class Point:
    """One run of a grid before its record is made: a label per axis, and what the spec says about it."""

    labels: dict[str, str]
    draft: Patch


@dataclass(frozen=True)
class Points:
    """All runs of a grid.

    Attributes:
        known: The labels of each axis in order.
        labels: Those that `only` keeps.
    """

    known: dict[str, list[str]]
    labels: dict[str, list[str]]
    points: list[Point]

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The labels of each axis that `only` leaves out."""
        return {
            axis: [label for label in known if label not in self.labels[axis]] for axis, known in self.known.items()
        }


def expand(grid: Grid, patcher: Patcher) -> Points:
    """The runs of a grid.

    Raises:
        UserError: An axis or a label is not well formed or unknown, or nothing is left.
    """
    axes = read_axes(grid.axes, patcher)
    labels = {axis.name: list(axis.patches) for axis in axes}
    for index, override in enumerate(grid.overrides):
        check_where(override.when, labels, patcher, ("grid", "overrides", index, "when"))
    for index, excluded in enumerate(grid.exclude):
        check_where(excluded, labels, patcher, ("grid", "exclude", index))
    check_where(grid.only, labels, patcher, ("grid", "only"))
    kept = {axis: [label for label in known if label in grid.only.get(axis, known)] for axis, known in labels.items()}
    size = math.prod(map(len, kept.values()))
    if size > MAX_RUNS:
        raise patcher.document.error(("grid", "axes"), f"{size} runs; a spec holds at most {MAX_RUNS}")
    points = list(_points(grid, axes, kept, patcher))
    if not points:
        raise patcher.document.error(("grid", "exclude"), "excludes every run of the grid")
    return Points(labels, kept, points)


def without_effect(grid: Grid, points: Points, patcher: Patcher) -> Iterator[str]:
    """A line for each setting of the base that something else sets in every run.

    A base that is inherited may well be overridden by what extends it.
    """
    document = patcher.document
    drafts = [{field: _settings(part) for field, part in point.draft.items()} for point in points.points]
    for field, part in patcher.read(grid.base, ("grid", "base")).items():
        stated = _settings(part)
        idle = {option: it for option, it in stated.items() if all(it not in d[field].values() for d in drafts)}
        if not idle:
            continue
        option, lost = next(iter(idle.items()))
        setters = [draft[field].get(option) or draft[field]["name"] for draft in drafts]
        files = {document.mark(it.address).file for it in setters}
        address = lost.address if len(idle) < len(stated) or len(stated) == 1 else ("grid", "base", field)
        mark = document.mark(address)
        if mark.file in {document.mark(()).file, *files}:
            names = {_setter(it.address): None for it in setters}
            verb = "sets" if len(names) == 1 else "set"
            alone = option not in ("", "name") and all(option in draft[field] for draft in drafts)
            what = f"{field}.{option}" if alone else field
            yield f"{mark}: {dotted(address)} has no effect: {' and '.join(names)} {verb} {what} everywhere"


def _settings(part: Options | Sourced) -> dict[str, Sourced]:
    return part.values if isinstance(part, Options) else {"": part}


def _setter(address: Address) -> str:
    return f"axis {address[2]}" if address[1] == "axes" else dotted(address[:3])


def matches(where: Where, labels: Mapping[str, str]) -> bool:
    """Whether a run or cell with these labels is among the selected ones."""
    return all(labels[axis] in wanted for axis, wanted in where.items())


def check_where(where: Where, labels: Mapping[str, list[str]], patcher: Patcher, address: Address) -> None:
    """Raises :class:`UserError` for an axis or a label that does not exist."""
    check_axes(where, labels, patcher, address)
    for axis, wanted in where.items():
        for index, label in enumerate(wanted):
            if label not in labels[axis]:
                here = (*address, axis, index)
                here = here if here in patcher.document.marks else here[:-1]
                raise patcher.document.error(here, f"unknown label {show(label)}{did_you_mean(label, labels[axis])}")


def check_axes(named: Mapping[str, Any], labels: Mapping[str, list[str]], patcher: Patcher, address: Address) -> None:
    """Raises :class:`UserError` for an axis that does not exist."""
    for axis in named:
        if axis not in labels:
            raise patcher.document.error((*address, axis), f"unknown axis{did_you_mean(axis, list(labels))}")


def _points(grid: Grid, axes: list[Axis], kept: dict[str, list[str]], patcher: Patcher) -> Iterator[Point]:
    base = patcher.read(grid.base, ("grid", "base"))
    # Settings of a label are about what other axes have chosen, and an option set by an axis of its own survives
    # whatever replaces the whole part.
    parts = [(axis.name, axis.patches) for axis in axes if not axis.dotted]
    parts += [(axis.name, axis.settings) for axis in axes]
    options = [(axis.name, axis.patches) for axis in axes if axis.dotted]
    overrides = [
        (override.when, patcher.read(override.set, ("grid", "overrides", index, "set")))
        for index, override in enumerate(grid.overrides)
    ]

    def draft(labels: dict[str, str]) -> Patch:
        patch = base
        for axis, patches in parts:
            patch = compose(patch, patches.get(labels[axis], {}))
        own: Patch = {}
        for axis, patches in options:
            own = compose(own, patches.get(labels[axis], {}))
        patch = compose(patch, own)
        for when, change in overrides:
            if matches(when, labels):
                patch = compose(patch, _keeping(own, change, patcher))
        return patch

    for combination in itertools.product(*kept.values()):
        labels = dict(zip(kept, combination, strict=True))
        if not any(matches(excluded, labels) for excluded in grid.exclude):
            yield Point(labels, draft(labels))


def _keeping(own: Patch, change: Patch, patcher: Patcher) -> Patch:
    """A change that puts other entries in the place, with the options that axes of their own set and these have too."""
    result = dict(change)
    for field, part in change.items():
        set_apart = own.get(field)
        if isinstance(part, Options) and part.replaces and isinstance(set_apart, Options):
            known = patcher.fields.known(field, part.values["name"].value)
            kept = {option: value for option, value in set_apart.values.items() if option in known}
            result[field] = Options({**kept, **part.values}, replaces=True)
    return result
