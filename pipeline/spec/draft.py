"""Runs under construction: patches laid over one another, in which every value remembers where it was written.

Hence a bad value is reported at the axis, override or base that stated it, however many runs it ends up in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.fields import Fields, Invalid
from pipeline.spec.pretrained import Weights, content_of
from pipeline.spec.run import ABSENT, COMPONENTS, LISTS, RUN_FIELDS, SETTINGS, canonical_json
from pipeline.spec.schema import SCALARS
from pipeline.spec.yamlfile import Address, Document, show


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value and where it was written."""

    value: Any
    address: Address


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one entry or settings group; `replaces` what was said before, or updates it."""

    values: dict[str, Sourced]
    replaces: bool


Patch = dict[str, Options | Sourced]
"""Per run field what is to change. A run under construction is itself a patch, of nothing."""


def compose(first: Patch, then: Patch) -> Patch:
    """The patch that has the effect of both, in this order."""
    result = dict(first)
    for field, part in then.items():
        before = result.get(field)
        if isinstance(part, Options) and not part.replaces and isinstance(before, Options):
            part = Options({**before.values, **part.values}, before.replaces)
        result[field] = part
    return result


class Patcher:
    """Reads the patches of one spec and turns composed patches into records of runs."""

    def __init__(self, document: Document, fields: Fields, weights: Weights | None = None) -> None:
        """Without `weights` there are patches only and no records."""
        self.document = document
        self.fields = fields
        self.weights = weights
        self._pretrained: dict[str, dict[str, Any]] = {}
        self._splits: dict[str, dict[str, Any]] = {}

    def read(self, values: Any, address: Address) -> Patch:
        """A mapping of run fields as a patch. Raises :class:`UserError` for what cannot be valid in any run."""
        if not isinstance(values, dict):
            raise self.document.error(address, f"{show(values)} must be `field: value` lines")
        return {field: self.read_field(field, value, (*address, field)) for field, value in values.items()}

    def read_field(self, field: str, value: Any, address: Address) -> Options | Sourced:
        """The value of one run field. Raises as :meth:`read`."""
        if field in SCALARS:
            least = SCALARS[field][0]
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise self.document.error(address, f"{show(value)} must be a whole number, at least {least}")
            return Sourced(value, address)
        if field in LISTS:
            self._entries(LISTS[field], value, address)
            return Sourced(value, address)
        if field not in COMPONENTS and field not in SETTINGS:
            part, dot, option = field.partition(".")
            hint = f"; write {part}: {{{option}: …}}" if dot else did_you_mean(field, list(RUN_FIELDS))
            raise self.document.error(address, f"unknown run field{hint}")
        options = self._options(field, value, address)
        self._check(field, options)
        return options

    def read_option(self, field: str, option: str, value: Any, address: Address) -> Patch:
        """The patch that sets one option of a component or settings group. Raises as :meth:`read`."""
        options = Options({option: Sourced(value, address)}, replaces=False)
        self._check(field, options)
        return {field: options}

    def record(self, draft: Patch, profile: str) -> dict[str, Any]:
        """The complete record of a run, every default written out; equal parts of records are shared objects.

        Lists are sorted by name, and one that is empty is left out.

        Raises:
            UserError: A field is missing, or the parts that the patches have put together do not fit.
        """
        record: dict[str, Any] = {}
        for field in RUN_FIELDS:
            part = draft.get(field)
            if field in LISTS:
                if isinstance(part, Sourced) and part.value:
                    record[field] = self._entries(LISTS[field], part.value, part.address)
            elif isinstance(part, Sourced):
                record[field] = part.value
            elif field == "seed":
                record[field] = 0
            elif part is None and field not in SETTINGS:
                raise self.document.error(("grid", "base"), f"no {field}; state it here or on an axis")
            else:
                record[field] = self._validate(field, part or Options({}, replaces=False))
        return {**record, "profile": profile}

    def _options(self, kind: str, value: Any, address: Address) -> Options:
        """An entry, by its name or with options, or a settings group, as written."""
        if isinstance(value, str) and kind not in SETTINGS:
            return Options({"name": Sourced(value, address)}, replaces=True)
        if isinstance(value, dict):
            values = {option: Sourced(item, (*address, option)) for option, item in value.items()}
            return Options(values, replaces=kind not in SETTINGS and "name" in values)
        what = "`option: value` lines" if kind in SETTINGS else f"the name of a {kind} or its options"
        raise self.document.error(address, f"{show(value)} must be {what}")

    def _entries(self, kind: str, values: Any, address: Address) -> list[dict[str, Any]]:
        """The entries of a list, sorted by name. Raises as :meth:`read`, also for one that is named twice."""
        if not isinstance(values, list):
            raise self.document.error(address, f"{show(values)} must be a list")
        entries: dict[str, dict[str, Any]] = {}
        for index, value in enumerate(values):
            here = (*address, index)
            if not isinstance(value, str) and not (isinstance(value, dict) and "name" in value):
                raise self.document.error(here, f"{show(value)} must be a name, or {{name: …}} with options")
            entry = self._validate(kind, self._options(kind, value, here))
            if entry["name"] in entries:
                raise self.document.error(here, f"the {kind} {show(entry['name'])} is named twice")
            entries[entry["name"]] = entry
        return [entries[name] for name in sorted(entries)]

    def _check(self, field: str, options: Options) -> None:
        """What can be said about options alone: those of a component without a name wait until they meet one."""
        if field in SETTINGS or "name" in options.values:
            self._validate(field, options, complete=False)

    def _validate(self, field: str, options: Options, complete: bool = True) -> dict[str, Any]:
        named = options.values.get("name")
        try:
            if field not in SETTINGS:
                if named is None:
                    address = next(iter(options.values.values())).address if options.values else ("grid", "base")
                    raise self.document.error(address, f"an option without a {field}: no name is stated for these runs")
                self.fields.check_name(field, named.value)
            part = self.fields.validate(field, {option: item.value for option, item in options.values.items()})
            if field == "partition" and part.get("path"):
                return self._with_split(part)
            return self._with_content(part) if field == "backbone" and part.get("pretrained") else part
        except Invalid as error:
            if error.option is None and not complete:
                return {}
            told = error.option or next(iter(re.findall(rf"\b{field}\.(\w+)", error.message)), "")
            at_fault = options.values.get(told, named)
            raise self._located(at_fault, error) from None

    def _with_content(self, backbone: dict[str, Any]) -> dict[str, Any]:
        """A backbone whose pretrained weights are named by what is in their file."""
        if self.weights is None:
            return backbone
        key = canonical_json(backbone)
        if key not in self._pretrained:  # equal parts of records are shared
            try:
                content = self.weights.content(backbone["pretrained"])
            except ValueError as error:
                raise Invalid("pretrained", None, f"{show(backbone['pretrained'])} {error}") from None
            self._pretrained[key] = {**backbone, "pretrained": content}
        return self._pretrained[key]

    def _with_split(self, partition: dict[str, Any]) -> dict[str, Any]:
        """A partition from a file, with what is in it. The guard watches `specs/`, so a change there is noticed."""
        if self.weights is None:
            return partition
        key = canonical_json(partition)
        if key not in self._splits:
            path, home = partition["path"], self.weights.home
            inside = path.startswith("specs/") and (home / path).resolve().is_relative_to((home / "specs").resolve())
            content = content_of(home, path) if inside else ""
            if not content or content.startswith(ABSENT):
                what = "no such file" if content else "must be a file in specs/, such as specs/mnist/split.csv"
                raise Invalid("path", None, f"{show(path)}: {what}")
            if partition.get("content") not in (None, content):
                raise Invalid("content", None, f"{show(partition['content'])} is not what is in {path}: {content}")
            self._splits[key] = {**partition, "content": content}
        return self._splits[key]

    def _located(self, at_fault: Sourced | None, error: Invalid) -> UserError:
        address = at_fault.address if at_fault else ("grid", "base")
        if error.index is not None:
            address = (*address, error.index)
        return self.document.error(address, error.message)


def as_patch(values: Mapping[str, Any], address: Address) -> Patch:
    """A patch made by the program, e.g. by a built-in profile; messages about it point at `address`."""
    patch: Patch = {}
    for field, value in values.items():
        if isinstance(value, dict):
            options = {option: Sourced(item, address) for option, item in value.items()}
            patch[field] = Options(options, replaces="name" in value)
        else:
            patch[field] = Sourced(value, address)
    return patch
