"""Runs under construction: patches laid over one another, which become records.

Hence a bad value is reported at the axis, override or base that stated it, however many runs it ends up in: the last
patch that states it is looked up when it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pflcore.registry import did_you_mean
from pflcore.settings import impatience
from pipeline.spec.fields import Fields, Invalid
from pipeline.spec.pretrained import Weights, content_of
from pipeline.spec.run import ABSENT, COMPONENTS, LISTS, RUN_FIELDS, SETTINGS, Run, canonical_json
from pipeline.spec.schema import SCALARS
from pipeline.spec.yamlfile import Address, Document, show


@dataclass(frozen=True, slots=True)
class Patch:
    """What is to change in a run.

    Attributes:
        values: By run field a number, a list, or options; those of a component replace it when `name` is among them.
        places: Where the value of each field is written.
    """

    values: dict[str, Any]
    places: dict[str, Address]


Draft = Sequence[Patch]
"""A run under construction: patches in the order in which they are applied."""


def composed(draft: Draft) -> dict[str, Any]:
    """Return what patches, one laid over the other, say of each field of a run."""
    values: dict[str, Any] = {}
    for patch in draft:
        for field, part in patch.values.items():
            updates = isinstance(part, dict) and "name" not in part
            values[field] = {**values.get(field, {}), **part} if updates else part
    return values


def validates(run: Run) -> bool:
    """Return whether the partition of a run holds samples back for validation."""
    return bool(run.record["partition"].get("validation_share"))


class Patcher:
    """Reads the patches of one spec and turns drafts into runs."""

    def __init__(self, document: Document, fields: Fields, weights: Weights | None = None) -> None:
        """Without `weights` there are patches only and no runs."""
        self.document = document
        self.fields = fields
        self.weights = weights
        self._with_content: dict[str, dict[str, Any]] = {}

    def read(self, values: Any, address: Address) -> Patch:
        """Return a mapping of run fields as a patch.

        Raises:
            UserError: There is something that cannot be valid in any run.
        """
        if not isinstance(values, dict):
            raise self.document.error(address, f"{show(values)} must be `field: value` lines")
        read = [self.read_field(field, value, (*address, field)) for field, value in values.items()]
        return Patch(
            {field: part for patch in read for field, part in patch.values.items()},
            {field: place for patch in read for field, place in patch.places.items()},
        )

    def read_field(self, field: str, value: Any, address: Address) -> Patch:
        """Return the patch that sets one run field. Raises as :meth:`read`."""
        patch = Patch({field: value}, {field: address})
        if field in SCALARS:
            least = SCALARS[field][0]
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise self.document.error(address, f"{show(value)} must be a whole number, at least {least}")
        elif field in LISTS:
            self._entries(LISTS[field], value, address)
        elif field in COMPONENTS or field in SETTINGS:
            patch = Patch({field: self._options(field, value, address)}, {field: address})
            self._part([patch], field, patch.values[field], complete=False)
        else:
            part, dot, option = field.partition(".")
            hint = f"; write {part}: {{{option}: …}}" if dot else did_you_mean(field, list(RUN_FIELDS))
            raise self.document.error(address, f"unknown run field{hint}")
        return patch

    def read_option(self, field: str, option: str, value: Any, address: Address) -> Patch:
        """Return the patch that sets one option of a component or settings group. Raises as :meth:`read`."""
        patch = Patch({field: {option: value}}, {field: address})
        self._part([patch], field, patch.values[field], complete=False)
        return patch

    def run(self, draft: Draft, profile: str) -> Run:
        """Return the run that a draft makes, every default written out; equal parts of records are shared objects.

        Lists are sorted by name, and one that is empty is left out.

        Raises:
            UserError: A field is missing, or the parts that the patches have put together do not fit.
        """
        values = composed(draft)
        record: dict[str, Any] = {}
        for field in RUN_FIELDS:
            if field in LISTS:
                if values.get(field):
                    record[field] = self._entries(LISTS[field], values[field], self.place(draft, field))
            elif field not in values and field not in (*SETTINGS, "seed"):
                raise self.document.error(("grid", "base"), f"no {field}; state it here or on an axis")
            else:
                part = values.get(field, 0 if field in SCALARS else {})
                record[field] = part if field in SCALARS else self._part(draft, field, part)
        run = Run({**record, "profile": profile})
        if reason := impatience(run.training, run.evaluation, validates(run)):
            raise self.document.error(self.place(draft, "training", "patience"), reason)
        return run

    def place(self, draft: Draft, field: str, option: str | None = None) -> Address:
        """Return where the last patch of a draft that states a field, or an option of it, does so."""
        for patch in reversed(draft):
            if field in patch.values and (option is None or option in patch.values[field]):
                here = patch.places[field]
                return (*here, option) if option is not None and (*here, option) in self.document.marks else here
        return ("grid", "base")

    def _options(self, kind: str, value: Any, address: Address) -> dict[str, Any]:
        """Return an entry, given by its name or with options, or a settings group, as options."""
        if isinstance(value, str) and kind not in SETTINGS:
            return {"name": value}
        if isinstance(value, dict):
            return value
        what = "`option: value` lines" if kind in SETTINGS else f"the name of a {kind} or its options"
        raise self.document.error(address, f"{show(value)} must be {what}")

    def _entries(self, kind: str, values: Any, address: Address) -> list[dict[str, Any]]:
        """Return the entries of a list, sorted by name. Raises as :meth:`read`, also for one that is named twice."""
        if not isinstance(values, list):
            raise self.document.error(address, f"{show(values)} must be a list")
        entries: dict[str, dict[str, Any]] = {}
        for index, value in enumerate(values):
            here = (*address, index)
            if not isinstance(value, str) and not (isinstance(value, dict) and "name" in value):
                raise self.document.error(here, f"{show(value)} must be a name, or {{name: …}} with options")
            options = self._options(kind, value, here)
            entry = self._part([Patch({kind: options}, {kind: here})], kind, options)
            if entry["name"] in entries:
                raise self.document.error(here, f"the {kind} {show(entry['name'])} is named twice")
            entries[entry["name"]] = entry
        return [entries[name] for name in sorted(entries)]

    def _part(self, draft: Draft, field: str, options: dict[str, Any], complete: bool = True) -> dict[str, Any]:
        """Return a part of a run with defaults written out.

        Unless it is complete, its name or options may be missing, and options may contradict others.
        """
        if field not in SETTINGS and "name" not in options:
            if not complete:
                return {}
            address = self.place(draft, field, next(iter(options))) if options else ("grid", "base")
            raise self.document.error(address, f"an option without a {field}: no name is stated for these runs")
        try:
            if field not in SETTINGS:
                self.fields.check_name(field, options["name"])
            part = self.fields.validate(field, options)
            reads = {"backbone": "pretrained", "partition": "path"}.get(field, "")
            return self._with_file(field, part, self.weights) if self.weights and part.get(reads) else part
        except Invalid as error:
            if error.option is None and not complete:
                return {}
            option = error.option or next(iter(re.findall(rf"\b{field}\.(\w+)", error.message)), "name")
            address = self.place(draft, field, option if option in options else "name")
            index = () if error.index is None else (error.index,)
            raise self.document.error((*address, *index), error.message) from None

    def _with_file(self, field: str, part: dict[str, Any], weights: Weights) -> dict[str, Any]:
        """Return a part with what is in the file that it names. Equal parts of records are shared."""
        key = canonical_json(part)
        if key not in self._with_content:
            if field == "backbone":
                try:
                    more = {"pretrained": weights.content(part["pretrained"])}
                except ValueError as error:
                    raise Invalid("pretrained", None, f"{show(part['pretrained'])} {error}") from None
            else:
                more = {"content": _content_of_split(part, weights)}
            self._with_content[key] = {**part, **more}
        return self._with_content[key]


def _content_of_split(partition: dict[str, Any], weights: Weights) -> str:
    """Return what is in the file of a partition. The guard watches `specs/`, so a change there is noticed."""
    path, home = partition["path"], weights.home
    inside = path.startswith("specs/") and (home / path).resolve().is_relative_to((home / "specs").resolve())
    if not inside:
        raise Invalid("path", None, f"{show(path)}: must be a file in specs/, such as specs/mnist/split.csv")
    content = content_of(home, path)
    if content.startswith(ABSENT):
        raise Invalid("path", None, f"{show(path)}: no such file")
    if partition.get("content") not in (None, content):
        raise Invalid("content", None, f"{show(partition['content'])} is not what is in {path}: {content}")
    return content


def as_patch(values: Mapping[str, Any], address: Address) -> Patch:
    """Return a patch made by the program, e.g. by a built-in profile; messages about it point at `address`."""
    return Patch(dict(values), dict.fromkeys(values, address))
