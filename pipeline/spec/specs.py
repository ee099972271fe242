"""Finding and loading specs: ids, and validation of all that can be checked without making runs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.catalog import Catalog
from pipeline.spec.draft import Patcher
from pipeline.spec.editor_schema import figures_of
from pipeline.spec.fields import Fields
from pipeline.spec.grid import labelled
from pipeline.spec.inherit import inherit
from pipeline.spec.schema import SpecFile, known_keys
from pipeline.spec.yamlfile import Document, absolute, show, shown

_ID_PART = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_FAULTS = {  # pydantic's types of errors
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text; quote it",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be `key: value` lines",
    "model_type": "must be `key: value` lines",
    "too_short": "must not be empty",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be greater than {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be one of {expected}",
}


@dataclass(frozen=True)
class Spec:
    """A spec with all it inherits, structurally valid.

    Attributes:
        id: Path below the specs folder without ``.yaml``, e.g. ``fedtp/table2``.
        body: Its content.
        document: The merged plain data, with the file and line of every value.
        specs_dir: The folder that published values must stay in.
        files: The YAML files it was read from, its own first, as they are shown in messages.
    """

    id: str
    body: SpecFile
    document: Document
    specs_dir: Path
    files: tuple[str, ...]

    @property
    def abstract(self) -> bool:
        """Whether it is only to be inherited from."""
        return self.body.abstract

    @property
    def title(self) -> str:
        """Its heading; the id when none is stated."""
        return self.body.title or self.id


def flat_id(spec_id: str) -> str:
    """Return the id as one word of letters, digits, ``_`` and ``-``, as names of stages have to be."""
    return re.sub(r"[/.]", "-", spec_id)


def find_specs(specs_dir: Path) -> dict[str, Path]:
    """Return all specs below a folder, abstract ones included, by id in sorted order; hidden files are skipped.

    Raises:
        UserError: The folder is missing, a name is unsafe, a link leaves the folder, or two ids would share a stage.
    """
    specs_dir = absolute(specs_dir)
    if not specs_dir.is_dir():
        raise UserError(f"{specs_dir.name}: no such folder; specs are YAML files in it")
    paths: dict[str, Path] = {}
    for folder, folders, files in os.walk(specs_dir):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(folder) / name for name in folders):
            if path.is_symlink():
                raise UserError(f"{shown(path, specs_dir)}: a linked folder; specs are not looked for in it")
        for path in (Path(folder) / name for name in sorted(files)):
            if path.suffix == ".yml":
                raise UserError(f"{shown(path, specs_dir)}: specs end in .yaml; rename it")
            if path.suffix == ".yaml" and not path.name.startswith("."):
                paths[spec_id(path, specs_dir)] = path
    paths = dict(sorted(paths.items()))
    flat: dict[str, str] = {}
    for identity, path in paths.items():
        other = flat.setdefault(flat_id(identity), identity)
        if other != identity:
            raise UserError(
                f"{shown(path, specs_dir)}: its stage would be called {flat_id(identity)!r}, as that of "
                f"{shown(paths[other], specs_dir)}; rename one of them"
            )
    return paths


def spec_id(path: Path, specs_dir: Path) -> str:
    """Return the id of a spec file. Raises :class:`UserError` for an unsafe name or one out of the folder."""
    label = shown(path, specs_dir)
    if not path.resolve().is_relative_to(specs_dir.resolve()):
        raise UserError(f"{label}: leads out of {specs_dir.name}/; specs must stay inside it")
    parts = Path(os.path.relpath(absolute(path), absolute(specs_dir))).with_suffix("").parts
    for part in parts:
        if not _ID_PART.fullmatch(part):
            allowed = "use a-z, 0-9, '_', '.', '-', and begin with a letter or digit"
            raise UserError(f"{label}: the name {show(part)} is not allowed; {allowed}")
    return "/".join(parts)


def load_spec(path: Path, specs_dir: Path, catalog: Catalog) -> Spec:
    """Read a spec and what it extends, and validate its structure and each of its patches.

    Raises:
        UserError: With file, line and dotted address of what is wrong.
    """
    specs_dir = absolute(specs_dir)
    identity = spec_id(path, specs_dir)
    document, files = inherit(path, specs_dir)
    try:
        body = SpecFile.model_validate(document.data)
    except ValidationError as error:
        raise _structural(document, error) from None
    patcher = Patcher(document, Fields(catalog))
    # Every patch once, so that mistakes show even where no run uses the patch, as in abstract specs.
    patcher.read(body.grid.base, ("grid", "base"))
    for index, override in enumerate(body.grid.overrides):
        patcher.read(override.set, ("grid", "overrides", index, "set"))
    _check_only(body, files, document)
    known = figures_of(catalog)
    for index, name in enumerate(body.figures or ()):
        if name not in known:
            hint = did_you_mean(name, known)
            raise document.error(("figures", index), f"{show(name)} is no figure of a report{hint}")
    return Spec(identity, body, document, specs_dir, files)


def _structural(document: Document, error: ValidationError) -> UserError:
    # What is misspelt says more than what is missing because of it.
    details = min(error.errors(include_url=False), key=lambda item: item["type"] == "missing")
    # Pydantic marks a bad key of a mapping by a last step of its own.
    loc = tuple(part for part in details["loc"] if part != "[key]")
    if details["type"] == "extra_forbidden":
        return document.error(loc, f"unknown key{did_you_mean(str(loc[-1]), known_keys(loc))}")
    if details["type"] == "missing":
        return document.error(loc[:-1], f"{show(loc[-1])} is missing")
    if details["type"] == "value_error":
        return document.error(loc, str(details["ctx"]["error"]))
    words = _FAULTS.get(details["type"], details["msg"]).format(**details.get("ctx", {}))
    return document.error(loc, f"{show(details['input'])} {words}")


def _check_only(body: SpecFile, files: tuple[str, ...], document: Document) -> None:
    """Check that a value that a file adds to an axis is not left out by what it inherits."""
    for axis, chosen in body.grid.only.items():
        restricted = document.mark(("grid", "only", axis))
        values = body.grid.axes.get(axis)
        if isinstance(values, list | dict):
            for label, _, here in labelled(values, ("grid", "axes", axis), document):
                nearer = files.index(document.mark(here).file) < files.index(restricted.file)
                if nearer and label not in chosen:
                    hint = f"write `only: {{{axis}+: [{label}]}}` to have it"
                    raise document.error(here, f"is left out by grid.only in {restricted}; {hint}")
