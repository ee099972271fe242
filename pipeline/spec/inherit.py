"""What a spec is with all that it inherits: the files it extends, each of them once, merged in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pipeline.spec.paths import inside, shown
from pipeline.spec.run import COMPONENTS
from pipeline.spec.yamlfile import Address, Document, Mark, load_yaml, show

ADD = "+"
"""Behind the key of a list: its items are added to those that are inherited."""

_OWN = ("extends", "abstract")  # keys that are not inherited


def inherit(path: Path, specs_dir: Path) -> tuple[Document, tuple[str, ...]]:
    """A spec merged with what it extends, and the files it was read from, its own first.

    What a file extends is merged before it, of several files one after the other. One that is inherited in several ways
    is merged once, where it is met first, so that it does not undo what others have changed.

    Raises:
        UserError: A file cannot be read or is inherited by itself, files are named against the order in which one
            inherits the other, or a list is added to what is none.
    """
    documents: dict[str, Document] = {}
    _collect(path, specs_dir, (), documents)
    merged = Document({}, {})
    for document in documents.values():
        merged = merge(merged, document)
    return merged, tuple(reversed(documents))


def merge(base: Document, child: Document) -> Document:
    """One file laid over what it inherits: mappings are merged, null removes, anything else replaces.

    Raises:
        UserError: A list is added to what is none.
    """
    inherited = {key: value for key, value in base.data.items() if key not in _OWN}
    merger = _Merger(base, child)
    data = merger.mapping(inherited, child.data, ())
    return Document(data, {**merger.marks, **child.marks, **merger.moved})


def _collect(path: Path, specs_dir: Path, chain: tuple[str, ...], documents: dict[str, Document]) -> None:
    """Read a file after all that it inherits, as far as they have not been read."""
    label = shown(path, specs_dir)
    document = load_yaml(path, label)
    chain = (*chain, label)
    last = ""
    for address, name in _bases(document):
        try:
            base = inside(specs_dir, document, address, name)
        except UserError as error:
            told = f"{error}; chain: {' -> '.join((*chain, name))}" if len(chain) > 1 else str(error)
            raise UserError(told) from None
        here = shown(base, specs_dir)
        if here in chain:
            raise document.error(address, f"a spec cannot inherit from itself: {' -> '.join((*chain, here))}")
        if here == last:
            raise document.error(address, f"{show(name)} is named twice")
        if here not in documents:
            _collect(base, specs_dir, chain, documents)
        elif last and list(documents).index(here) < list(documents).index(last):
            raise document.error(
                address, f"{show(name)} is inherited in front of {last}; name it in front of it, or leave it out"
            )
        last = here
    documents[label] = document


def _bases(document: Document) -> Iterator[tuple[Address, str]]:
    bases = document.data.get("extends")
    if bases is None:
        return
    if isinstance(bases, str):
        yield ("extends",), bases
        return
    if not isinstance(bases, list) or not bases:
        raise document.error(("extends",), f"{show(bases)} must be the path of a spec, or a list of paths")
    for index, base in enumerate(bases):
        if not isinstance(base, str):
            raise document.error(("extends", index), f"{show(base)} must be the path of a spec")
        yield ("extends", index), base


class _Merger:
    """Lays one file over what it inherits.

    Attributes:
        marks: Those of what is inherited, as far as it is left.
        moved: Those of the file's items that are added to a list.
    """

    def __init__(self, base: Document, child: Document) -> None:
        self.child = child
        self.marks = dict(base.marks)
        self.moved: dict[Address, Mark] = {}

    def mapping(self, base: dict[str, Any], values: dict[str, Any], address: Address) -> dict[str, Any]:
        merged = dict(base)
        for key, value in values.items():
            here = (*address, key)
            if key.endswith(ADD) and not _holds_labels(address):
                plain = key.removesuffix(ADD)
                if plain in values:
                    raise self.child.error(
                        here, f"stands beside {show(plain)}, which replaces the list; keep one of them"
                    )
                merged[plain] = self.added(merged.get(plain, []), value, here)
                continue
            if value is None and key in base:
                del merged[key]
                self.forget(here)
                continue
            before = merged.get(key)
            if isinstance(value, dict) and _is_component(here):
                if "name" in value:
                    before = None
                elif isinstance(before, str):
                    before = {"name": before}
                    self.marks[*here, "name"] = self.marks[here]
            if not isinstance(value, dict):
                self.forget(here)
                merged[key] = value
            elif isinstance(before, dict):
                merged[key] = self.mapping(before, value, here)
            else:
                self.forget(here)
                merged[key] = self.mapping({}, value, here)
        return merged

    def added(self, before: Any, items: Any, here: Address) -> list[Any]:
        """A list and further items, which keep the marks that they have in their file."""
        if not isinstance(items, list):
            raise self.child.error(here, f"{show(items)} must be a list, whose items are added to those inherited")
        if not isinstance(before, list):
            raise self.child.error(here, f"adds to a list, and what is inherited is none: {show(before)}")
        plain = (*here[:-1], str(here[-1]).removesuffix(ADD))
        if not before:
            self.moved[plain] = self.child.marks[here]
        for address, mark in self.child.marks.items():
            if address[: len(here)] == here and len(address) > len(here):
                index, *rest = address[len(here) :]
                self.moved[*plain, len(before) + int(index), *rest] = mark
        return [*before, *items]

    def forget(self, address: Address) -> None:
        """Drop the marks below what is replaced, so that none of them is taken for one of the new value."""
        for old in [old for old in self.marks if old[: len(address)] == address]:
            del self.marks[old]


def _holds_labels(address: Address) -> bool:
    """Whether the keys of the mapping there are labels, which may end in anything."""
    return len(address) == 3 and address[:2] in (("grid", "axes"), ("table", "clients"))


def _is_component(address: Address) -> bool:
    """Whether a component stands there: a run's field in a patch, or a value of an axis over that field."""
    if address[:2] == ("grid", "axes"):
        return (len(address) == 4 and address[2] in COMPONENTS) or (len(address) == 5 and address[4] in COMPONENTS)
    return len(address) == 3 and address[2] in COMPONENTS and address[1] == "base"
