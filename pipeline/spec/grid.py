"""Runs under construction: patches laid over one another, and the grid, whose axes are patches by label.

A bad value is reported at the axis, override or base that stated it, however many runs it ends up in: when it is
refused, the last patch that states it is looked up. Files of weights and of splits are part of a run by what is in
them, so the same file elsewhere is the same run, and another file under the same name is another. Where weights are
absent the run is named after their place: the spec is valid, and only the stage that reads them fails.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from pflcore.registry import did_you_mean
from pflcore.settings import why_not_stopped_early
from pipeline.spec.catalog import Catalog, Invalid
from pipeline.spec.metrics import Where, label_text
from pipeline.spec.run import ABSENT, COMPONENTS, LISTS, RUN_FIELDS, SETTINGS, Run, canonical_json, content_of
from pipeline.spec.schema import SCALARS, Grid
from pipeline.spec.yamlfile import Address, Document, dotted, show

BASE: Address = ("grid", "base")
MAX_RUNS = 20_000
_AXIS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = ("mean", "std", "quoted", "note", "misprint", "explained")  # columns of published values
_PLAIN_NAME = re.compile(r"[\w+=@,][\w.+=@, -]*")  # what neither DVC nor a file system takes for anything but a name
_WRITTEN = ("artifacts", "build", "reports", "stages")  # by stages, and the guard, which comes first, reads weights

Labels = dict[str, list[str]]
"""Those of each axis."""


class Patch(NamedTuple):
    """What is to change in a run: by field a number, a list, or options; and where each field is written.

    Options of a component replace it when `name` is among them, and update it otherwise.
    """

    values: Mapping[str, Any]
    places: Mapping[str, Address]


Draft = Sequence[Patch]
"""A run under construction: patches in the order in which they are applied."""


def as_patch(values: Mapping[str, Any], address: Address) -> Patch:
    """Return a patch all of which is written at, or blamed on, one address."""
    return Patch(values, dict.fromkeys(values, address))


def validates(run: Run) -> bool:
    """Return whether the partition of a run holds samples back for validation."""
    return bool(run.record["partition"].get("validation_share"))


class Patcher:
    """Reads the patches of one spec and turns drafts into runs; without `home`, the project, there are patches only.

    `weights` collects files of pretrained weights: content → path below `home`, of several the first named.
    """

    def __init__(self, document: Document, catalog: Catalog, home: Path | None = None) -> None:
        self.document = document
        self.catalog = catalog
        self.home = home
        self.weights: dict[str, str] = {}
        self._with_content: dict[str, dict[str, Any]] = {}

    def read(self, values: Any, address: Address) -> Patch:
        """Return a mapping of run fields as a patch. Raises :class:`UserError` for what is valid in no run."""
        self.document.check(isinstance(values, dict), address, f"{show(values)} must be `field: value` lines")
        places = {field: (*address, field) for field in values}
        return Patch({field: self._checked(field, value, places[field]) for field, value in values.items()}, places)

    def read_field(self, field: str, value: Any, address: Address) -> Patch:
        """Return the patch that sets one run field. Raises as :meth:`read`."""
        return as_patch({field: self._checked(field, value, address)}, address)

    def run(self, draft: Draft, profile: str) -> Run:
        """Return the run that a draft makes, every default written out; equal parts of records are shared objects."""
        values: dict[str, Any] = {}
        for patch in draft:
            for field, part in patch.values.items():
                updates = isinstance(part, dict) and "name" not in part
                values[field] = {**values.get(field, {}), **part} if updates else part
        record: dict[str, Any] = {}
        for field in RUN_FIELDS:
            if field in LISTS:
                if values.get(field):
                    record[field] = self._entries(LISTS[field], values[field], self.place(draft, field))
            elif field not in values and field not in (*SETTINGS, "seed"):
                raise self.document.error(BASE, f"no {field}; state it here or on an axis")
            else:
                part = values.get(field, 0 if field in SCALARS else {})
                record[field] = part if field in SCALARS else self._part(draft, field, part)
        run = Run({**record, "profile": profile})
        if reason := why_not_stopped_early(run.training, run.evaluation, validates(run)):
            raise self.document.error(self.place(draft, "training", "patience"), reason)
        return run

    def place(self, draft: Draft, field: str, option: str | None = None) -> Address:
        """Return where the last patch of a draft that states a field, or an option of it, does so."""
        for patch in reversed(draft):
            if field in patch.values and (option is None or option in patch.values[field]):
                here = patch.places[field]
                return (*here, option) if option is not None and (*here, option) in self.document.marks else here
        return BASE

    def _checked(self, field: str, value: Any, address: Address) -> Any:
        """Return the value of a run field in a patch: a number, a list, or options."""
        if field in SCALARS:
            least, whole = SCALARS[field][0], isinstance(value, int) and not isinstance(value, bool)
            message = f"{show(value)} must be a whole number, at least {least}"
            self.document.check(whole and value >= least, address, message)
        elif field in LISTS:
            self._entries(LISTS[field], value, address)
        elif field in COMPONENTS or field in SETTINGS:
            value = self._options(field, value, address)
            self._part([as_patch({field: value}, address)], field, value, complete=False)
        else:
            part, dot, option = field.partition(".")
            hint = f"; write {part}: {{{option}: …}}" if dot else did_you_mean(field, list(RUN_FIELDS))
            raise self.document.error(address, f"unknown run field{hint}")
        return value

    def _options(self, kind: str, value: Any, address: Address) -> dict[str, Any]:
        """Return an entry, given by its name or with options, or a settings group, as options."""
        if isinstance(value, str) and kind not in SETTINGS:
            return {"name": value}
        if isinstance(value, dict):
            return value
        what = "`option: value` lines" if kind in SETTINGS else f"the name of a {kind} or its options"
        raise self.document.error(address, f"{show(value)} must be {what}")

    def _entries(self, kind: str, values: Any, address: Address) -> list[dict[str, Any]]:
        """Return the entries of a list, sorted by name."""
        self.document.check(isinstance(values, list), address, f"{show(values)} must be a list")
        entries: dict[str, dict[str, Any]] = {}
        for index, value in enumerate(values):
            here = (*address, index)
            named = isinstance(value, str) or (isinstance(value, dict) and "name" in value)
            self.document.check(named, here, f"{show(value)} must be a name, or {{name: …}} with options")
            options = self._options(kind, value, here)
            entry = self._part([as_patch({kind: options}, here)], kind, options)
            self.document.check(entry["name"] not in entries, here, f"the {kind} {show(entry['name'])} is named twice")
            entries[entry["name"]] = entry
        return [entries[name] for name in sorted(entries)]

    def _part(self, draft: Draft, field: str, options: dict[str, Any], complete: bool = True) -> dict[str, Any]:
        """Return a part of a run with defaults written out; of a patch, which need not be complete, only check it."""
        if field not in SETTINGS and "name" not in options:
            if not complete:
                return {}
            address = self.place(draft, field, next(iter(options))) if options else BASE
            raise self.document.error(address, f"an option without a {field}: no name is stated for these runs")
        try:
            part = self.catalog.validate(field, options)
            return self._with_content_of_file(field, part) if self.home else part
        except Invalid as error:
            if error.option is None and not complete:
                return {}
            option = error.option or next(iter(re.findall(rf"\b{field}\.(\w+)", error.message)), "name")
            address = self.place(draft, field, option if option in options else "name")
            index = () if error.index is None else (error.index,)
            raise self.document.error((*address, *index), error.message) from None

    def _with_content_of_file(self, field: str, part: dict[str, Any]) -> dict[str, Any]:
        """Return a part with what is in the file that it names, if it does. Equal parts of records are shared."""
        option = {"backbone": "pretrained", "partition": "path"}.get(field, "")
        if not (path := part.get(option)):
            return part
        key = canonical_json(part)
        if key not in self._with_content:
            try:
                content = self._content(path, split=field == "partition")
            except ValueError as error:
                raise Invalid(option, None, f"{show(path)}: {error}") from None
            if part.get("content") not in (None, content):
                raise Invalid("content", None, f"{show(part['content'])} is not what is in {path}: {content}")
            self._with_content[key] = {**part, "content" if field == "partition" else option: content}
        return self._with_content[key]

    def _content(self, path: str, split: bool) -> str:
        """Return what stands for a file of a split or of weights in a run. Raises ``ValueError`` for a wrong path.

        The guard watches `specs/`, so a change of a split is noticed.
        """
        assert self.home
        folder = path.split("/")[0]
        below = (self.home / ("specs" if split else "")).resolve()
        plain = folder == "specs" if split else all(map(_PLAIN_NAME.fullmatch, path.split("/")))
        if not plain or not (self.home / path).resolve().is_relative_to(below):
            where = "a path inside the project, of plain names with forward slashes between them"
            raise ValueError(f"must be {'a file in specs/, such as specs/mnist/split.csv' if split else where}")
        if not split and folder in _WRITTEN:
            raise ValueError(f"lies in {folder}/, where stages write; copy it to a folder of its own")
        content = content_of(self.home, path)
        if not split:
            self.weights.setdefault(content, path)
        elif content.startswith(ABSENT):
            raise ValueError("no such file")
        return content


class Axis(NamedTuple):
    """What varies: a patch per label, and what a value of a component's axis says of other parts of the run."""

    name: str  # with a dot it sets one option of a part
    patches: dict[str, Patch]
    settings: dict[str, Patch]


