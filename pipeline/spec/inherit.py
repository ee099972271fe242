"""What a spec is with all that it inherits: the files it extends, each of them once, merged in order."""

from __future__ import annotations

from pathlib import Path

from pflcore.errors import UserError
from pipeline.spec.run import COMPONENTS
from pipeline.spec.yamlfile import Address, Document, Mark, Node, inside, load_yaml, plain, show, shown

ADD = "+"
"""Behind the key of a list: its items are added to those that are inherited."""


def inherit(path: Path, specs_dir: Path) -> tuple[Document, tuple[str, ...]]:
    """Return a spec merged with what it extends, and the files it was read from, its own first.

    What a file extends is merged before it, of several files one after the other. One that is inherited in several ways
    is merged once, where it is met first, so that it does not undo what others have changed. In a merge mappings are
    merged, null removes, anything else replaces.

    Raises:
        UserError: A file cannot be read or is inherited by itself, files are named against the order in which one
            inherits the other, or a list is added to what is none.
    """
    documents: dict[str, Document] = {}
    _collect(path, specs_dir, (), documents)
    root = Node({}, Mark("", 0))
    for document in documents.values():
        inherited = {key: node for key, node in root.value.items() if key not in ("extends", "abstract")}
        root = Node(_merge(inherited, document.root.value, ()), document.root.mark)
    return Document(root), tuple(reversed(documents))


def _collect(path: Path, specs_dir: Path, chain: tuple[str, ...], documents: dict[str, Document]) -> None:
    """Read a file after all that it inherits, as far as they have not been read."""
    label = shown(path, specs_dir)
    document = load_yaml(path, label)
    chain, last = (*chain, label), ""
    extends = plain(document.root.value["extends"]) if "extends" in document.root.value else None
    names = [extends] if isinstance(extends, str) else [] if extends is None else extends
    if extends is not None and (not isinstance(names, list) or not names):
        raise document.error(("extends",), f"{show(extends)} must be the path of a spec, or a list of paths")
    for index, name in enumerate(names):
        address: Address = ("extends",) if isinstance(extends, str) else ("extends", index)
        if not isinstance(name, str):
            raise document.error(address, f"{show(name)} must be the path of a spec")
        try:
            base = inside(specs_dir, document, address, name)
        except UserError as error:
            raise UserError(f"{error}; chain: {' -> '.join((*chain, name))}" if chain[1:] else str(error)) from None
        here = shown(base, specs_dir)
        if here in chain:
            raise document.error(address, f"a spec cannot inherit from itself: {' -> '.join((*chain, here))}")
        if here == last:
            raise document.error(address, f"{show(name)} is named twice")
        if here not in documents:
            _collect(base, specs_dir, chain, documents)
        elif last and list(documents).index(here) < list(documents).index(last):
            message = f"{show(name)} is inherited in front of {last}; name it in front of it, or leave it out"
            raise document.error(address, message)
        last = here
    documents[label] = document


def _merge(base: dict[str, Node], child: dict[str, Node], address: Address) -> dict[str, Node]:
    """Return a mapping laid over the one that it inherits. Raises :class:`UserError` as :func:`inherit`."""
    merged = dict(base)
    for key, node in child.items():
        here, name = (*address, key), key.removesuffix(ADD)
        labels = len(address) == 3 and address[:2] in (("grid", "axes"), ("table", "clients"))  # may end in anything
        if name != key and not labels:
            if name in child:
                raise node.mark.error(here, f"stands beside {show(name)}, which replaces the list; keep one of them")
            merged[name] = _added(merged.get(name), node, here)
        elif node.value is None and key in base:
            del merged[key]
        elif isinstance(node.value, dict):
            before = merged[key].value if key in merged else None
            if _is_component(here) and "name" in node.value:  # a component that is named anew
                before = {}
            elif _is_component(here) and isinstance(before, str):
                before = {"name": merged[key]}
            merged[key] = Node(_merge(before if isinstance(before, dict) else {}, node.value, here), node.mark)
        else:
            merged[key] = node
    return merged


def _added(before: Node | None, node: Node, address: Address) -> Node:
    """Return an inherited list with further items."""
    if not isinstance(node.value, list):
        raise node.mark.error(address, f"{show(plain(node))} must be a list, whose items are added to those inherited")
    if not before:
        return node
    if not isinstance(before.value, list):
        raise node.mark.error(address, f"adds to a list, and what is inherited is none: {show(plain(before))}")
    return Node([*before.value, *node.value], before.mark if before.value else node.mark)


def _is_component(address: Address) -> bool:
    """Return whether a component stands there: a run's field in a patch, or a value of an axis over that field."""
    if address[:2] == ("grid", "axes"):
        return (len(address) == 4 and address[2] in COMPONENTS) or (len(address) == 5 and address[4] in COMPONENTS)
    return len(address) == 3 and address[2] in COMPONENTS and address[1] == "base"
