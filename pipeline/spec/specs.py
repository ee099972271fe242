"""Spec files: find them, merge them with the specs that they extend, and validate everything except their runs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pflcore.errors import UserError
from pipeline.spec.catalog import Catalog
from pipeline.spec.grid import labelled_values
from pipeline.spec.patches import BASE, Patcher
from pipeline.spec.run import COMPONENTS
from pipeline.spec.schema import SpecFile, first_error
from pipeline.spec.yamlfile import Address, Document, Mark, Node, abspath, locate, parse_yaml, read_text, relpath, show

ADD = "+"
"""The suffix of a list's key if its items are added to the inherited ones."""
_ID_PART = re.compile(r"[a-z0-9][a-z0-9_.-]*")


@dataclass(frozen=True)
class Spec:
    """A spec merged with everything that it inherits. Its structure is valid."""

    id: str  # path below the specs folder without ``.yaml``
    body: SpecFile
    document: Document  # the merged plain data, with the file and line of every value
    specs_dir: Path
    files: tuple[str, ...]  # the files it was read from, its own first, as messages show them

    @property
    def title(self) -> str:
        """The heading of the report; the id if the spec has no title."""
        return self.body.title or self.id


def find_specs(specs_dir: Path, errors: dict[str, str] | None = None) -> dict[str, Path]:
    """Return all specs below a folder, abstract ones included, by id in sorted order; hidden files are skipped.

    A file that cannot be a spec raises :class:`UserError`; with `errors` it is added there by its path.
    """
    specs_dir = abspath(specs_dir)
    if not specs_dir.is_dir():
        raise UserError(f"{specs_dir.name}: no such folder; specs are YAML files in it")
    paths, by_stage = dict[str, Path](), dict[str, Path]()
    for folder, folders, files in os.walk(specs_dir):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(folder, name) for name in sorted([*folders, *files]) if not name.startswith(".")):
            label = relpath(path, specs_dir)
            try:
                if path.name in folders and path.is_symlink():
                    raise UserError(f"{label}: a linked folder; specs are not looked for in it")
                if path.name in files and path.suffix == ".yml":
                    raise UserError(f"{label}: specs end in .yaml; rename it")
                if path.name in files and path.suffix == ".yaml":
                    identity = _spec_id(path, specs_dir)
                    name = re.sub(r"[/.]", "-", identity)  # the name of a stage must be one word
                    if (other := by_stage.setdefault(name, path)) != path:
                        clash = f"its stage would be called {name!r}, as that of {relpath(other, specs_dir)}"
                        raise UserError(f"{label}: {clash}; rename one")
                    paths[identity] = path
            except UserError as error:
                if errors is None:
                    raise
                errors[label] = str(error)
    return dict(sorted(paths.items()))


def _spec_id(path: Path, specs_dir: Path) -> str:
    """Return the id of a spec file. Raises :class:`UserError` for an unsafe name or a file outside the folder."""
    label = relpath(path, specs_dir)
    if not path.resolve().is_relative_to(specs_dir.resolve()):
        raise UserError(f"{label}: leads out of {specs_dir.name}/; specs must stay inside it")
    parts = Path(os.path.relpath(path, specs_dir)).with_suffix("").parts
    if unsafe := [part for part in parts if not _ID_PART.fullmatch(part)]:
        allowed = "use a-z, 0-9, '_', '.', '-', and begin with a letter or digit"
        raise UserError(f"{label}: the name {show(unsafe[0])} is not allowed; {allowed}")
    return "/".join(parts)


def load_spec(path: Path, specs_dir: Path, catalog: Catalog) -> Spec:
    """Read a spec and what it extends, and validate its structure and each of its patches."""
    specs_dir = abspath(specs_dir)
    identity = _spec_id(path, specs_dir)
    document, files = inherit(path, specs_dir)
    try:
        body = SpecFile.model_validate(document.data)
    except ValidationError as error:
        raise document.error(*first_error(error, SpecFile)) from None
    patcher = Patcher(document, catalog)
    # Read every patch once, so that mistakes show even if no run uses the patch, as in abstract specs.
    patcher.read(body.grid.base, BASE)
    for index, override in enumerate(body.grid.overrides):
        patcher.read(override.set, ("grid", "overrides", index, "set"))
    for axis, chosen in body.grid.only.items():  # a value that a file adds must not be left out by an inherited `only`
        restricted = document.mark(("grid", "only", axis))
        for label, _, address in labelled_values(body.grid.axes.get(axis), ("grid", "axes", axis), document):
            added = label not in chosen and files.index(document.mark(address).file) < files.index(restricted.file)
            hint = f"write `only: {{{axis}+: [{label}]}}` to have it"
            document.check(not added, address, f"is left out by grid.only in {restricted}; {hint}")
    for index, name in enumerate(body.figures or ()):
        document.check_known("figure", name, catalog.figures(), ("figures", index))
    return Spec(identity, body, document, specs_dir, files)


