"""Strict, lazy registries: a module is an entry of its name, but for small entries that share one.

``pflcore/methods/fedrep.py`` holds the method ``fedrep``. Nothing else has to be edited to add one: names are read from
the folder, a module is imported when its entry is first asked for, and every generic test runs over all names. Entries
of a study and of installed packages join them (:mod:`pflcore.extensions`).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from pflcore import extensions
from pflcore.errors import UserError
from pflcore.extensions import Extension
from pflcore.options import check_options, describe_options


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Entry:
    """Base of everything that can be registered: a frozen dataclass whose fields are made by :func:`option`.

    The class docstring is what ``pfl describe`` prints; its first line is what ``pfl list`` prints.
    """

    name: ClassVar[str]
    citation: ClassVar[str] = ""
    # Raised when the entry's numbers change, so that results of before are not taken for those of now.
    results_version: ClassVar[int] = 1
    # Option values that shrink this entry for the `smoke` profile, where a run must end in seconds on a CPU.
    smoke: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        check_options(self)


# Entries that share a module with others of their package: name → module. Their classes say their `name`. It stands
# here, since names are read without importing the package.
SHARED: dict[str, dict[str, str]] = {
    "pflcore.methods": {
        **dict.fromkeys(("fedavg", "local", "fedper", "fedbn", "vanilla_attention"), "simple"),
        **dict.fromkeys(("personal_groups", "lg_fedavg", "knn_per"), "simple"),
        **dict.fromkeys(("fedtp", "fedtp_fedrod"), "fedtp"),
    },
    "pflcore.datasets": {
        **dict.fromkeys(("cifar10", "cifar100"), "cifar"),
        **dict.fromkeys(("mnist", "svhn", "synthdigits", "usps"), "digit_sets"),
        **dict.fromkeys(("office31", "officehome"), "domain_images"),
        **dict.fromkeys(("image_folder", "image_table", "detection_folder"), "own_images"),
        **dict.fromkeys(("voc2007", "voc2012", "voc_detection"), "voc"),
    },
    "pflcore.backbones": {
        **dict.fromkeys(("convnet", "lenet", "lenet_bn"), "convnet"),
        **dict.fromkeys(("resnet50", "timm_model", "vit"), "timm_model"),
    },
    "pflcore.analyses": {
        **dict.fromkeys(("mixing", "layer_weights"), "mixtures"),
        **dict.fromkeys(("rollout", "detections"), "pictures"),
    },
}

E_ = TypeVar("E_", bound=Entry)
_ROOT = Path(__file__).parent


class Registry(Generic[E_]):
    """The entries of one kind, found by file name in one package, and those that join them from elsewhere.

    Args:
        kind: What an entry is called in messages, e.g. ``"method"``.
        package: Dotted name of the package that holds one module per entry. Modules whose name starts with an
            underscore are shared code, not entries.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._shared = SHARED.get(package, {})
        self._classes: dict[str, type[E_]] = {}

    def names(self) -> list[str]:
        """All entry names, sorted, without importing any of them. Raises :class:`UserError` when one is taken twice."""
        path = importlib.import_module(self.package).__path__
        modules = {module.name for module in pkgutil.iter_modules(path) if not module.name.startswith("_")}
        return sorted([*(modules - set(self._shared.values())), *self._shared, *self._joined()])

    def register(self, cls: type[E_]) -> type[E_]:
        """Class decorator, which makes the class a frozen dataclass if it is none by itself.

        Raises:
            TypeError: The class is not alone in a module of the registry's package.
        """
        package, _, name = cls.__module__.rpartition(".")
        if package == self.package and name in self._shared.values():
            name = vars(cls).get("name", "")
            if self._shared.get(name) != cls.__module__.rpartition(".")[2]:
                raise TypeError(f"{cls.__qualname__} must say its name as SHARED in pflcore.registry has it")
        elif package != self.package:
            name = next((name for name, one in self._joined().items() if one.module == cls.__module__), "")
        if not name:
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
            if one := self._joined().get(name):
                self._load(name, one)
            else:
                importlib.import_module(f"{self.package}.{self._shared.get(name, name)}")
            if name not in self._classes:
                raise TypeError(f"{self.package}.{name} registers nothing")
        return self._classes[name]

    def forget(self, package: str) -> None:
        """Classes that were imported from a package, as its modules are to be imported anew."""
        stay = {name: cls for name, cls in self._classes.items() if cls.__module__.partition(".")[0] != package}
        self._classes = stay

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

    def _joined(self) -> dict[str, Extension]:
        return joined(self.package)

    def _load(self, name: str, one: Extension) -> None:
        try:
            extensions.load(one, self.kind)
        except UserError:
            self._classes.pop(name, None)  # the first of two
            raise
        if name not in self._classes:
            decorator = f"@{self.package.rpartition('.')[2].upper()}.register"
            raise UserError(
                f"{one.origin}: registers no {self.kind}; put {decorator} before its class, or begin the file's name "
                "with '_' where it is none"
            )
        cls = self._classes[name]
        try:
            describe_options(cls)
            if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
                raise TypeError(f"{cls.__qualname__} does not define {', '.join(lacking)}")
        except Exception as error:
            del self._classes[name], sys.modules[one.module]
            raise UserError(f"{one.origin}: {error}") from error


def did_you_mean(name: str, known: list[str]) -> str:
    """The tail of an error message: the nearest known name, or the whole list when nothing is near."""
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


def use_study(home: Path) -> None:
    """Let the entries that lie beside the specs in `home` join, instead of those of any other study."""
    if extensions.enter(home):
        for module, attribute in KINDS.values():
            if module in sys.modules:
                getattr(sys.modules[module], attribute).forget(extensions.STUDY)


def joined(package: str) -> dict[str, Extension]:
    """The entries that join those of a package, by their names. Raises as :func:`extensions.found`."""
    root, _, folder = package.rpartition(".")
    shared = frozenset(SHARED.get(package, {}))
    return extensions.found(folder, _ROOT / folder, shared) if root == _ROOT.name else {}


def module_of(kind: str, name: str) -> str:
    """The module of an entry, as a dotted name, without importing anything."""
    package = KINDS[kind][0]
    own = joined(package).get(name)
    return own.module if own else f"{package}.{SHARED.get(package, {}).get(name, name)}"


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
