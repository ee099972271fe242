"""The grid of a spec: axes with a patch per label, and the combinations of their labels, each the draft of a run."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from pflcore.registry import did_you_mean
from pipeline.spec.metrics import Where, label_text
from pipeline.spec.patches import BASE, Draft, Patch, Patcher
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS
from pipeline.spec.schema import Grid
from pipeline.spec.yamlfile import Address, Document, dotted, show

MAX_RUNS = 20_000
_AXIS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = ("mean", "std", "quoted", "note", "misprint", "explained")  # columns of published values

Labels = dict[str, list[str]]
"""The labels of each axis."""


class Axis(NamedTuple):
    """An axis: a patch per label; `settings` has the run fields that a value of a component's axis sets as well."""

    name: str  # with a dot it sets one option of a part
    patches: dict[str, Patch]
    settings: dict[str, Patch]


class Point(NamedTuple):
    """One run of a grid before its record is made: a label per axis, and the draft."""

    labels: dict[str, str]
    draft: Draft


@dataclass(frozen=True)
class Points:
    """All runs of a grid. `known` has all labels of each axis in order, `labels` those that `only` keeps."""

    known: Labels
    labels: Labels
    points: list[Point]

    @property
    def left_out(self) -> Labels:
        """The labels of each axis that `only` leaves out."""
        return {axis: [one for one in known if one not in self.labels[axis]] for axis, known in self.known.items()}


def expand(grid: Grid, patcher: Patcher) -> Points:
    """Return the runs of a grid. Raises :class:`UserError` for wrong axes and labels, and when no run is left."""
    document = patcher.document
    axes = [_read_axis(name, values, patcher) for name, values in grid.axes.items()]
    for axis, other in itertools.permutations(axes, 2):
        _check_settings(axis, other, patcher)
    known = {axis.name: list(axis.patches) for axis in axes}
    overrides: list[tuple[Where, Patch]] = []
    for index, override in enumerate(grid.overrides):
        check_where(override.when, known, document, ("grid", "overrides", index, "when"))
        overrides.append((override.when, patcher.read(override.set, ("grid", "overrides", index, "set"))))
    for index, excluded in enumerate(grid.exclude):
        check_where(excluded, known, document, ("grid", "exclude", index))
    check_where(grid.only, known, document, ("grid", "only"))
    labels = {axis: [one for one in own if one in grid.only.get(axis, own)] for axis, own in known.items()}
    size = math.prod(map(len, labels.values()))
    document.check(size <= MAX_RUNS, ("grid", "axes"), f"{size} runs; a spec holds at most {MAX_RUNS}")
    base = patcher.read(grid.base, BASE)
    # Settings come after components, because they change what other axes have chosen. Axes of single options come
    # last, so that their values are kept when another patch replaces the whole part.
    patches = [(axis.name, axis.patches) for axis in axes if "." not in axis.name]
    patches += [(axis.name, axis.settings) for axis in axes]
    options = [(axis.name, axis.patches) for axis in axes if "." in axis.name]
    points: list[Point] = []
    for combination in itertools.product(*labels.values()):
        at = dict(zip(labels, combination, strict=True))
        if any(matches(excluded, at) for excluded in grid.exclude):
            continue
        own = [by_label[at[axis]] for axis, by_label in options]
        draft = [base, *(by_label[at[axis]] for axis, by_label in patches if at[axis] in by_label), *own]
        for when, change in overrides:
            if matches(when, at):
                draft += [change, *(patch for patch in own if _survives(patch, change, patcher))]
        points.append(Point(at, draft))
    document.check(points, ("grid", "exclude"), "excludes every run of the grid")
    return Points(known, labels, points)


def matches(where: Where, labels: Mapping[str, str]) -> bool:
    """Return whether `where` picks a run or cell with these labels."""
    return all(labels[axis] in wanted for axis, wanted in where.items())


def check_where(where: Where, labels: Mapping[str, list[str]], document: Document, address: Address) -> None:
    """Raise :class:`UserError` for an axis or a label that does not exist."""
    for axis, wanted in where.items():
        document.check_known("axis", axis, labels, (*address, axis))
        for index, label in enumerate(wanted):
            here = (*address, axis, index)
            document.check_known("label", label, labels[axis], here if here in document.marks else here[:-1])


def labelled(values: Any, address: Address, document: Document) -> Iterator[tuple[str, Any, Address]]:
    """Yield label, value and address of each value of an axis. Raises :class:`UserError` for one without a label."""
    items: list[tuple[Any, str | int, Any]] = []  # source of the label, key and value
    if isinstance(values, dict):
        items = [(key, key, value) for key, value in values.items()]
    elif isinstance(values, list):
        # An entry with options is called by its name; any other value is its own label.
        named = [value["name"] if isinstance(value, dict) and "name" in value else value for value in values]
        items = [(name, index, value) for index, (name, value) in enumerate(zip(named, values, strict=True))]
    for name, key, value in items:
        here = (*address, key)
        try:
            label = label_text(name)
        except ValueError:
            raise document.error(here, f"{show(value)} has no label; write `label: value` lines") from None
        yield label, value, here