def inherit(path: Path, specs_dir: Path) -> tuple[Document, tuple[str, ...]]:
    """Return a spec merged with what it extends, and the files it was read from, its own first.

    The files that a file extends are merged before it, in the order in which it names them. A file that is inherited
    more than once is merged once, where it occurs first, so that it does not undo changes of other files. A merge
    combines mappings; null removes a value, and any other value replaces the inherited one. Raises :class:`UserError`,
    also for a file that inherits itself, and for files in an order that contradicts which of them inherits which.
    """
    documents: dict[str, Document] = {}
    _collect(path, specs_dir, (), documents)
    root = Node({}, Mark("", 0))
    for document in documents.values():
        inherited = {key: node for key, node in root.value.items() if key not in ("extends", "abstract")}
        root = Node(_merge(inherited, document.root.value, ()), document.root.mark)
    return Document(root), tuple(reversed(documents))


def _collect(path: Path, specs_dir: Path, chain: tuple[str, ...], documents: dict[str, Document]) -> None:
    """Add a file to `documents`, after all files that it inherits and that are not there yet."""
    label = relpath(path, specs_dir)
    document = parse_yaml(read_text(path, label), label)
    chain = (*chain, label)
    last = ""  # the file that was inherited before
    extends = document.data.get("extends")
    names = [extends] if isinstance(extends, str) else extends
    valid = extends is None or (isinstance(names, list) and names)
    document.check(valid, ("extends",), f"{show(extends)} must be the path of a spec, or a list of paths")
    for index, name in enumerate(names or ()):
        address: Address = ("extends",) if isinstance(extends, str) else ("extends", index)
        document.check(isinstance(name, str), address, f"{show(name)} must be the path of a spec")
        try:
            base = locate(specs_dir, document, address, name)
        except UserError as error:
            raise UserError(f"{error}; chain: {' -> '.join((*chain, name))}" if chain[1:] else str(error)) from None
        base_label = relpath(base, specs_dir)
        cycle = f"a spec cannot inherit from itself: {' -> '.join((*chain, base_label))}"
        document.check(base_label not in chain, address, cycle)
        if base_label not in documents:
            _collect(base, specs_dir, chain, documents)
        elif last:
            order = list(documents)
            message = f"{show(name)} is inherited before: leave it out, or name it before {last}"
            document.check(order.index(base_label) > order.index(last), address, message)
        last = base_label
    documents[label] = document


def _merge(base: dict[str, Node], child: dict[str, Node], address: Address) -> dict[str, Node]:
    """Return a mapping merged over the inherited one. Raises :class:`UserError` if items are added to no list."""
    merged = dict(base)
    for key, node in child.items():
        place, name, base_node = (*address, key), key.removesuffix(ADD), merged.get(key)
        labels = len(address) == 3 and address[:2] in (("grid", "axes"), ("table", "clients"))  # labels may end in +
        if name != key and not labels:
            if name in child:
                raise node.mark.error(place, f"stands beside {show(name)}, which replaces the list; keep one of them")
            merged[name] = _added(merged.get(name), node, place)
        elif node.value is None and base_node:
            del merged[key]
        elif isinstance(node.value, dict):
            inherited = base_node.value if base_node else {}
            if _is_component(place) and "name" in node.value:  # a component that replaces the inherited one
                inherited = {}
            elif _is_component(place) and isinstance(inherited, str):
                inherited = {"name": base_node}
            merged[key] = Node(_merge(inherited if isinstance(inherited, dict) else {}, node.value, place), node.mark)
        else:
            merged[key] = node
    return merged


def _added(before: Node | None, node: Node, address: Address) -> Node:
    """Return an inherited list with further items. Raises :class:`UserError` if one of the two is no list."""
    if not isinstance(node.value, list):
        raise node.mark.error(address, f"{show(node.plain())} must be a list, whose items are added to those inherited")
    if not before:
        return node
    if not isinstance(before.value, list):
        raise node.mark.error(address, f"adds to a list, but the inherited value is no list: {show(before.plain())}")
    return Node([*before.value, *node.value], before.mark if before.value else node.mark)


def _is_component(address: Address) -> bool:
    """Return whether a component is at an address: a field of a run in a patch, or a value of an axis over it."""
    if address[:2] == ("grid", "axes"):
        return (len(address) == 4 and address[2] in COMPONENTS) or (len(address) == 5 and address[4] in COMPONENTS)
    return len(address) == 3 and address[2] in COMPONENTS and address[1] == "base"
