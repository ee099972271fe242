"""The grid of a spec: the product of its axes, each of them a patch per label, less what is excluded."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pflcore.registry import did_you_mean
from pipeline.spec.draft import Draft, Patch, Patcher
from pipeline.spec.parts import Where, label_text
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS
from pipeline.spec.schema import Grid
from pipeline.spec.yamlfile import Address, Document, dotted, show

MAX_RUNS = 20_000
_AXIS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = ("mean", "std", "quoted", "note", "misprint", "explained")  # columns of published values

Labels = dict[str, list[str]]
"""Those of each axis."""


@dataclass(frozen=True)
class Axis:
    """What varies: a patch per label.

    Attributes:
        settings: Per label what the value of a component's axis says of other parts of the run; applied after the
            patches of all axes that are not `dotted`.
        dotted: Whether it sets one option of a part, which is applied after all others.
    """

    name: str
    dotted: bool
    patches: dict[str, Patch]
    settings: dict[str, Patch]


def labelled(values: Any, address: Address, document: Document) -> Iterator[tuple[str, Any, Address]]:
    """Yield label, value and address of each value of an axis. Raises :class:`UserError` for one without a label."""
    for key, value in enumerate(values) if isinstance(values, list) else values.items():
        here = (*address, key)
        named = value["name"] if isinstance(value, dict) and "name" in value else value
        try:
            yield label_text(key if isinstance(values, dict) else named), value, here
        except ValueError:
            raise document.error(here, f"{show(value)} has no label; write `label: value` lines") from None


def check_option(part: str, option: str, address: Address, patcher: Patcher) -> None:
    """Raise :class:`UserError` when no entry of this part of a run has such an option."""
    kinds = [*COMPONENTS, *SETTINGS]
    error = patcher.document.error
    if part in LISTS:
        raise error(address, f"call the axis {part!r}; its values are `label: list` lines")
    if part not in kinds:
        raise error(address, f"unknown part {show(part)} of a run{did_you_mean(part, kinds)}")
    if option == "name":
        raise error(address, f"call the axis {part!r}; its values are names")
    known = patcher.fields.options(part)
    if option not in known:
        raise error(address, f"no {part} has an option {show(option)}{did_you_mean(option, known)}")


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
        UserError: An axis or a label is not well formed or unknown, nothing is left, or two axes set the same thing
            where one of them does so in the settings of a label.
    """
    document = patcher.document
    axes = [_read_axis(name, values, patcher) for name, values in grid.axes.items()]
    for axis, other in itertools.permutations(axes, 2):
        for patch in axis.settings.values():
            _check_settings(patch, other, patcher)
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


def _read_axis(name: str, values: Any, patcher: Patcher) -> Axis:
    address: Address = ("grid", "axes", name)
    part, dot, option = name.partition(".")
    _check_axis(name, values, address, patcher)
    beside = patcher.fields.beside(name) if name in COMPONENTS else []
    axis = Axis(name, bool(dot), {}, {})
    for label, value, here in labelled(values, address, patcher.document):
        if label in axis.patches:
            raise patcher.document.error(here, f"a second value labelled {show(label)}; write `label: value` lines")
        if dot:
            axis.patches[label] = patcher.read_option(part, option, value, here)
        elif name not in RUN_FIELDS:
            axis.patches[label] = patcher.read(value, here)
        else:
            own, settings = _parted(name, value, beside, here, patcher)
            axis.patches[label] = patcher.read_field(name, own, here)
            axis.settings[label] = patcher.read(settings, here)
    return axis


def _check_axis(name: str, values: Any, address: Address, patcher: Patcher) -> None:
    error = patcher.document.error
    part, dot, option = name.partition(".")
    if not isinstance(values, list | dict) or not values:
        raise error(address, f"{show(values)} must be a list of values or `label: value` lines")
    if dot:
        check_option(part, option, address, patcher)
    elif name not in RUN_FIELDS:
        if not _AXIS_NAME.fullmatch(name) or name in _RESERVED:
            allowed = f"letters, digits, '_', '-', and a name that is none of {', '.join(_RESERVED)}"
            raise error(address, f"{show(name)} cannot name an axis; use {allowed}")
        if isinstance(values, list):
            hint = did_you_mean(name, list(RUN_FIELDS))
            raise error(address, f"no run field, so its values must be `label: patch of a run` lines{hint}")
    elif name in COMPONENTS and isinstance(values, dict) and "name" in values:
        hint = f"a list or `label: {name}` lines belong; write it as [{{name: …}}]"
        raise error((*address, "name"), f"a {name} where {hint}")


def _parted(kind: str, value: Any, beside: list[str], address: Address, patcher: Patcher) -> tuple[Any, dict[str, Any]]:
    """Return a value of a component's axis: the component, and what is stated beside it of the run."""
    if not beside or not isinstance(value, dict):
        return value, {}
    own = {key: item for key, item in value.items() if key not in beside}
    known = ["name", *patcher.fields.options(kind), *beside]
    for key in own:
        name, dot, option = key.partition(".")
        if dot and name in beside:
            raise patcher.document.error((*address, key), f"unknown option; write {name}: {{{option}: …}}")
        if any(near in beside for near in get_close_matches(key, known, n=1)):
            raise patcher.document.error((*address, key), f"unknown option{did_you_mean(key, beside)}")
    return own, {key: item for key, item in value.items() if key in beside}


def _check_settings(patch: Patch, other: Axis, patcher: Patcher) -> None:
    """Check that another axis sets nothing that a label sets beside its component: it would be lost without a word."""
    for theirs in (*other.patches.values(), *other.settings.values()):
        for name, part in patch.values.items():
            if name not in theirs.values:
                continue
            option = None
            if isinstance(part, dict):
                option = min(set(part) & set(theirs.values[name]) - {"name"}, default=None)
                if option is None and ("name" not in part or other.dotted):
                    continue
            address = patcher.place([patch], name, option)
            raise patcher.document.error(
                address, f"the axis {other.name!r} sets this too; leave it to one of them, or write an override"
            )
