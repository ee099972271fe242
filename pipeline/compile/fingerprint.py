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
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from pflcore import extensions
from pflcore.files import write_text

PACKAGES = ("pflcore", "pipeline")
_METHOD = "2"  # raise it when the functions below read a module differently
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def text_hash(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


class Code:
    """The source of the project's packages in the folder `source`; each module is parsed at most once per process.

    The file `known` is a cache of the results of parsing for later processes.
    """

    def __init__(self, source: Path, cache: Path | None = None) -> None:
        self.source = source
        self._parsed: dict[str, tuple[str, list[str]]] = {}
        self._file = cache
        self._cache: dict[str, Any] = {}  # `_METHOD` and hash of a source → result of `_hash_and_imports`
        with contextlib.suppress(OSError, ValueError):
            self._cache = dict(json.loads(cache.read_text(encoding="utf-8"))) if cache else {}
        self._cached_count = len(self._cache)

    def save_cache(self) -> None:
        """Write the results of parsing to the cache file, if there are new ones."""
        if self._file is not None and len(self._cache) > self._cached_count:
            with contextlib.suppress(OSError):  # without the cache, the next process parses again
                write_text(self._file, json.dumps(self._cache))

    def fingerprint(self, root: str, without: str | None = None) -> str:
        """Return a line per module in the import closure of `root`: its name and the hash of its syntax tree.

        Modules in the closure of `without` are left out. If a module imports Jinja, the templates of the packages'
        modules (``templates/*.j2`` beside them) have lines, too, with the hash of their whole text.
        """
        closure = self._closure(root) - (self._closure(without) if without else set())
        lines = [f"{module} {self._parse(module)[0]}" for module in sorted(closure)]
        modules = closure & self.modules.keys()
        if any("jinja2" in self._parse(module)[1] for module in modules):
            folders = {self.modules[module].parent for module in modules}
            for template in sorted(file for folder in folders for file in folder.glob("templates/*.j2")):
                lines.append(f"{template.relative_to(self.source).as_posix()} {_short_hash(template.read_bytes())}")
        return "".join(f"{line}\n" for line in lines)

    def outside(self, root: str) -> str:
        """Return the lines of :meth:`fingerprint` for modules outside the packages; "" if `root` is in the packages."""
        outside = [] if root in self.modules else sorted(self._closure(root) - self.modules.keys())
        return "".join(f"{module} {self._parse(module)[0]}\n" for module in outside)

    def first_mismatch(self, fingerprint: str, contents: Mapping[str, bytes]) -> str | None:
        """Return the first module or template of a fingerprint that `contents` lacks or has with another hash."""
        for name, expected in (line.split() for line in fingerprint.splitlines()):
            if name not in contents:
                return name
            content = contents[name]
            if expected != (_short_hash(content) if name.endswith(".j2") else self._parse_source(content)[0]):
                return name
        return None

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Dotted name → file, of every module in the packages."""
        modules: dict[str, Path] = {}
        for package in PACKAGES:
            for path in sorted((self.source / package).rglob("*.py")):
                name = ".".join(path.relative_to(self.source).with_suffix("").parts)
                modules[name.removesuffix(".__init__")] = path
        return modules

    def has(self, module: str) -> bool:
        """Return whether a module belongs to the project's packages, to the study or to an installed extension."""
        return module in self.modules or module in extensions.modules()

    def _closure(self, root: str) -> set[str]:
        closure, queue = set[str](), [root]
        while queue:
            module = queue.pop()
            if module not in closure and self.has(module):
                closure.add(module)
                # Importing a module runs the packages above it first, some of which may have no file.
                queue += [".".join(module.split(".")[:depth]) for depth in range(1, module.count(".") + 1)]
                queue += self._parse(module)[1]
        return closure

    def _parse(self, module: str) -> tuple[str, list[str]]:
        """Return the hash of a module's syntax tree, and the absolute names that it imports."""
        if module in self._parsed:
            return self._parsed[module]
        path = self.modules.get(module) or extensions.modules()[module]
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        hash_, names = self._parse_source(path.read_bytes())
        parsed = hash_, [resolve_name(name, package) for name in names]
        if module in self.modules:  # the study's modules can change in this process
            self._parsed[module] = parsed
        return parsed

    def _parse_source(self, source: bytes) -> tuple[str, list[str]]:
        key = f"{_METHOD} {hashlib.sha256(source).hexdigest()}"
        if key not in self._cache:
            self._cache[key] = _hash_and_imports(source)
        hash_, names = self._cache[key]
        return hash_, names


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _hash_and_imports(source: bytes) -> tuple[str, list[str]]:
    """Return the hash of a module's syntax tree without docstrings, and its imports, relative ones with their dots."""
    tree = ast.parse(source)
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            # `from package import module`
            imports += [start, *(f"{start}{'.' if node.module else ''}{alias.name}" for alias in node.names)]
        elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    text = "".join(_normalised(tree))
    return _short_hash(text.encode(errors="surrogatepass")), imports


def _normalised(node: object) -> Iterator[str]:
    """Yield a syntax tree as text, without positions and empty fields: only newer versions of Python have some."""
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
