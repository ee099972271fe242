"""YAML as a configuration language: plain data in which every value remembers its file and line.

A strict subset with YAML 1.2 scalars: `on` and `no` are text, `1e-3` is a number, a key may be stated once, tags do not
exist, and aliases may repeat a value only while the expanded document stays small.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pflcore.errors import UserError

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 40

_NULL = {"", "~", "null", "Null", "NULL"}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Address = tuple[str | int, ...]
"""Where a value is in a document: keys, and positions in lists."""


class Mark(NamedTuple):
    """A line of a file, the file as it is shown to the user."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and the position of each of its values."""

    data: dict[str, Any]
    marks: dict[Address, Mark]

    def mark(self, address: Address) -> Mark:
        """The position of a value, or of the nearest enclosing one when the value is not written in any file."""
        while address not in self.marks:
            address = address[:-1]
        return self.marks[address]

    def error(self, address: Address, message: str) -> UserError:
        """`file:line: dotted.address: message`, to be raised."""
        return UserError(": ".join([str(self.mark(address)), *([dotted(address)] if address else []), message]))


def dotted(address: Address) -> str:
    """An address as people write it: ``grid.overrides[0].set.training.lr``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in address)
    return text.removeprefix(".")


def show(value: Any) -> str:
    """A value for an error message: text in quotes, true, false and null as in YAML, cut when long."""
    text = {"True": "true", "False": "false", "None": "null"}.get(text := repr(value), text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def load_yaml(path: Path, label: str) -> Document:
    """Read one YAML file.

    Args:
        path: The file.
        label: How messages name it.

    Raises:
        UserError: It cannot be read, is not UTF-8, is too large, is not YAML, or uses what this subset leaves out.
    """
    return parse_yaml(read_text(path, label), label)


def read_text(path: Path, label: str) -> str:
    """A small text file. Raises as :func:`load_yaml`."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise UserError(f"{label}: cannot be read: no plain file")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{label}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise UserError(f"{label}: larger than {MAX_BYTES >> 20} MiB; a spec is a small text file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{label}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8") from None


def parse_yaml(text: str, label: str) -> Document:
    """As :func:`load_yaml`, for text that is already in memory."""
    try:
        root = _Reader(yaml.parse(text, Loader=_LOADER), label).document()
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise UserError(f"{label}:{line}: character 0x{code:02x} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        lines = text.splitlines()
        if line <= len(lines) and re.match(r"\s*\t", lines[line - 1]):
            raise UserError(f"{label}:{line}: a tab cannot indent YAML; use spaces") from None
        raise UserError(f"{label}:{line}: not valid YAML: {error.problem}") from None
    marks: dict[Address, Mark] = {}
    data = _plain(root, (), label, marks)
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else show(data)
        raise UserError(f"{label}:{root.line}: expected `key: value` lines at the top level, found {kind}")
    return Document(data, marks)


@dataclass(frozen=True, slots=True)
class _Node:
    value: Any  # a scalar, list[_Node], or dict[str, tuple[line of the key, _Node]]
    line: int
    size: int  # nodes in it, with its aliases expanded


class _Reader:
    """Builds the tree from parser events, so that depth and expansion are bounded before anything is allocated."""

    def __init__(self, events: Iterator[Any], label: str) -> None:
        self.events = events
        self.label = label
        self.anchors: dict[str, _Node | None] = {}
        self.size = 0

    def document(self) -> _Node:
        next(self.events)  # start of the stream
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise UserError(f"{self.label}:1: the file is empty")
        root = self.node(next(self.events), 0)
        next(self.events)  # end of the document
        following = next(self.events)
        if not isinstance(following, yaml.StreamEndEvent):
            raise self.error(following, "a second document (`---`) in one file; a file holds one")
        return root

    def error(self, event: Any, message: str) -> UserError:
        return UserError(f"{self.label}:{event.start_mark.line + 1}: {message}")

    def count(self, event: Any, size: int) -> None:
        self.size += size
        if self.size > MAX_NODES:
            raise self.error(event, f"more than {MAX_NODES} values, aliases expanded; split the file")

    def node(self, event: Any, depth: int) -> _Node:
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise self.error(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            name = str(event.anchor)
            target = self.anchors.get(name)
            if target is None:
                inside = name in self.anchors
                why = "stands inside the value that it repeats" if inside else "repeats no earlier `&` anchor"
                raise self.error(event, f"the alias *{name} {why}")
            self.count(event, target.size)
            return target
        if event.tag is not None:
            raise self.error(event, f"the tag {show(event.tag)} is not allowed; specs are plain data")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        before = self.size
        self.count(event, 1)
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = self.scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self.items(depth)
        else:
            value = self.entries(depth)
        node = _Node(value, line, self.size - before)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def items(self, depth: int) -> list[_Node]:
        items = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, depth + 1))
        return items

    def entries(self, depth: int) -> dict[str, tuple[int, _Node]]:
        entries: dict[str, tuple[int, _Node]] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.key(event)
            if key in entries:
                raise self.error(event, f"the key {show(key)} is already stated in line {entries[key][0]}")
            line = event.start_mark.line + 1
            entries[key] = (line, self.node(next(self.events), depth + 1))
        return entries

    def key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None or event.anchor is not None:
            raise self.error(event, "a key must be plain text")
        text: str = event.value
        if event.implicit[0] and (text in _NULL or text == "<<"):
            hint = "merge keys (<<) are not supported; use `extends`" if text == "<<" else "a key must not be empty"
            raise self.error(event, hint)
        if not text.strip():
            raise self.error(event, "a key must not be empty")
        return text

    def scalar(self, event: Any) -> Any:
        text: str = event.value
        if not event.implicit[0]:  # quoted or block text
            return text
        if text in _NULL:
            return None
        if text in ("true", "false"):
            return text == "true"
        if _INT.fullmatch(text):
            if len(text) > 18:
                raise self.error(event, f"the number {show(text)} is too long; quote it if it is text")
            return int(text)
        if not _FLOAT.fullmatch(text) and not _NOT_FINITE.fullmatch(text):
            return text
        number = math.nan if _NOT_FINITE.fullmatch(text) else float(text)
        if not math.isfinite(number) or math.copysign(1, number) < 0 == number:
            raise self.error(event, f"the number {text} is not allowed; numbers are finite and zero has no sign")
        return number


def _plain(node: _Node, address: Address, label: str, marks: dict[Address, Mark]) -> Any:
    marks.setdefault(address, Mark(label, node.line))
    if isinstance(node.value, list):
        return [_plain(item, (*address, index), label, marks) for index, item in enumerate(node.value)]
    if not isinstance(node.value, dict):
        return node.value
    data = {}
    for key, (line, value) in node.value.items():
        marks[(*address, key)] = Mark(label, line)
        data[key] = _plain(value, (*address, key), label, marks)
    return data
