"""Strict, lazy registries: a module is the entry of its name, or has several entries that state their names.

``pflcore/methods/pfedgp.py`` has the method ``pfedgp``; ``simple.py`` has several, each with a line such as ``name =
"fedavg"``. To add an entry, no other file has to be edited. Registries also have the entries of a study and of
installed packages (:mod:`pflcore.extensions`).
"""

import dataclasses
import difflib
import importlib
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast, dataclass_transform

from pflcore import extensions
from pflcore.errors import UserError
from pflcore.extensions import Extension
from pflcore.options import check_options, describe_options

KINDS: dict[str, tuple[str, str]] = {
    "dataset": ("pflcore.datasets", "DATASETS"),
    "partition": ("pflcore.partitions", "PARTITIONS"),
    "backbone": ("pflcore.backbones", "BACKBONES"),
    "method": ("pflcore.methods", "METHODS"),
    "condition": ("pflcore.conditions", "CONDITIONS"),
    "analysis": ("pflcore.analyses", "ANALYSES"),
}
_ROOT = Path(__file__).parent
_MAX_LISTED = 50  # names in an error message
_NAME_PATTERN = re.compile(r'^@[A-Z]+\.register\nclass(?:.*\n)*?    name = "(\w+)"$', re.MULTILINE)


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Entry:
    """Base of all entries: frozen dataclasses of :func:`option` fields, whose docstrings `pfl describe` shows."""

    name: ClassVar[str]
    citation: ClassVar[str] = ""
    # Raised when the entry's numbers change, so that earlier results no longer count.
    results_version: ClassVar[int] = 1
    # Option values that shrink this entry for the `smoke` profile, where a run must end in seconds on a CPU.
    smoke: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        check_options(self)


E_ = TypeVar("E_", bound=Entry)


class Registry(Generic[E_]):
    """The entries of one kind, e.g. "method": in a package's modules without an underscore, in studies and packages."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self._classes: dict[str, type[E_]] = {}

    def names(self) -> list[str]:
        """Return all names, sorted, without importing entries. Raises :class:`UserError` if a name is used twice."""
        return sorted([*files_of(self.package), *extensions_of(self.package)])

    def register(self, cls: type[E_]) -> type[E_]:
        """Register a class, as its decorator; raise :class:`TypeError` for a wrong module or an unclear name."""
        names = [name for name in self.names() if module_of(self.kind, name, self.package) == cls.__module__]
        name = names[0] if len(names) == 1 else vars(cls).get("name", "")
        if name not in names:
            problem = f"must live in a module of {self.package}, not in {cls.__module__}"
            raise TypeError(f"{cls.__qualname__} {problem}; beside others it must say its name")
        if name in self._classes and self._classes[name].__qualname__ != cls.__qualname__:
            problem = f"{cls.__module__}: two classes are called {name!r}"
            raise TypeError(f"{problem}; beside others each must state its name")
        if "__dataclass_params__" not in vars(cls):
            cls = dataclass(frozen=True, kw_only=True)(cls)
        cls.name = name
        self._classes[name] = cls
        return cls

    def get(self, name: str) -> type[E_]:
        """Return the class of an entry. Raises :class:`UserError` with near matches for an unknown name."""
        if name not in self._classes:
            if name not in (names := self.names()):
                raise UserError(f"unknown {self.kind} {name!r}{did_you_mean(name, names)}")
            if extension := extensions_of(self.package).get(name):
                self._load(name, extension)
            else:
                importlib.import_module(module_of(self.kind, name, self.package))
            if name not in self._classes:
                raise TypeError(f"{self.package}.{name} registers nothing")
        return self._classes[name]

    def forget(self, package: str) -> None:
        """Forget the classes of a package, so that its modules can be imported again."""
        for name in [name for name, cls in self._classes.items() if cls.__module__.partition(".")[0] == package]:
            del self._classes[name]

    def create(self, name: str, /, **options: Any) -> E_:
        """Return an instance of an entry. Raises :class:`UserError` for unknown, invalid or missing options."""
        cls = self.get(name)
        names = [field.name for field in dataclasses.fields(cls)]
        for option in options:
            if option not in names:
                raise UserError(f"{self.kind} {name!r} has no option {option!r}{did_you_mean(option, names)}")
        try:
            return cls(**options)
        except TypeError as error:  # a required option is missing
            raise UserError(f"{self.kind} {name!r}: {error}") from None

    def _load(self, name: str, extension: Extension) -> None:
        """Import an entry of a study or a package. Raises :class:`UserError` with the place of any fault in it."""
        try:
            importlib.import_module(extension.module)
            if name not in self._classes:
                decorator = f"@{self.package.rpartition('.')[2].upper()}.register"
                why = f"put {decorator} before its class, or begin the file's name with '_' where it is none"
                raise UserError(f"registers no {self.kind}; {why}")
            cls = self._classes[name]
            describe_options(cls)  # raises for an option of an unsupported type
            if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
                raise UserError(f"{cls.__qualname__} does not define {', '.join(lacking)}")
        except Exception as error:
            self._classes.pop(name, None)
            sys.modules.pop(extension.module, None)
            raise UserError(extensions.fault(extension, self.kind, error)) from error


def did_you_mean(name: str, names: list[str]) -> str:
    """Return the end of an error message: the nearest known name, or known names if none is near."""
    if near := difflib.get_close_matches(str(name), names, n=1, cutoff=0.6):
        return f"; did you mean {near[0]!r}?"
    rest = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"; known: {', '.join(names[:_MAX_LISTED])}{rest}" if names else ""


def use_study(home: Path) -> None:
    """Make the entries of the study in `home` available, in place of those of any other study."""
    if extensions.enter(home):
        for module, attribute in KINDS.values():
            if module in sys.modules:
                getattr(sys.modules[module], attribute).forget(extensions.STUDY)


@cache
def files_of(package: str) -> dict[str, str]:
    """Return name → file without ``.py`` for the entries in a package."""
    top, _, folder = package.partition(".")
    folders = [_ROOT / folder] if top == _ROOT.name else map(Path, importlib.import_module(package).__path__)
    files = [path for directory in folders for path in sorted(directory.glob("[!_]*.py"))]
    return {name: path.stem for path in files for name in _NAME_PATTERN.findall(path.read_text("utf-8")) or [path.stem]}


def extensions_of(package: str) -> dict[str, Extension]:
    """Return the entries of studies and packages for `package`, by name. Raises like :func:`extensions.entries`."""
    return extensions.entries(*_built_in(package)) if package.startswith(f"{_ROOT.name}.") else {}


@cache
def _built_in(package: str) -> tuple[str, Path, frozenset[str]]:
    """Return the folder of a package, by its name and as a path, and the names of its entries."""
    folder = package.rpartition(".")[2]
    return folder, _ROOT / folder, frozenset(files_of(package))


def module_of(kind: str, name: str, package: str = "") -> str:
    """Return the dotted name of an entry's module without importing it."""
    package = package or KINDS[kind][0]
    extension = extensions_of(package).get(name)
    return extension.module if extension else f"{package}.{files_of(package).get(name, name)}"


def registry_of(kind: str) -> Registry[Any]:
    """Return the registry of one of the kinds in :data:`KINDS`."""
    module, attribute = KINDS[kind]
    return cast(Registry[Any], getattr(importlib.import_module(module), attribute))