def check_option(part: str, option: str, address: Address, patcher: Patcher) -> None:
    """Raise :class:`UserError` when no entry of this part of a run has such an option."""
    document = patcher.document
    names_entries = part in LISTS or (part in COMPONENTS and option == "name")
    document.check(not names_entries, address, f"call the axis {part!r}")
    document.check_known("part of a run", part, [*COMPONENTS, *SETTINGS], address)
    document.check_known("option", option, patcher.catalog.all_options(part), address)


def without_effect(points: Points, patcher: Patcher) -> Iterator[str]:
    """Yield a line for each setting of the base that other patches in the same files replace in every run."""
    document = patcher.document
    drafts = [point.draft for point in points.points]
    base = drafts[0][0]
    for field, part in base.values.items():
        for option in part if isinstance(part, dict) else [None]:
            if any(_setter(draft, field, option) is base for draft in drafts):
                continue
            address = patcher.place([base], field, option)
            places = dict.fromkeys(_setter(draft, field, option).places[field] for draft in drafts)
            mark = document.mark(address)
            files = {document.mark(place).file for place in ((), *places)}
            if mark.file in files:  # a file may replace what it inherits
                others = " and ".join(dict.fromkeys(dotted(place[:3]) for place in places))
                yield f"{mark}: {dotted(address)} has no effect: {others} set it everywhere"
                break


def _setter(draft: Draft, field: str, option: str | None) -> Patch:
    """Return the last patch that states an option, or that replaces the whole field."""
    stating = (patch for patch in reversed(draft) if field in patch.values)
    found: Patch = next(patch for patch in stating if option is None or {option, "name"} & {*patch.values[field]})
    return found


def _survives(option: Patch, change: Patch, patcher: Patcher) -> bool:
    """Return whether an axis's option applies to the entry that `change` names, which has it but does not state it."""
    ((field, stated),) = option.values.items()
    part = change.values.get(field, {})
    known = [info.name for info in patcher.catalog.options(field, part["name"])] if "name" in part else []
    return all(name in known and name not in part for name in stated)


def _read_axis(name: str, values: Any, patcher: Patcher) -> Axis:
    document, address = patcher.document, ("grid", "axes", name)
    part, dot, option = name.partition(".")
    many = isinstance(values, list | dict)
    document.check(many, address, f"{show(values)} must be a list of values or `label: value` lines")
    document.check(values, address, "has no values; state one, or remove the axis")
    if dot:
        check_option(part, option, address, patcher)
    elif name in COMPONENTS:
        one = isinstance(values, dict) and "name" in values
        message = "an axis needs a list; write [{name: …}]"
        document.check(not one, (*address, "name"), message)
    elif name not in RUN_FIELDS:
        allowed = f"letters, digits, '_', '-', and a name that is none of {', '.join(_RESERVED)}"
        named = _AXIS_NAME.fullmatch(name) and name not in _RESERVED
        document.check(named, address, f"{show(name)} cannot name an axis; use {allowed}")
        group = patcher.catalog.group_of(name)
        hint = f"; did you mean '{group}.{name}'?" if group else did_you_mean(name, list(RUN_FIELDS))
        message = f"is no field of a run, so its values must be `label: patch of a run` lines{hint}"
        document.check(isinstance(values, dict), address, message)
    axis = Axis(name, {}, {})
    for label, value, here in labelled(values, address, document):
        twice = f"the label {show(label)} occurs twice; remove one, or write `label: value` lines"
        document.check(label not in axis.patches, here, twice)
        if dot:
            axis.patches[label] = patcher.read_field(part, {option: value}, here)
        elif name not in RUN_FIELDS:
            axis.patches[label] = patcher.read(value, here)
        elif name in COMPONENTS and isinstance(value, dict):  # the value may also set fields of the run
            beside = patcher.catalog.beside(name)
            known = ["name", *patcher.catalog.all_options(name), *beside]
            for key in value.keys() - known:
                misspelt = any(near in beside for near in get_close_matches(key, known, n=1))
                document.check(not misspelt, (*here, key), f"unknown option{did_you_mean(key, beside)}")
            own = {key: item for key, item in value.items() if key not in beside}
            axis.patches[label] = patcher.read_field(name, own, here)
            axis.settings[label] = patcher.read({key: value[key] for key in value if key in beside}, here)
        else:
            axis.patches[label] = patcher.read_field(name, value, here)
    return axis


def _check_settings(axis: Axis, other: Axis, patcher: Patcher) -> None:
    """Check that another axis sets nothing that a label sets beside its component: it would be lost silently."""
    others = (*other.patches.values(), *other.settings.values())
    for patch, theirs in itertools.product(axis.settings.values(), others):
        for name in patch.values.keys() & theirs.values.keys():
            part, option = patch.values[name], None
            if isinstance(part, dict):
                option = min({*part} & {*theirs.values[name]} - {"name"}, default=None)
                if option is None and ("name" not in part or "." in other.name):
                    continue
            message = f"the axis {other.name!r} sets this too; state it in one of the two, or write an override"
            raise patcher.document.error(patcher.place([patch], name, option), message)
