"""Fingerprints of the code that can affect a stage: what a stage imports, without comments, docstrings and layout.

The closure of imports is read from syntax trees, so nothing is executed and torch is not loaded.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from pflcore import extensions
from pflcore.files import write_text

PACKAGES = ("pflcore", "pipeline")
_METHOD = "2"  # changes with how the functions below read a module


def text_hash(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


class Code:
    """The source of the project's packages, parsed at most once per process.

    Args:
        source: The folder that contains the packages.
        known: A file that remembers what was parsed from one process to the next; None remembers nothing.
    """

    def __init__(self, source: Path, known: Path | None = None) -> None:
        self.source = source
        self._parsed: dict[str, tuple[str, list[str]]] = {}
        self._file = known
        self._known = _read(known)
        self._used: dict[str, tuple[str, list[str]]] = {}

    def remember(self) -> None:
        """Write what was parsed to the file given at the start, if there is anything new."""
        if self._file is not None and not self._used.keys() <= self._known.keys():
            with contextlib.suppress(OSError):  # what cannot be kept is parsed again the next time
                write_text(self._file, json.dumps({**self._known, **self._used}))

    def fingerprint(self, root: str, without: str | None = None) -> str:
        """Return a line per module in the import closure of `root`: its name and the hash of its meaning.

        Where a module imports Jinja, templates beside the packages (``*.j2``) count with their whole text.

        Args:
            without: What is in the closure of this one is left out.
        """
        closure = self._closure(root) - (self._closure(without) if without else set())
        lines = [f"{module} {self._hash(module)}" for module in sorted(closure)]
        own = {module: self.modules[module] for module in closure if module in self.modules}
        if any("jinja2" in self._parse(module, path)[1] for module, path in own.items()):
            for template in sorted({file for path in own.values() for file in path.parent.glob("templates/*.j2")}):
                name = template.relative_to(self.source).as_posix()
                lines.append(f"{name} {_bytes_hash(template.read_bytes())}")
        return "".join(f"{line}\n" for line in lines)

    def outside(self, root: str) -> str:
        """Return the lines of :meth:`fingerprint` of modules that are not of the project's packages."""
        if root in self.modules:
            return ""
        own = sorted(module for module in self._closure(root) if module not in self.modules)
        return "".join(f"{module} {self._hash(module)}\n" for module in own)

    @staticmethod
    def names(fingerprint: str) -> list[str]:
        """Return the modules and templates of a fingerprint."""
        return [line.split()[0] for line in fingerprint.splitlines()]

    def altered(self, fingerprint: str, contents: Mapping[str, bytes]) -> str | None:
        """Return the first module or template of a fingerprint that `contents` lacks or has with another meaning."""
        for line in fingerprint.splitlines():
            name, expected = line.split()
            hash_of = _bytes_hash if name.endswith(".j2") else lambda content: self._meaning(content)[0]
            if name not in contents or hash_of(contents[name]) != expected:
                return name
        return None

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Dotted name → file, of every module in the packages."""
        modules = {}
        for package in PACKAGES:
            for path in sorted((self.source / package).rglob("*.py")):
                parts = path.relative_to(self.source).with_suffix("").parts
                modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return modules

    def has(self, module: str) -> bool:
        """Whether it is one of the packages' modules, or of those that join them."""
        return self._path(module) is not None

    def _path(self, module: str) -> Path | None:
        return self.modules.get(module) or extensions.modules().get(module)

    def _closure(self, root: str) -> set[str]:
        closure: set[str] = set()
        waiting = [root]
        while waiting:
            module = waiting.pop()
            path = self._path(module)
            if module in closure or path is None:
                continue
            closure.add(module)
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            waiting += [_absolute(name, package) for name in self._parse(module, path)[1]]
            # Importing a module runs the packages above it first, some of which may have no file.
            waiting += [".".join(module.split(".")[:depth]) for depth in range(1, module.count(".") + 1)]
        return closure

    def _hash(self, module: str) -> str:
        path = self._path(module)
        assert path is not None
        return self._parse(module, path)[0]

    def _parse(self, module: str, path: Path) -> tuple[str, list[str]]:
        if module not in self.modules:  # of a study, which may be edited or left
            return self._meaning(path.read_bytes())
        if module not in self._parsed:
            self._parsed[module] = self._meaning(path.read_bytes())
        return self._parsed[module]

    def _meaning(self, source: bytes) -> tuple[str, list[str]]:
        key = f"{_METHOD} {hashlib.sha256(source).hexdigest()}"
        if key not in self._used:
            self._used[key] = self._known.get(key) or _meaning(source)
        return self._used[key]


def _read(known: Path | None) -> dict[str, tuple[str, list[str]]]:
    """Return what an earlier process parsed; nothing where that cannot be read."""
    try:
        content = json.loads(known.read_text(encoding="utf-8")) if known else {}
        return {key: (meaning, names) for key, (meaning, names) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _bytes_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _meaning(source: bytes) -> tuple[str, list[str]]:
    """The hash of what a module means, and what it imports."""
    tree = ast.parse(source)
    imports = list(_imported(tree))
    _strip_docstrings(tree)
    digest = hashlib.sha256()
    for piece in _normalised(tree):
        digest.update(piece.encode(errors="surrogatepass"))
    return digest.hexdigest()[:16], imports


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield start
            # `from package import module`
            yield from (f"{start}{'.' if node.module else ''}{alias.name}" for alias in node.names)


def _absolute(name: str, package: str) -> str:
    """What an import means in a module of `package`, which leading dots are relative to."""
    rest = name.lstrip(".")
    if not (up := len(name) - len(rest)):
        return name
    above = package.split(".")
    return ".".join([*above[: len(above) - up + 1], *filter(None, [rest])])


def _strip_docstrings(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        match node:
            case (
                ast.Module(body=[ast.Expr(ast.Constant(str())), *_])
                | ast.ClassDef(body=[ast.Expr(ast.Constant(str())), *_])
                | ast.FunctionDef(body=[ast.Expr(ast.Constant(str())), *_])
                | ast.AsyncFunctionDef(body=[ast.Expr(ast.Constant(str())), *_])
            ):
                del node.body[0]


def _normalised(node: object) -> Iterator[str]:
    """A tree as text without positions. Empty fields are left out, so Python versions that add some still agree."""
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if value is not None and value != []:
                yield f" {name}="
                yield from _normalised(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for item in node:
            yield from _normalised(item)
            yield ","
        yield "]"
    else:
        yield f"{type(node).__name__}:{node!r}"
