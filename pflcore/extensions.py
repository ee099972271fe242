"""Entries of a study, in folders beside its specs, and entries of installed packages.

A study's ``methods/mine.py`` is the module ``study.methods.mine``. A package names the modules of its methods in its
entry points, group ``pfl.methods``. Listing the names of entries imports no module.
"""

import importlib
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec
from pathlib import Path

from pflcore import sources
from pflcore.errors import UserError

# The package of a study's modules, and its folders of entries. ``pfl.<folder>`` is a group of entry points.
STUDY = "study"
FOLDERS = ("methods", "backbones", "datasets", "partitions", "conditions", "analyses", "figures")
_home: Path | None = None


@dataclass(frozen=True)
class Extension:
    """A module that holds an entry; `origin` is a text for users: a file of the study, or a package and its module."""

    module: str
    path: Path
    origin: str


def enter(home: Path) -> bool:
    """Make `home` the study. Return whether loaded modules were forgotten: those of another study, or edited ones."""
    global _home
    home = home.absolute()
    stale = home != _home or sources.edited(STUDY) is not None
    _home = home
    for cached in (entries, modules, _points, _locate):
        cached.cache_clear()
    if stale:
        for name in [name for name in sys.modules if name.partition(".")[0] == STUDY]:
            del sys.modules[name]
        sources.forget(STUDY)
        package = ModuleSpec(STUDY, None, is_package=True)
        package.submodule_search_locations = [str(home)]
        sys.modules[STUDY] = module_from_spec(package)
        sources.note(STUDY)
    importlib.invalidate_caches()
    return stale


def folders() -> list[str]:
    """Return the study's folders that contain modules, in the order of :data:`FOLDERS`."""
    return [name for name in FOLDERS if _home is not None and any((_home / name).glob("*.py"))]


@cache
def entries(folder: str, built_in: Path, used: frozenset[str] = frozenset()) -> dict[str, Extension]:
    """Return the entries of one of :data:`FOLDERS` by name. Raises :class:`UserError` for an invalid or used name: one
    in `used`, or of a file in `built_in`, the folder of the built-in entries."""
    extensions: dict[str, Extension] = {}
    for name, extension in (*_of_study(folder), *_of_packages(folder)):
        other = built_in / f"{name}.py"
        if other.exists() or name in used or name in extensions:
            owner = extensions[name].origin if name in extensions else f"the built-in {other}"
            raise UserError(f"{extension.origin}: {name!r} is also the name of {owner}; rename one of them")
        extensions[name] = extension
    return extensions


def _of_study(folder: str) -> Iterator[tuple[str, Extension]]:
    if _home is None:
        return
    for path in sorted((_home / folder).glob("[!_.]*.py")):
        origin = f"{folder}/{path.name}"
        if not re.fullmatch(r"[a-z][a-z0-9_]*", path.stem):
            use = "use a-z, 0-9 and '_', and begin with a letter, or with '_' where it is no entry"
            raise UserError(f"{origin}: the file's name is the entry's; {use}")
        yield path.stem, Extension(f"{STUDY}.{folder}.{path.stem}", path, origin)


def _of_packages(folder: str) -> Iterator[tuple[str, Extension]]:
    for point in _points():
        if point.group == f"pfl.{folder}":
            sources.note(point.module.partition(".")[0])
            distribution = f"{point.dist.name} {point.dist.version}, " if point.dist else ""
            yield point.name, Extension(point.module, _file(point), f"{distribution}{point.module}")


@cache
def modules() -> dict[str, Path]:
    """Return dotted name → file of every module in the study's folders and in packages that have entries."""
    files: dict[str, Path] = {}
    for folder in folders():
        files |= _below(f"{STUDY}.{folder}", (_home or Path()) / folder)
    for point in _points():
        package = point.module.partition(".")[0]
        for place in _locate(package, point).submodule_search_locations or ():
            files |= _below(package, Path(place))
        files.setdefault(point.module, _file(point))
    return files


def _below(package: str, folder: Path) -> dict[str, Path]:
    """Return dotted name → file of the modules below a package's folder."""
    files = {}
    for path in sorted(folder.rglob("*.py")):
        parts = (package, *path.relative_to(folder).with_suffix("").parts)
        files[".".join(parts).removesuffix(".__init__")] = path
    return files


@cache
def _points() -> tuple[EntryPoint, ...]:
    points = entry_points()
    return tuple(point for folder in FOLDERS for point in points.select(group=f"pfl.{folder}"))


def _file(point: EntryPoint) -> Path:
    return Path(_locate(point.module, point).origin or "")


@cache
def _locate(module: str, point: EntryPoint) -> ModuleSpec:
    """Return the spec of a module without importing its packages. Raises :class:`UserError` if it does not exist."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    for part in rest:
        inside = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", inside) if spec and inside else None
    if spec is None or (module == point.module and not spec.origin):
        raise UserError(f"entry point {point.name} = {point.value!r} of {point.group}: there is no module {module}")
    return spec


def place(path: str | Path) -> str | None:
    """Return a path for messages: relative for files of the study, unchanged for files of packages, None for others."""
    path = Path(path)
    if _home is not None and path.is_relative_to(_home):
        return path.relative_to(_home).as_posix() if path.relative_to(_home).parts[0] in FOLDERS else None
    return str(path) if path in modules().values() else None


def fault(extension: Extension, kind: str, error: Exception) -> str:
    """Return file and line, and what is wrong, for an error raised while an entry of this kind was loaded."""
    where, message = extension.origin, str(error)
    if isinstance(error, SyntaxError):
        message = error.msg
        if error.filename and place(error.filename):
            where = f"{place(error.filename)}:{error.lineno}"
    for frame, number in traceback.walk_tb(error.__traceback__):
        if own_place := place(frame.f_code.co_filename):
            where = f"{own_place}:{number}"
    if isinstance(error, UserError) or where == extension.origin:
        return f"{extension.origin}: {error}"
    return f"{where}: the {kind} cannot be imported: {type(error).__name__}: {message}"
