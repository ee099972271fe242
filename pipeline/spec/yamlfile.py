"""YAML as a configuration language: plain data in which every value remembers its file and line.

A strict subset with YAML 1.2 scalars: `on` and `no` are text, `1e-3` is a number, a key may be stated once, tags do not
exist, and aliases may repeat a value only while the expanded document stays small.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pflcore.errors import UserError
from pflcore.files import check_no_pointer
from pflcore.registry import did_you_mean

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 40
_DEEPEST = 1000  # brackets or columns; at about ten thousand libyaml overflows the stack, which ends the process

_NULL = ("", "~", "null", "Null", "NULL")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?((\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)")
_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}
# Without resolvers, so that a plain scalar is text until `_scalar` reads it.
_LOADER: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {"yaml_implicit_resolvers": {}})

Address = tuple[str | int, ...]
"""Where a value is in a document: keys, and positions in lists."""


class Mark(NamedTuple):
    """A line of a file, with the name of the file as messages show it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def error(self, address: Address, message: str) -> UserError:
        """Return the error `file:line: dotted.address: message`, to be raised."""
        return UserError(": ".join(filter(None, [str(self), dotted(address), message])))


class Node(NamedTuple):
    """A scalar, a list of nodes, or nodes by key; with its file and line."""

    value: Any
    mark: Mark

    def plain(self) -> Any:
        """Return the value without positions."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        return [item.plain() for item in self.value] if isinstance(self.value, list) else self.value

    def marks(self, address: Address = ()) -> Iterator[tuple[Address, Mark]]:
        """Yield the address and the mark of this value and of every value in it."""
        yield address, self.mark
        if isinstance(self.value, dict | list):
            for key, item in self.value.items() if isinstance(self.value, dict) else enumerate(self.value):
                yield from item.marks((*address, key))


@dataclass(frozen=True)
class Document:
    """A file, or several that were merged: plain data, and the position of each value."""

    root: Node

    @cached_property
    def data(self) -> dict[str, Any]:
        """The plain data: dicts, lists, text, numbers, true, false and null."""
        data: dict[str, Any] = self.root.plain()
        return data

    @cached_property
    def marks(self) -> dict[Address, Mark]:
        """The position of every value by its address."""
        return dict(self.root.marks())

    def mark(self, address: Address) -> Mark:
        """Return the position of a value, or of the nearest enclosing one that is written in a file."""
        while address not in self.marks:
            address = address[:-1]
        return self.marks[address]

    def error(self, address: Address, message: str) -> UserError:
        """Return the error `file:line: dotted.address: message`, to be raised."""
        return self.mark(address).error(address, message)

    def check(self, right: object, address: Address, message: str) -> None:
        """Raise the error `message` about an address unless `right` is true."""
        if not right:
            raise self.error(address, message)

    def check_known(self, kind: str, name: Any, names: Iterable[str], address: Address) -> None:
        """Raise an error with the nearest known name unless `name` is known."""
        if name not in (candidates := list(names)):
            raise self.error(address, f"unknown {kind} {show(name)}{did_you_mean(name, candidates)}")


def dotted(address: Address) -> str:
    """Return an address as people write it: ``grid.overrides[0].set.training.lr``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in address).removeprefix(".")


def show(value: Any) -> str:
    """Return a value for an error message: text in quotes, true, false and null as in YAML, cut when long."""
    text = repr(value)
    text = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_text(path: Path, label: str) -> str:
    """Read a small text file in UTF-8. Raises :class:`UserError`."""
    if path.exists() and not path.is_file():  # opening a pipe would block
        raise UserError(f"{label}: cannot be read: it is no regular file")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise UserError(f"{label}: larger than {MAX_BYTES >> 20} MiB; a spec is a small text file")
        check_no_pointer(raw, label)
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{label}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{label}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8") from None