class Point(NamedTuple):
    """One run of a grid before its record is made: a label per axis, and what the spec says about it."""

    labels: dict[str, str]
    draft: Draft


@dataclass(frozen=True)
class Points:
    """All runs of a grid; all labels of each axis in order, and those that `only` leaves in."""

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
    base, points = patcher.read(grid.base, BASE), list[Point]()
    # Settings of a label are about what other axes have chosen, and an option set by an axis of its own survives
    # whatever replaces the whole part.
    patches = [(axis.name, axis.patches) for axis in axes if "." not in axis.name]
    patches += [(axis.name, axis.settings) for axis in axes]
    options = [(axis.name, axis.patches) for axis in axes if "." in axis.name]
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
    """Return whether a run or cell with these labels is among the selected ones."""
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
    items = enumerate(values) if isinstance(values, list) else values.items() if isinstance(values, dict) else ()
    for key, value in items:
        named = value["name"] if isinstance(value, dict) and "name" in value else value
        try:
            yield label_text(key if isinstance(values, dict) else named), value, (*address, key)
        except ValueError:
            raise document.error((*address, key), f"{show(value)} has no label; write `label: value` lines") from None


def check_option(part: str, option: str, address: Address, patcher: Patcher) -> None:
    """Raise :class:`UserError` when no entry of this part of a run has such an option."""
    document, named = patcher.document, part in LISTS or (part in COMPONENTS and option == "name")
    document.check(not named, address, f"call the axis {part!r}")
    document.check_known("part of a run", part, [*COMPONENTS, *SETTINGS], address)
    document.check_known("option", option, patcher.catalog.all_options(part), address)


