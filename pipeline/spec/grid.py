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
    """All runs of a grid. `all_labels` are in the order of the spec; `labels` are those that `only` keeps."""

    all_labels: Labels
    labels: Labels
    points: list[Point]

    @property
    def left_out(self) -> Labels:
        """The labels of each axis that `only` leaves out."""
        used = self.labels
        return {axis: [name for name in names if name not in used[axis]] for axis, names in self.all_labels.items()}


def expand(grid: Grid, patcher: Patcher) -> Points:
    """Return the runs of a grid. Raises :class:`UserError` for wrong axes and labels, and when no run is left."""
    document = patcher.document
    axes = [_read_axis(name, values, patcher) for name, values in grid.axes.items()]
    for first, second in itertools.permutations(axes, 2):
        _check_settings(first, second, patcher)
    all_labels = {axis.name: list(axis.patches) for axis in axes}
    overrides: list[tuple[Where, Patch]] = []
    for index, override in enumerate(grid.overrides):
        check_where(override.when, all_labels, document, ("grid", "overrides", index, "when"))
        overrides.append((override.when, patcher.read(override.set, ("grid", "overrides", index, "set"))))
    for index, excluded in enumerate(grid.exclude):
        check_where(excluded, all_labels, document, ("grid", "exclude", index))
    check_where(grid.only, all_labels, document, ("grid", "only"))
    labels = dict(all_labels)
    for axis, used in grid.only.items():
        labels[axis] = [label for label in labels[axis] if label in used]
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
        chosen = dict(zip(labels, combination, strict=True))
        if any(matches(excluded, chosen) for excluded in grid.exclude):
            continue
        last = [by_label[chosen[axis]] for axis, by_label in options]
        draft = [base, *(by_label[chosen[axis]] for axis, by_label in patches if chosen[axis] in by_label), *last]
        for when, change in overrides:
            if matches(when, chosen):
                draft += [change, *(patch for patch in last if _survives(patch, change, patcher))]
        points.append(Point(chosen, draft))
    document.check(points, ("grid", "exclude"), "excludes every run of the grid")
    return Points(all_labels, labels, points)


def matches(where: Where, labels: Mapping[str, str]) -> bool:
    """Return whether `where` picks a run or cell with these labels."""
    return all(labels[axis] in allowed for axis, allowed in where.items())


def check_where(where: Where, labels: Mapping[str, list[str]], document: Document, address: Address) -> None:
    """Raise :class:`UserError` for an axis or a label that does not exist."""
    for axis, chosen in where.items():
        document.check_known("axis", axis, labels, (*address, axis))
        for index, label in enumerate(chosen):
            place = (*address, axis, index)
            document.check_known("label", label, labels[axis], place if place in document.marks else place[:-1])


def labelled_values(values: Any, address: Address, document: Document) -> Iterator[tuple[str, Any, Address]]:
    """Yield label, value and address of each value of an axis. Raises :class:`UserError` for one without a label."""
    if not isinstance(values, dict | list):
        return
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        place = (*address, key)
        name = key if isinstance(values, dict) else value
        if isinstance(name, dict) and "name" in name:  # an entry with options in a list
            name = name["name"]
        try:
            label = label_text(name)
        except ValueError:
            raise document.error(place, f"{show(value)} has no label; write `label: value` lines") from None
        yield label, value, place


def check_option(part: str, option: str, address: Address, patcher: Patcher) -> None:
    """Raise :class:`UserError` when no entry of this part of a run has such an option."""
    document = patcher.document
    names_entries = part in LISTS or (part in COMPONENTS and option == "name")
    document.check(not names_entries, address, f"call the axis {part!r}")
    document.check_known("part of a run", part, [*COMPONENTS, *SETTINGS], address)
    document.check_known("option", option, patcher.catalog.all_options(part), address)


def ineffective_settings(points: Points, patcher: Patcher) -> Iterator[str]:
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
    patches = (patch for patch in reversed(draft) if field in patch.values)
    return next(patch for patch in patches if option is None or {option, "name"} & {*patch.values[field]})


def _survives(option: Patch, change: Patch, patcher: Patcher) -> bool:
    """Return whether an axis's option applies to the entry that `change` names, which has it but does not state it."""
    ((field, options),) = option.values.items()
    part = change.values.get(field, {})
    available = [info.name for info in patcher.catalog.options(field, part["name"])] if "name" in part else []
    return all(name in available and name not in part for name in options)


def _read_axis(name: str, values: Any, patcher: Patcher) -> Axis:
    document, address = patcher.document, ("grid", "axes", name)
    part, dot, option = name.partition(".")
    message = f"{show(values)} must be a list of values or `label: value` lines"
    document.check(isinstance(values, list | dict), address, message)
    document.check(values, address, "has no values; state one, or remove the axis")
    if dot:
        check_option(part, option, address, patcher)
    elif name in COMPONENTS:
        entry = isinstance(values, dict) and "name" in values
        document.check(not entry, (*address, "name"), "an axis needs a list; write [{name: …}]")
    elif name not in RUN_FIELDS:
        allowed = f"letters, digits, '_', '-', and a name that is none of {', '.join(_RESERVED)}"
        valid = _AXIS_NAME.fullmatch(name) and name not in _RESERVED
        document.check(valid, address, f"{show(name)} cannot name an axis; use {allowed}")
        group = patcher.catalog.group_of(name)
        hint = f"; did you mean '{group}.{name}'?" if group else did_you_mean(name, list(RUN_FIELDS))
        message = f"is no field of a run, so its values must be `label: patch of a run` lines{hint}"
        document.check(isinstance(values, dict), address, message)
    axis = Axis(name, {}, {})
    for label, value, place in labelled_values(values, address, document):
        duplicate = f"the label {show(label)} occurs twice; remove one, or write `label: value` lines"
        document.check(label not in axis.patches, place, duplicate)
        if dot:
            axis.patches[label] = patcher.read_field(part, {option: value}, place)
        elif name not in RUN_FIELDS:
            axis.patches[label] = patcher.read(value, place)
        elif name in COMPONENTS and isinstance(value, dict):  # the value may also set fields of the run
            run_fields = patcher.catalog.axis_fields(name)
            valid_keys = ["name", *patcher.catalog.all_options(name), *run_fields]
            for key in value.keys() - valid_keys:
                misspelt = any(near in run_fields for near in get_close_matches(key, valid_keys, n=1))
                document.check(not misspelt, (*place, key), f"unknown option{did_you_mean(key, run_fields)}")
            option_values = {key: item for key, item in value.items() if key not in run_fields}
            axis.patches[label] = patcher.read_field(name, option_values, place)
            axis.settings[label] = patcher.read({key: item for key, item in value.items() if key in run_fields}, place)
        else:
            axis.patches[label] = patcher.read_field(name, value, place)
    return axis


def _check_settings(axis: Axis, other: Axis, patcher: Patcher) -> None:
    """Check that no other axis sets a run field that a label of this axis sets, as one value would be lost."""
    other_patches = (*other.patches.values(), *other.settings.values())
    for patch, other_patch in itertools.product(axis.settings.values(), other_patches):
        for name in patch.values.keys() & other_patch.values.keys():
            part, option = patch.values[name], None
            if isinstance(part, dict):
                option = min({*part} & {*other_patch.values[name]} - {"name"}, default=None)
                if option is None and ("name" not in part or "." in other.name):
                    continue
            message = f"the axis {other.name!r} sets this too; state it in one of the two, or write an override"
            raise patcher.document.error(patcher.place([patch], name, option), message)
