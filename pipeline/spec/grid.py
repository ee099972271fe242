"""The grid of a spec: the product of its axes, less what is excluded, plus what is included."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pflcore.registry import did_you_mean
from pipeline.spec.draft import Patch, Patcher, compose
from pipeline.spec.parts import Selection, label_text
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS
from pipeline.spec.schema import Grid
from pipeline.spec.yamlfile import Address, show

MAX_RUNS = 20_000

_AXIS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = ("mean", "std", "quoted", "note")  # columns of published values


@dataclass(frozen=True)
class Axis:
    """What varies: a patch per label. A `dotted` axis sets one option of a part and is applied after all others."""

    name: str
    patches: dict[str, Patch]
    dotted: bool


@dataclass(frozen=True)
class Point:
    """One run of a grid before its record is made: a label per axis, and what the spec says about it."""

    labels: dict[str, str]
    draft: Patch
    address: Address


@dataclass(frozen=True)
class Points:
    """All runs of a grid, and the labels of each axis in order, those of included runs last."""

    labels: dict[str, list[str]]
    points: list[Point]


def expand(grid: Grid, patcher: Patcher) -> Points:
    """The runs of a grid.

    Raises:
        UserError: An axis or a label is not well formed or unknown, nothing is left, or a run is stated twice.
    """
    axes = [_read_axis(name, values, patcher) for name, values in grid.axes.items()]
    labels = {axis.name: list(axis.patches) for axis in axes}
    size = math.prod(map(len, labels.values()))
    if size > MAX_RUNS:
        raise patcher.document.error(("grid", "axes"), f"{size} runs; a spec holds at most {MAX_RUNS}")
    for index, include in enumerate(grid.include):
        address: Address = ("grid", "include", index, "labels")
        check_axes(include.labels, labels, patcher, address)
        for axis in axes:
            if axis.name not in include.labels:
                raise patcher.document.error(address, f"no label for the axis {axis.name!r}; state one for every axis")
            if include.labels[axis.name] not in labels[axis.name]:
                labels[axis.name].append(include.labels[axis.name])
    for index, override in enumerate(grid.overrides):
        check_selection(override.when, labels, patcher, ("grid", "overrides", index, "when"))
    for index, excluded in enumerate(grid.exclude):
        check_selection(excluded, labels, patcher, ("grid", "exclude", index))
    points = list(_points(grid, axes, patcher))
    if not points:
        raise patcher.document.error(("grid", "exclude"), "excludes every run of the grid")
    seen: dict[tuple[str, ...], Point] = {}
    for point in points:
        first = seen.setdefault(tuple(point.labels[axis.name] for axis in axes), point)
        if first is not point:
            raise patcher.document.error(point.address, f"the run {_words(point.labels)} is already part of the grid")
    return Points(labels, points)


def matches(selection: Selection, labels: Mapping[str, str]) -> bool:
    """Whether a run or cell with these labels is among the selected ones."""
    return all(labels[axis] in chosen for axis, chosen in selection.items())


def check_selection(selection: Selection, labels: Mapping[str, list[str]], patcher: Patcher, address: Address) -> None:
    """Raises :class:`UserError` for an axis or a label that does not exist."""
    check_axes(selection, labels, patcher, address)
    for axis, chosen in selection.items():
        for index, label in enumerate(chosen):
            if label not in labels[axis]:
                here = (*address, axis, index)
                here = here if here in patcher.document.marks else here[:-1]
                raise patcher.document.error(here, f"unknown label {show(label)}{did_you_mean(label, labels[axis])}")


def check_axes(named: Mapping[str, Any], labels: Mapping[str, list[str]], patcher: Patcher, address: Address) -> None:
    """Raises :class:`UserError` for an axis that does not exist."""
    for axis in named:
        if axis not in labels:
            raise patcher.document.error((*address, axis), f"unknown axis{did_you_mean(axis, list(labels))}")


def _points(grid: Grid, axes: list[Axis], patcher: Patcher) -> Iterator[Point]:
    base = patcher.read(grid.base, ("grid", "base"))
    # An option set by an axis of its own survives another axis that replaces the whole part.
    order = sorted(axes, key=lambda axis: axis.dotted)
    overrides = [
        (override.when, patcher.read(override.set, ("grid", "overrides", index, "set")))
        for index, override in enumerate(grid.overrides)
    ]

    def draft(labels: dict[str, str]) -> Patch:
        patch = base
        for axis in order:
            patch = compose(patch, axis.patches.get(labels[axis.name], {}))
        for when, change in overrides:
            if matches(when, labels):
                patch = compose(patch, change)
        return patch

    names = [axis.name for axis in axes]
    for combination in itertools.product(*(axis.patches for axis in axes)):
        labels = dict(zip(names, combination, strict=True))
        if not any(matches(excluded, labels) for excluded in grid.exclude):
            yield Point(labels, draft(labels), ("grid", "axes"))
    for index, include in enumerate(grid.include):
        address: Address = ("grid", "include", index)
        labels = {name: include.labels[name] for name in names}
        yield Point(labels, compose(draft(labels), patcher.read(include.set, (*address, "set"))), address)


def _read_axis(name: str, values: Any, patcher: Patcher) -> Axis:
    address: Address = ("grid", "axes", name)
    error = patcher.document.error
    part, dot, option = name.partition(".")
    if not isinstance(values, list | dict) or not values:
        raise error(address, f"{show(values)} must be a list of values or `label: value` lines")
    if dot:
        check_option(part, option, address, patcher)
    elif name not in RUN_FIELDS:
        if not _AXIS_NAME.fullmatch(name) or name in _RESERVED:
            raise error(
                address,
                f"{show(name)} cannot name an axis; use letters, digits, '_', '-', and a name that is "
                f"none of {', '.join(_RESERVED)}",
            )
        if isinstance(values, list):
            hint = did_you_mean(name, list(RUN_FIELDS))
            raise error(address, f"no run field, so its values must be `label: patch of a run` lines{hint}")
    if name in COMPONENTS and isinstance(values, dict) and "name" in values:
        raise error(
            (*address, "name"), f"a {name} where a list or `label: {name}` lines belong; write it as [{{name: …}}]"
        )
    patches: dict[str, Patch] = {}
    for label, value, here in _labelled(values, address, patcher):
        if label in patches:
            raise error(here, f"a second value labelled {show(label)}; write `label: value` lines")
        if dot:
            patches[label] = patcher.read_option(part, option, value, here)
        elif name in RUN_FIELDS:
            patches[label] = {name: patcher.read_field(name, value, here)}
        else:
            patches[label] = patcher.read(value, here)
    return Axis(name, patches, bool(dot))


def _labelled(values: Any, address: Address, patcher: Patcher) -> Iterator[tuple[str, Any, Address]]:
    items = enumerate(values) if isinstance(values, list) else values.items()
    for key, value in items:
        here = (*address, key)
        named = value["name"] if isinstance(value, dict) and "name" in value else value
        try:
            yield label_text(key if isinstance(values, dict) else named), value, here
        except ValueError:
            raise patcher.document.error(here, f"{show(value)} has no label; write `label: value` lines") from None


def check_option(part: str, option: str, address: Address, patcher: Patcher) -> None:
    """Raises :class:`UserError` when no entry of this part of a run has such an option."""
    kinds = [*COMPONENTS, *SETTINGS]
    if part in LISTS:
        raise patcher.document.error(address, f"call the axis {part!r}; its values are `label: list` lines")
    if part not in kinds:
        raise patcher.document.error(address, f"unknown part {show(part)} of a run{did_you_mean(part, kinds)}")
    if option == "name":
        raise patcher.document.error(address, f"call the axis {part!r}; its values are names")
    names = patcher.fields.catalog.names(part) if part in COMPONENTS else [part]
    known = sorted({option for name in names for option in patcher.fields.known(part, name)})
    if option not in known:
        raise patcher.document.error(address, f"no {part} has an option {show(option)}{did_you_mean(option, known)}")


def _words(labels: dict[str, str]) -> str:
    return ", ".join(f"{axis} {label}" for axis, label in labels.items()) or "without labels"
