"""Finding and loading specs: ids, and validation of all that can be checked without making runs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pflcore.errors import UserError
from pipeline.spec.catalog import Catalog
from pipeline.spec.draft import Patcher
from pipeline.spec.editor_schema import figures_of
from pipeline.spec.grid import labelled
from pipeline.spec.inherit import inherit
from pipeline.spec.schema import SpecFile, first_fault
from pipeline.spec.yamlfile import Document, absolute, show, shown

_ID_PART = re.compile(r"[a-z0-9][a-z0-9_.-]*")


@dataclass(frozen=True)
class Spec:
    """A spec with all it inherits, structurally valid."""

    id: str  # path below the specs folder without ``.yaml``
    body: SpecFile
    document: Document  # the merged plain data, with the file and line of every value
    specs_dir: Path
    files: tuple[str, ...]  # that it was read from, its own first, as messages show them

    @property
    def abstract(self) -> bool:
        return self.body.abstract

    @property
    def title(self) -> str:
        """Its heading; the id when none is stated."""
        return self.body.title or self.id


def flat_id(spec_id: str) -> str:
    """Return the id as one word of letters, digits, ``_`` and ``-``, as names of stages have to be."""
    return re.sub(r"[/.]", "-", spec_id)


def find_specs(specs_dir: Path) -> dict[str, Path]:
    """Return all specs below a folder, abstract ones included, by id in sorted order; hidden files are skipped."""
    specs_dir = absolute(specs_dir)
    if not specs_dir.is_dir():
        raise UserError(f"{specs_dir.name}: no such folder; specs are YAML files in it")
    paths: dict[str, Path] = {}
    for folder, folders, files in os.walk(specs_dir):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(folder, name) for name in sorted([*folders, *files]) if not name.startswith(".")):
            if path.name in folders and path.is_symlink():
                raise UserError(f"{shown(path, specs_dir)}: a linked folder; specs are not looked for in it")
            if path.name in files and path.suffix == ".yml":
                raise UserError(f"{shown(path, specs_dir)}: specs end in .yaml; rename it")
            if path.name in files and path.suffix == ".yaml":
                paths[spec_id(path, specs_dir)] = path
    paths = dict(sorted(paths.items()))
    flat: dict[str, str] = {}
    for identity, path in paths.items():
        if (other := flat.setdefault(flat_id(identity), identity)) != identity:
            both = f"{flat_id(identity)!r}, as that of {shown(paths[other], specs_dir)}"
            raise UserError(f"{shown(path, specs_dir)}: its stage would be called {both}; rename one of them")
    return paths


def spec_id(path: Path, specs_dir: Path) -> str:
    """Return the id of a spec file. Raises :class:`UserError` for an unsafe name or one out of the folder."""
    label = shown(path, specs_dir)
    if not path.resolve().is_relative_to(specs_dir.resolve()):
        raise UserError(f"{label}: leads out of {specs_dir.name}/; specs must stay inside it")
    parts = Path(os.path.relpath(absolute(path), absolute(specs_dir))).with_suffix("").parts
    if unsafe := [part for part in parts if not _ID_PART.fullmatch(part)]:
        allowed = "use a-z, 0-9, '_', '.', '-', and begin with a letter or digit"
        raise UserError(f"{label}: the name {show(unsafe[0])} is not allowed; {allowed}")
    return "/".join(parts)


def load_spec(path: Path, specs_dir: Path, catalog: Catalog) -> Spec:
    """Read a spec and what it extends, and validate its structure and each of its patches."""
    specs_dir = absolute(specs_dir)
    identity = spec_id(path, specs_dir)
    document, files = inherit(path, specs_dir)
    try:
        body = SpecFile.model_validate(document.data)
    except ValidationError as error:
        raise document.error(*first_fault(error, SpecFile)) from None
    patcher = Patcher(document, catalog)
    # Every patch once, so that mistakes show even where no run uses the patch, as in abstract specs.
    patcher.read(body.grid.base, ("grid", "base"))
    for index, override in enumerate(body.grid.overrides):
        patcher.read(override.set, ("grid", "overrides", index, "set"))
    for axis, chosen in body.grid.only.items():  # a value that a file adds to an axis is not left out by its base
        restricted, values = document.mark(("grid", "only", axis)), body.grid.axes.get(axis)
        for label, _, here in labelled(values, ("grid", "axes", axis), document):
            if label not in chosen and files.index(document.mark(here).file) < files.index(restricted.file):
                hint = f"write `only: {{{axis}+: [{label}]}}` to have it"
                raise document.error(here, f"is left out by grid.only in {restricted}; {hint}")
    for index, name in enumerate(body.figures or ()):
        document.check_known("figure", name, figures_of(catalog), ("figures", index))
    return Spec(identity, body, document, specs_dir, files)
