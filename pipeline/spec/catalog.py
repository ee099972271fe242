"""Everything that specs can name, as plain data: entries of the registries with their options, and the settings.

Collecting it imports every method and backbone, and with them torch. The result is therefore stored as JSON under a
name that is a hash of the sources of all entries: reading a spec or completing it in an editor does not wait for torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import pflcore
from pflcore import extensions
from pflcore.files import write_text
from pflcore.options import OptionInfo, describe_options
from pflcore.registry import KINDS, joined, registry_of, use_study
from pipeline.spec.run import SETTINGS

_HELP = """Use that many generated training samples of the dataset's shape, and a quarter as many test samples, \
instead of the real data; null is the real data."""
STAND_IN = OptionInfo("stand_in", "int", False, True, False, None, _HELP, None, {"ge": 4})
"""An option that every dataset has beside its own: whoever loads a dataset takes it off before creating the entry."""


@dataclass(frozen=True)
class EntryInfo:
    """One registered entry, such as a dataset or a method, or one group of settings.

    `facts` holds the other public class attributes that are plain data, such as a dataset's shape or a method's
    personal groups. `origin` says where an entry is from that is not built in: a file of the study, or a package.
    """

    name: str
    doc: str
    citation: str
    smoke: dict[str, Any]
    options: tuple[OptionInfo, ...]
    facts: dict[str, Any]
    origin: str = ""

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return self.doc.partition("\n")[0]


@dataclass(frozen=True)
class Catalog:
    """Entries by kind (dataset, method, analysis, …) and name; settings by name (training, evaluation)."""

    entries: dict[str, dict[str, EntryInfo]]
    settings: dict[str, EntryInfo]

    @cached_property
    def memory(self) -> dict[Any, Any]:
        """What :mod:`pipeline.spec.fields` has made of it, for all specs."""
        return {}

    def names(self, kind: str) -> list[str]:
        """Return the entries of one kind, sorted; a group of settings is the only one of its kind."""
        return [kind] if kind in self.settings else sorted(self.entries[kind])

    def entry(self, kind: str, name: str) -> EntryInfo:
        """Return an entry that is known to exist, or a group of settings."""
        return self.settings[kind] if kind in self.settings else self.entries[kind][name]

    def options(self, kind: str, name: str) -> tuple[OptionInfo, ...]:
        """Return what a spec may say about an entry, or about a group of settings."""
        return self.entry(kind, name).options + ((STAND_IN,) if kind == "dataset" else ())

    def to_json(self) -> str:
        """Return JSON, which :meth:`from_json` reads."""
        return _ADAPTER.dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> Catalog:
        """Return the catalog of :meth:`to_json`. Raises ``ValueError`` for another text."""
        catalog = _ADAPTER.validate_json(text)
        if {*catalog.entries} != {*KINDS} or {*catalog.settings} != {*SETTINGS}:
            raise ValueError("not a catalog of this version")
        return catalog


_ADAPTER = TypeAdapter(Catalog)


def load_catalog(root: Path) -> Catalog:
    """Return the catalog of this installation and of the study in `root`, from the cache there when it is current."""
    use_study(root)
    path = root / ".pfl" / f"catalog-{fingerprint()}.json"
    with contextlib.suppress(OSError, ValueError):
        return Catalog.from_json(path.read_text(encoding="utf-8"))
    catalog = build_catalog()
    with contextlib.suppress(OSError):  # what cannot be stored is made again the next time
        write_text(path, catalog.to_json())
        for other in path.parent.glob("catalog-*.json"):
            if other != path:
                other.unlink(missing_ok=True)
    return catalog


def build_catalog() -> Catalog:
    """Import every registered entry and describe it. Slow the first time in a process: torch is imported."""
    entries: dict[str, dict[str, EntryInfo]] = {}
    for kind in KINDS:
        registry, own = registry_of(kind), joined(KINDS[kind][0])
        origins = {name: own[name].origin if name in own else "" for name in registry.names()}
        entries[kind] = {name: describe_entry(name, registry.get(name), origin) for name, origin in origins.items()}
    return Catalog(entries, {name: describe_entry(name, cls) for name, cls in SETTINGS.items()})


def describe_entry(name: str, cls: type, origin: str = "") -> EntryInfo:
    """Return one registered class, or one settings dataclass, as data; defaults are lists where options are tuples."""
    options = [
        dataclasses.replace(info, default=list(info.default) if isinstance(info.default, tuple) else info.default)
        for info in describe_options(cls)
    ]
    known = {option.name for option in options} | {"name", "citation", "smoke"}
    facts = {
        attribute: _as_plain(inspect.getattr_static(cls, attribute))
        for attribute in dir(cls)
        if not attribute.startswith("_") and attribute not in known
    }
    facts = {attribute: value for attribute, value in facts.items() if value is not None}
    citation, smoke = getattr(cls, "citation", ""), dict(getattr(cls, "smoke", {}))
    return EntryInfo(name, inspect.getdoc(cls) or "", citation, smoke, tuple(options), facts, origin)


def _as_plain(value: Any) -> Any:
    """Return plain JSON data, or None for what cannot be said in it (methods, properties, arrays)."""
    if isinstance(value, str | bool | int | float):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        plain = {str(key): _as_plain(item) for key, item in value.items()}
        return None if None in plain.values() else plain
    if isinstance(value, set | frozenset | list | tuple):
        items = [_as_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
        return None if None in items else items
    return None


def fingerprint() -> str:
    """Return a hash of all that a catalog can depend on, of modules by names that are the same wherever they lie."""
    folder = Path(pflcore.__file__).parent
    sources = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.py"))}
    joining = [f"{own[name].origin} {name}" for kind in KINDS for own in [joined(KINDS[kind][0])] for name in own]
    digest = hashlib.sha256(sys.version.encode() + "\0".join(joining).encode())
    for name, path in {**sources, **extensions.modules()}.items():
        content = path.read_bytes()
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