def without_effect(points: Points, patcher: Patcher) -> Iterator[str]:
    """Yield a line for each setting of the base that something else in the same files sets in every run."""
    document, drafts = patcher.document, [point.draft for point in points.points]
    base = drafts[0][0]
    for field, part in base.values.items():
        for option in part if isinstance(part, dict) else [None]:
            setters = [_setter(draft, field, option) for draft in drafts]
            if any(patch is base for patch in setters):
                continue
            address = patcher.place([base], field, option)
            places = dict.fromkeys(patch.places[field] for patch in setters)
            mark, files = document.mark(address), {document.mark(place).file for place in ((), *places)}
            if mark.file in files:  # what is inherited may well be overridden by what extends it
                others = " and ".join(dict.fromkeys(dotted(place[:3]) for place in places))
                yield f"{mark}: {dotted(address)} has no effect: {others} set it everywhere"
                break


def _setter(draft: Draft, field: str, option: str | None) -> Patch:
    """Return the last patch that states an option, or that replaces the whole field."""
    stating = (patch for patch in reversed(draft) if field in patch.values)
    found: Patch = next(patch for patch in stating if option is None or {option, "name"} & {*patch.values[field]})
    return found


def _survives(option: Patch, change: Patch, patcher: Patcher) -> bool:
    """Return whether what an axis of an option set holds for the other entry that a change puts in the place."""
    ((field, stated),) = option.values.items()
    part = change.values.get(field, {})
    known = [info.name for info in patcher.catalog.options(field, part["name"])] if "name" in part else []
    return all(name in known and name not in part for name in stated)


def _read_axis(name: str, values: Any, patcher: Patcher) -> Axis:
    document, address = patcher.document, ("grid", "axes", name)
    part, dot, option = name.partition(".")
    many = isinstance(values, list | dict) and values
    document.check(many, address, f"{show(values)} must be a list of values or `label: value` lines")
    if dot:
        check_option(part, option, address, patcher)
    elif name in COMPONENTS:
        one = isinstance(values, dict) and "name" in values
        message = f"a {name} where a list of them belongs; write it as [{{name: …}}]"
        document.check(not one, (*address, "name"), message)
    elif name not in RUN_FIELDS:
        allowed = f"letters, digits, '_', '-', and a name that is none of {', '.join(_RESERVED)}"
        named = _AXIS_NAME.fullmatch(name) and name not in _RESERVED
        document.check(named, address, f"{show(name)} cannot name an axis; use {allowed}")
        hint = did_you_mean(name, list(RUN_FIELDS))
        message = f"no run field, so its values must be `label: patch of a run` lines{hint}"
        document.check(isinstance(values, dict), address, message)
    axis = Axis(name, {}, {})
    for label, value, here in labelled(values, address, document):
        twice = f"a second value labelled {show(label)}; write `label: value` lines"
        document.check(label not in axis.patches, here, twice)
        if dot:
            axis.patches[label] = patcher.read_field(part, {option: value}, here)
        elif name not in RUN_FIELDS:
            axis.patches[label] = patcher.read(value, here)
        elif name in COMPONENTS and isinstance(value, dict):  # what the value states of the run beside the component
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
    """Check that another axis sets nothing that a label sets beside its component: it would be lost without a word."""
    others = (*other.patches.values(), *other.settings.values())
    for patch, theirs in itertools.product(axis.settings.values(), others):
        for name in patch.values.keys() & theirs.values.keys():
            part, option = patch.values[name], None
            if isinstance(part, dict):
                option = min({*part} & {*theirs.values[name]} - {"name"}, default=None)
                if option is None and ("name" not in part or "." in other.name):
                    continue
            message = f"the axis {other.name!r} sets this too; leave it to one of them, or write an override"
            raise patcher.document.error(patcher.place([patch], name, option), message)
