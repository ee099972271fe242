"""Strict, lazy registries: one module is one entry, and the module's name is the entry's name.

``pflcore/methods/fedtp.py`` holds the method ``fedtp``. Nothing else has to be edited to add one: names are read from
the folder, a module is imported when its entry is first asked for, and every generic test runs over all names.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from pflcore.errors import UserError
from pflcore.options import check_options


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Entry:
    """Base of everything that can be registered: a frozen dataclass whose fields are made by :func:`option`.

    The class docstring is what ``pfl describe`` prints; its first line is what ``pfl list`` prints.
    """

    name: ClassVar[str]
    citation: ClassVar[str] = ""
    # Option values that shrink this entry for the `smoke` profile, where a run must end in seconds on a CPU.
    smoke: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        check_options(self)


E_ = TypeVar("E_", bound=Entry)


class Registry(Generic[E_]):
    """The entries of one kind, found by file name in one package.

    Args:
        kind: What an entry is called in messages, e.g. ``"method"``.
        package: Dotted name of the package that holds one module per entry. Modules whose name starts with an
            underscore are shared code, not entries.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._classes: dict[str, type[E_]] = {}

    def names(self) -> list[str]:
        """All entry names, sorted, without importing any of them."""
        path = importlib.import_module(self.package).__path__
        return sorted(module.name for module in pkgutil.iter_modules(path) if not module.name.startswith("_"))

    def register(self, cls: type[E_]) -> type[E_]:
        """Class decorator, which makes the class a frozen dataclass if it is none by itself.

        Raises:
            TypeError: The class is not alone in a module of the registry's package.
        """
        package, _, name = cls.__module__.rpartition(".")
        if package != self.package:
            raise TypeError(f"{cls.__qualname__} must live in a module of {self.package}, not in {cls.__module__}")
        if name in self._classes and self._classes[name].__qualname__ != cls.__qualname__:
            raise TypeError(f"{cls.__module__} registers two entries; one file holds one {self.kind}")
        if "__dataclass_params__" not in vars(cls):
            cls = dataclass(frozen=True, kw_only=True)(cls)
        cls.name = name
        self._classes[name] = cls
        return cls

    def get(self, name: str) -> type[E_]:
        """The class registered under `name`. Raises :class:`UserError` with near matches for an unknown name."""
        if name not in self._classes:
            names = self.names()
            if name not in names:
                raise UserError(f"unknown {self.kind} {name!r}{did_you_mean(name, names)}")
            importlib.import_module(f"{self.package}.{name}")
            if name not in self._classes:
                raise TypeError(f"{self.package}.{name} registers nothing")
        return self._classes[name]

    def create(self, name: str, /, **options: Any) -> E_:
        """An instance of `name`. Raises :class:`UserError` for unknown or invalid options."""
        cls = self.get(name)
        known = [field.name for field in dataclasses.fields(cls)]  # without class variables
        for option in options:
            if option not in known:
                raise UserError(f"{self.kind} {name!r} has no option {option!r}{did_you_mean(option, known)}")
        try:
            return cls(**options)
        except TypeError as error:  # a required option is missing
            raise UserError(f"{self.kind} {name!r}: {error}") from None


def did_you_mean(name: str, known: list[str]) -> str:
    """The tail of an error message: the nearest known name, or the whole list when nothing is near."""
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


def registry_of(kind: str) -> Registry[Any]:
    """The registry of one of the kinds in :data:`KINDS`."""
    module_name, attribute = KINDS[kind]
    registry: Registry[Any] = getattr(importlib.import_module(module_name), attribute)
    return registry


KINDS: dict[str, tuple[str, str]] = {
    "dataset": ("pflcore.datasets", "DATASETS"),
    "partition": ("pflcore.partitions", "PARTITIONS"),
    "backbone": ("pflcore.backbones", "BACKBONES"),
    "method": ("pflcore.methods", "METHODS"),
    "analysis": ("pflcore.analyses", "ANALYSES"),
}