@cache
def parse_yaml(text: str, label: str) -> Document:
    """Read YAML from the text of a file that messages call `label`. Raises :class:`UserError` for anything outside the
    subset."""
    levels = itertools.accumulate(1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", text))
    if max(levels, default=0) > _DEEPEST or re.search(rf"[ \-?]{{{_DEEPEST}}}", text):
        raise UserError(f"{label}:1: nested too deeply")
    try:
        source = yaml.compose(text, Loader=_LOADER)
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise UserError(f"{label}:{line}: character 0x{code:02x} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = "not valid YAML: " + ", ".join(filter(None, (error.context, error.problem)))
        if re.match(r"\s*\t", "".join(text.splitlines()[line - 1 : line])):
            problem = "a tab cannot indent YAML; use spaces"
        raise UserError(f"{label}:{line}: {problem}") from None
    if source is None:
        raise UserError(f"{label}:1: the file is empty")
    root = _read_node(source, label, 0, [0])
    if not isinstance(root.value, dict):
        kind = "a list" if isinstance(root.value, list) else show(root.value)
        raise root.mark.error((), f"expected `key: value` lines at the top level, found {kind}")
    return Document(root)


def parse_setting(word: str, form: str) -> tuple[str, Any]:
    """Return key and value of ``key=value`` on a command line. Raises :class:`UserError` for a word that is not in this
    `form`, or whose value is not YAML."""
    key, _, text = word.partition("=")
    if not text.strip() or not all(key.split(".")):
        raise UserError(f"--set {word!r}: must be {form}")
    try:
        return key, parse_yaml(f"value: {text}", word).data["value"]
    except UserError:
        raise UserError(f"--set {word!r}: the value is not YAML") from None


def _read_node(source: yaml.Node, label: str, depth: int, size: list[int]) -> Node:
    """Return PyYAML's node as a :class:`Node`; ``size[0]`` is the number of values so far."""
    mark = Mark(label, source.start_mark.line + 1)
    size[0] += 1
    if size[0] > MAX_NODES:
        raise mark.error((), f"more than {MAX_NODES} values, aliases expanded; split the file")
    if depth > MAX_DEPTH:
        raise mark.error((), f"nested deeper than {MAX_DEPTH} levels, aliases expanded")
    if source.tag not in _TAGS:
        raise mark.error((), f"the tag {show(source.tag)} is not allowed; specs are plain data")
    if isinstance(source, yaml.SequenceNode):
        return Node([_read_node(item, label, depth + 1, size) for item in source.value], mark)
    if isinstance(source, yaml.ScalarNode):  # with a style: quoted or a block
        return Node(source.value if source.style else _scalar(source.value, mark), mark)
    entries: dict[str, Node] = {}
    for key, value in source.value:
        text, key_mark, fault = key.value, Mark(label, key.start_mark.line + 1), ""
        if not isinstance(key, yaml.ScalarNode) or key.tag not in _TAGS or not text.isprintable():
            fault = "a key must be plain text"
        elif not text.strip() or (not key.style and text in _NULL):
            fault = "a key must not be empty"
        elif text == "<<" and not key.style:
            fault = "merge keys (<<) are not supported; use `extends`"
        elif text in entries:
            fault = f"the key {show(text)} is already stated in line {entries[text].mark.line}"
        if fault:
            raise key_mark.error((), fault)
        entries[text] = Node(_read_node(value, label, depth + 1, size).value, key_mark)
    return Node(entries, mark)


def _scalar(text: str, mark: Mark) -> Any:
    """Return the value of plain text: null, true, false, a number, or the text."""
    if text in _NULL:
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        if len(text) > 18:
            raise mark.error((), f"the number {show(text)} is too long; quote it if it is text")
        return int(text)
    if not _FLOAT.fullmatch(text):
        return text
    number = float(re.sub(r"\.(?=[iInN])", "", text))
    if not math.isfinite(number) or math.copysign(1, number) < 0 == number:
        raise mark.error((), f"the number {text} is not allowed; numbers are finite and zero has no sign")
    return number


def locate(specs_dir: Path, document: Document, address: Address, name: str) -> Path:
    """Return the path of a file in the specs folder, whose `name` is relative to the spec file that names it."""
    path = abspath((specs_dir.parent / document.mark(address).file).parent / name)
    try:
        stays = path.is_relative_to(specs_dir) and path.resolve().is_relative_to(specs_dir.resolve())
        exists = path.is_file()
    except (OSError, ValueError) as error:  # such as a name that is too long or has a null byte
        raise document.error(address, f"{show(name)} cannot be read: {getattr(error, 'strerror', error)}") from None
    document.check(stays and not name.startswith("/"), address, f"{show(name)} leads out of {specs_dir.name}/")
    document.check(exists, address, f"{show(name)} does not exist ({relpath(path, specs_dir)})")
    return path


def abspath(path: Path) -> Path:
    """Return an absolute path without `..`. Links are not followed, so the path is as the user wrote it."""
    return Path(os.path.normpath(path.absolute()))


def relpath(path: Path, specs_dir: Path) -> str:
    """Return a path relative to the project, as messages name it: ``specs/fedtp/table2.yaml``."""
    return (Path(specs_dir.name) / os.path.relpath(path, specs_dir)).as_posix()
