"""Drafts of runs: patches that are applied one after the other.

A bad value is reported at the axis, override or base that states it, even if many runs have it: the error names the
last patch that states it. A record has the digest of a file of weights in place of its path, so the same file at
another path gives the same run. The record of a split has its path and its digest. If a file of weights is missing,
its path replaces the digest: the spec is valid, and only the stage that reads the file fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pflcore.registry import did_you_mean
from pflcore.settings import metrics_error, patience_error
from pipeline.spec.catalog import Catalog, Invalid
from pipeline.spec.run import ABSENT, COMPONENTS, LISTS, OPTIONAL, RUN_FIELDS, SETTINGS, Run, canonical_json, content_of
from pipeline.spec.schema import SCALARS
from pipeline.spec.yamlfile import Address, Document, show

BASE: Address = ("grid", "base")
_PLAIN_NAME = re.compile(r"[\w+=@,][\w.+=@, -]*")  # without special meaning to DVC or a file system
_FILE_OPTIONS = {"backbone": "pretrained", "features": "weights", "partition": "path", "condition": "path"}
_WRITTEN = ("artifacts", "build", "reports", "stages")  # by stages; the guard reads weights before them


@dataclass(frozen=True, eq=False)  # so that patches are keys
class Patch:
    """A change of a run: a number, a list or options per field, and the address where each field is written.

    Options of a component replace the component if they include `name`; otherwise they update it.
    """

    values: Mapping[str, Any]
    places: Mapping[str, Address]


Draft = Sequence[Patch]
"""A run under construction: patches in the order in which they are applied."""


def as_patch(values: Mapping[str, Any], address: Address) -> Patch:
    """Return a patch whose fields have one address, at which errors are reported."""
    return Patch(values, dict.fromkeys(values, address))


def has_validation(run: Run) -> bool:
    """Return whether the partition of a run holds samples back for validation."""
    return bool(run.record["partition"].get("validation_share"))


def has_novel(run: Run) -> bool:
    """Return whether a run may have novel clients, which do not train."""
    return any(value for name, value in run.record["partition"].items() if name.startswith("novel_"))


@dataclass(eq=False)
class Patcher:
    """Reads the patches of one spec and turns drafts into runs. Without `home`, the project's folder, it only reads.

    `weights` collects files of weights: digest → path in `home`, the first if several files have the same content.
    """

    document: Document
    catalog: Catalog
    home: Path | None = None

    def __post_init__(self) -> None:
        self.weights: dict[str, str] = {}
        self._part_with_digest: dict[str, dict[str, Any]] = {}
        self._merged = cache(self._merge)  # most runs of a grid share most parts

    def read(self, values: Any, address: Address) -> Patch:
        """Return a mapping of run fields as a patch. Raises :class:`UserError` for a value that is valid in no run."""
        self.document.check(isinstance(values, dict), address, f"{show(values)} must be `field: value` lines")
        places = {field: (*address, field) for field in values}
        return Patch({field: self._checked(field, value, places[field]) for field, value in values.items()}, places)

    def read_field(self, field: str, value: Any, address: Address) -> Patch:
        """Return the patch that sets one run field. Raises as :meth:`read`."""
        return as_patch({field: self._checked(field, value, address)}, address)

    def run(self, draft: Draft, profile: str) -> Run:
        """Return the run of a draft, with every default written out. Equal parts of records are one object."""
        patches: dict[str, list[Patch]] = {field: [] for field in RUN_FIELDS}
        for patch in draft:
            for field in patch.values:
                patches[field].append(patch)
        parts = {field: self._merged(field, tuple(field_patches)) for field, field_patches in patches.items()}
        record = {field: part for field, part in parts.items() if part is not None}
        run = Run({**record, "profile": profile})
        if reason := patience_error(run.training, run.evaluation, has_validation(run)):
            raise self.document.error(self.place(draft, "training", "patience"), reason)
        facts = self.catalog.entry("backbone", run.backbone).facts
        text, boxes = facts.get("takes") == "text", facts.get("predicts") == "boxes"
        if reason := metrics_error(run.evaluation, text=text, boxes=boxes):
            raise self.document.error(self.place(draft, "evaluation", "metrics"), reason)
        return run

    def _merge(self, field: str, patches: Draft) -> Any:
        """Return a run field with every default written out, from the patches that state it; None to leave it out."""
        value: Any = 0 if field in SCALARS else {}
        for patch in patches:
            part = patch.values[field]
            value = {**value, **part} if isinstance(part, dict) and "name" not in part else part
        if field in LISTS:
            return self._entries(LISTS[field], value, self.place(patches, field)) if value else None
        if not patches and field not in (*SETTINGS, *OPTIONAL, "seed"):
            raise self.document.error(BASE, f"no {field}; state it here or on an axis")
        if field not in SCALARS:
            value = self._part(patches, field, {**OPTIONAL.get(field, {}), **value})
        return value if value != OPTIONAL.get(field) else None

    def place(self, draft: Draft, field: str, option: str | None = None) -> Address:
        """Return the address of a field, or of an option of it, in the last patch of a draft that states it."""
        for patch in reversed(draft):
            if field in patch.values and (option is None or option in patch.values[field]):
                address = patch.places[field]
                if option is not None and (*address, option) in self.document.marks:
                    return (*address, option)
                return address
        return BASE

    def _checked(self, field: str, value: Any, address: Address) -> Any:
        """Return the checked value of a run field in a patch: a number, a list, or options."""
        if field in SCALARS:
            minimum, _ = SCALARS[field]
            is_int = isinstance(value, int) and not isinstance(value, bool)
            message = f"{show(value)} must be a whole number, at least {minimum}"
            self.document.check(is_int and value >= minimum, address, message)
        elif field in LISTS:
            self._entries(LISTS[field], value, address)
        elif field in COMPONENTS or field in SETTINGS:
            value = self._options(field, value, address)
            self._part([as_patch({field: value}, address)], field, value, complete=False)
        else:
            part, dot, option = field.partition(".")
            if not dot and (group := self.catalog.group_of(field)):
                part, option = group, field
            hint = f"; write {part}: {{{option}: …}}" if option else did_you_mean(field, list(RUN_FIELDS))
            raise self.document.error(address, f"unknown run field{hint}")
        return value

    def _options(self, kind: str, value: Any, address: Address) -> dict[str, Any]:
        """Return the options of an entry, which may be given by its name alone, or of a settings group."""
        if isinstance(value, str) and kind not in SETTINGS:
            return {"name": value}
        if isinstance(value, dict):
            return value
        expected = "`option: value` lines" if kind in SETTINGS else f"the name of a {kind} or its options"
        raise self.document.error(address, f"{show(value)} must be {expected}")

    def _entries(self, kind: str, values: Any, address: Address) -> list[dict[str, Any]]:
        """Return the entries of a list, sorted by name."""
        self.document.check(isinstance(values, list), address, f"{show(values)} must be a list")
        entries: dict[str, dict[str, Any]] = {}
        for index, value in enumerate(values):
            place = (*address, index)
            named = isinstance(value, str) or (isinstance(value, dict) and "name" in value)
            self.document.check(named, place, f"{show(value)} must be a name, or {{name: …}} with options")
            options = self._options(kind, value, place)
            entry = self._part([as_patch({kind: options}, place)], kind, options)
            self.document.check(entry["name"] not in entries, place, f"the {kind} {show(entry['name'])} is named twice")
            entries[entry["name"]] = entry
        return [entries[name] for name in sorted(entries)]

    def _part(self, draft: Draft, field: str, options: dict[str, Any], complete: bool = True) -> dict[str, Any]:
        """Return a part of a run with defaults written out. If it is not `complete`, as in a patch, only check it."""
        if field not in SETTINGS and "name" not in options:
            if not complete:
                return {}
            address = self.place(draft, field, next(iter(options))) if options else BASE
            raise self.document.error(address, f"these runs have no {field} for this option; state its `name`")
        try:
            part = self.catalog.validate(field, options)
            return self._with_file_digest(field, part) if self.home else part
        except Invalid as error:
            if error.option is None and not complete:
                return {}
            option = error.option or next(iter(re.findall(rf"\b{field}\.(\w+)", error.message)), "name")
            address = self.place(draft, field, option if option in options else "name")
            raise self.document.error((*address, *error.inside), error.message) from None

    def _with_file_digest(self, field: str, part: dict[str, Any]) -> dict[str, Any]:
        """Return a part with the digest of the file that it names, if any. Equal parts of records are one object."""
        if field == "dataset" and part.get("features"):
            dataset = {**part, "features": self._with_file_digest("features", part["features"])}
            part = self._part_with_digest.setdefault(canonical_json(dataset), dataset)
        option = _FILE_OPTIONS.get(field, "")
        if field == "dataset" and any(info.name == "content" for info in self.catalog.options(field, part["name"])):
            option = "encoder"
        if not (path := part.get(option)):
            return part
        key = option + canonical_json(part)
        if key not in self._part_with_digest:
            try:
                digest = self._file_digest(path, option)
            except ValueError as error:
                where: tuple[str, Address] = ("features", (option,)) if field == "features" else (option, ())
                raise Invalid(*where, f"{show(path)}: {error}") from None
            if part.get("content") not in (None, digest):
                raise Invalid("content", (), f"{show(part['content'])} is not what is in {path}: {digest}")
            # The digest replaces the path of weights; a split and the folder of an encoder keep their path.
            self._part_with_digest[key] = {**part, "content" if option in ("path", "encoder") else option: digest}
        return self._part_with_digest[key]

    def _file_digest(self, path: str, option: str) -> str:
        """Return the digest of a split (option `path`), of weights, or of the folder of an encoder (`encoder`).

        A split must be in `specs/`, which the guard watches, so that its changes are noticed. Raises ``ValueError``.
        """
        assert self.home
        names, file = path.split("/"), self.home / path
        if option == "path":
            if names[0] != "specs" or not file.resolve().is_relative_to((self.home / "specs").resolve()):
                raise ValueError("must be a file in specs/, such as specs/mnist/split.csv")
        elif not all(map(_PLAIN_NAME.fullmatch, names)) or not file.resolve().is_relative_to(self.home.resolve()):
            raise ValueError("must be a path inside the project, of plain names with forward slashes between them")
        elif names[0] in _WRITTEN:
            raise ValueError(f"lies in {names[0]}/, where stages write; copy it to a folder of its own")
        if file.exists() and file.is_dir() != (option == "encoder"):
            raise ValueError("is no folder" if option == "encoder" else "is a folder, no file")
        digest = content_of(self.home, path)
        if option != "path":
            self.weights.setdefault(digest, path)
        elif digest.startswith(ABSENT):
            raise ValueError("no such file")
        return digest
