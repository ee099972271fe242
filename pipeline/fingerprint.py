"""Fingerprints of the code that can affect a stage: what a stage imports, without comments, docstrings and layout.

The closure of imports is read from syntax trees, so nothing is executed and torch is not loaded.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

PACKAGES = ("pflcore", "pipeline")


class Code:
    """The source of the project's packages, parsed at most once per process.

    Args:
        source: The folder that contains the packages.
    """

    def __init__(self, source: Path) -> None:
        self.source = source
        self._hashes: dict[str, str] = {}
        self._imports: dict[str, list[str]] = {}

    def fingerprint(self, *roots: str) -> str:
        """One line per module in the import closure of `roots`: its name and the hash of its meaning.

        Templates beside a module's package (``*.j2``) count with their whole text.
        """
        closure = self._closure(roots)
        lines = [f"{module} {self._hash(module)}" for module in sorted(closure)]
        folders = sorted({path.parent for path in (self._path(module) for module in closure) if path})
        for folder in folders:
            for template in sorted(folder.glob("templates/*.j2")):
                name = template.relative_to(self.source).as_posix()
                lines.append(f"{name} {hashlib.sha256(template.read_bytes()).hexdigest()[:16]}")
        return "\n".join(lines) + "\n"

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Dotted name → file, of every module in the packages."""
        found = {}
        for package in PACKAGES:
            for path in sorted((self.source / package).rglob("*.py")):
                parts = path.relative_to(self.source).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    def _path(self, module: str) -> Path | None:
        return self.modules.get(module)

    def _closure(self, roots: Iterable[str]) -> set[str]:
        closure: set[str] = set()
        waiting = list(roots)
        while waiting:
            module = waiting.pop()
            if module in closure or module not in self.modules:
                continue
            closure.add(module)
            self._parse(module)
            waiting += self._imports[module]
            # Importing a module runs the packages above it first.
            waiting += [module.rpartition(".")[0]]
        return closure

    def _hash(self, module: str) -> str:
        self._parse(module)
        return self._hashes[module]

    def _parse(self, module: str) -> None:
        if module in self._hashes:
            return
        tree = ast.parse(self.modules[module].read_bytes())
        self._imports[module] = list(self._imported(tree))
        _strip_docstrings(tree)
        digest = hashlib.sha256()
        for piece in _normalised(tree):
            digest.update(piece.encode(errors="surrogatepass"))
        self._hashes[module] = digest.hexdigest()[:16]

    def _imported(self, tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                # `from package import module`
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def digest(fingerprint: str) -> str:
    """Twelve hex digits that stand for a fingerprint in reports."""
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:12]


def _strip_docstrings(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
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
