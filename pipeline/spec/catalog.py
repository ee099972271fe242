"""Everything that specs can name, as plain data: entries of the registries with their options, settings, and figures.

Collecting entries imports every method and backbone, and with them torch. The result is therefore stored as JSON under
a name that is a hash of the sources of all entries: reading a spec or completing it in an editor does not wait for
torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, WithJsonSchema, create_model

import pflcore
from pflcore import extensions
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.options import OptionInfo, describe_options
from pflcore.registry import KINDS, did_you_mean, joined, registry_of, use_study
from pipeline.spec.figures import figure_names
from pipeline.spec.metrics import Part
from pipeline.spec.run import RUN_FIELDS, SETTINGS, options
from pipeline.spec.schema import Features, first_fault
from pipeline.spec.yamlfile import Address, show

_HELP = """Use that many generated training samples of the dataset's shape, and a quarter as many test samples, \
instead of the real data; null is the real data."""
STAND_IN = OptionInfo("stand_in", "int", False, True, False, None, _HELP, None, {"ge": 4})
"""An option that every dataset has beside its own: whoever loads a dataset takes it off before creating the entry."""
_HELP = "A frozen encoder whose features clients get in place of samples: `pfl describe features`; null is none."
FEATURES = OptionInfo("features", "features", False, True, False, None, _HELP, None, {}, later=True)
"""Likewise, for the stage that runs the encoder; the keys are those of :class:`pipeline.spec.schema.Features`."""
_HELP = "Seed of the split, whatever the seed of the run; null: that one."
SPLIT_SEED = OptionInfo("seed", "int", False, True, False, None, _HELP, None, {"ge": 0}, later=True)
"""One that every partition has: :attr:`pipeline.spec.run.Run.federation` takes it off."""
_OF_ALL = {"dataset": (STAND_IN, FEATURES), "partition": (SPLIT_SEED,)}
_KEYS = Annotated[dict[str, Any], WithJsonSchema({"$comment": "features"})]
_TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "features": _KEYS}


@dataclass(eq=False)
class Invalid(Exception):
    """A part of a run that does not validate: the option at fault, the place in its value, and what is wrong."""

    option: str | None  # None when one is missing or several contradict each other
    inside: Address
    message: str


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
    # What is wrong with a study's own parts.
    broken: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

    @cached_property
    def _models(self) -> dict[tuple[str, str], type[Part]]:
        return {}

    @cached_property
    def _valid(self) -> dict[str, dict[str, Any]]:
        return {}

    def names(self, kind: str) -> list[str]:
        """Return the entries of one kind, sorted; a group of settings is the only one of its kind."""
        return [kind] if kind in self.settings else sorted(self.entries[kind])

    def entry(self, kind: str, name: str) -> EntryInfo:
        """Return an entry that is known to exist, or a group of settings."""
        return self.settings[kind] if kind in self.settings else self.entries[kind][name]

    def options(self, kind: str, name: str) -> tuple[OptionInfo, ...]:
        """Return what a spec may say about an entry, or about a group of settings."""
        return self.entry(kind, name).options + _OF_ALL.get(kind, ())

    def all_options(self, kind: str) -> list[str]:
        """Return the names of the options of all entries of a kind, or of a group of settings, sorted."""
        return sorted({option.name for name in self.names(kind) for option in self.options(kind, name)})

    def beside(self, kind: str) -> list[str]:
        """Return the fields of a run that a value of this component's axis can set beside its own options.

        One that is called like an option of any entry of the kind is none of them: there, that key is the option.
        """
        own = [kind, *self.all_options(kind)]
        return [field for field in RUN_FIELDS if field not in own]

    def check_part(self, name: str, kinds: Iterable[str]) -> None:
        """Raise :class:`UserError` where a part of the study has that name, is of one of the kinds, and is broken."""
        for kind in kinds:
            if name in self.broken.get(kind, {}):
                raise UserError(self.broken[kind][name])

    def figures(self) -> list[str]:
        """Return the figures that a spec can list."""
        return sorted({*figure_names(), *self.names("analysis")})

    def model(self, kind: str, name: str) -> type[Part]:
        """Return the options of an entry, or of a group of settings."""
        if (kind, name) not in self._models:
            self._models[kind, name] = create_model(name, __base__=Part, **_fields(self.options(kind, name)))
        return self._models[kind, name]

    def encoder(self, backbone: str) -> type[Features]:
        """Return `features` of a dataset with the options of that backbone, which has its weights from `weights`."""
        if ("features", backbone) not in self._models:
            infos = [info for info in self.options("backbone", backbone) if info.name != "pretrained"]
            self._models["features", backbone] = create_model("features", __base__=Features, **_fields(infos))
        return cast("type[Features]", self._models["features", backbone])

    def validate(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a part of a run with defaults written out, as JSON data; raise :class:`Invalid`.

        Equal parts are shared: do not modify it. `values` of an entry have a `name`.
        """
        key = json.dumps([kind, values], sort_keys=True)
        if key not in self._valid:
            self._valid[key] = self._validate(kind, values)
        return self._valid[key]

    def _validate(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        own = {} if kind in SETTINGS else {"name": values["name"]}
        name = own.get("name", kind)
        if not isinstance(name, str):
            raise Invalid("name", (), f"{show(name)} is no {kind}'s name; quote it if it is one")
        if problem := self.broken.get(kind, {}).get(name):
            raise Invalid("name", (), problem)
        if name not in self.names(kind):
            raise Invalid("name", (), f"unknown {kind} {show(name)}{did_you_mean(name, self.names(kind))}")
        model = self.model(kind, name)
        try:
            stated = {option: value for option, value in values.items() if option not in own}
            part = {**own, **model.model_validate(stated).model_dump(by_alias=True)}
            if kind in SETTINGS:
                SETTINGS[kind](**options(part))
        except ValidationError as error:
            loc, message = first_fault(error, model, "option")
            raise Invalid(str(loc[0]) if loc else None, loc[1:], message) from None
        except UserError as error:  # each option is right, but they contradict each other
            raise Invalid(None, (), str(error)) from None
        if kind == "dataset" and part["features"] is not None:
            part["features"] = self._features(part["features"])
        return _without_later(part, self.options(kind, name))

    def _features(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Return `features` of a dataset with defaults written out; raise :class:`Invalid`."""
        name = stated.get("backbone")
        if not isinstance(name, str):
            raise Invalid("features", (), "backbone: must be a name; its options stand beside it")
        if name not in (known := self.names("backbone")):
            hint = did_you_mean(name, known)
            raise Invalid("features", ("backbone",), f"unknown backbone {show(name)}{hint}")
        facts = self.entry("backbone", name).facts
        unfit = {"takes": ("text", "predicts every character of a text"), "predicts": ("boxes", "is a detector")}
        for fact, (value, what) in unfit.items():
            if facts.get(fact) == value:
                raise Invalid("features", ("backbone",), f"{name} {what}, so it has no features of a sample")
        model = self.encoder(name)
        try:
            part = model.model_validate(stated).model_dump(by_alias=True)
        except ValidationError as error:
            raise Invalid("features", *first_fault(error, model, "option")) from None
        part.pop("pretrain" if part["pretrain"] is None else "weights")
        return _without_later(part, [info for info in self.options("backbone", name) if info.name in part])

    def stated(self, kind: str, part: Mapping[str, Any], option: str) -> Any:
        """Return the value of an option in a part of a run, which leaves out defaults of options marked `later`."""
        infos = self.options(kind, str(part.get("name", kind)))
        return part.get(option, next(info.default for info in infos if info.name == option))

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


def _fields(infos: Iterable[OptionInfo]) -> dict[str, Any]:
    """Return options as fields of a model, under other names, as an option may be called like a method of models."""
    fields: dict[str, Any] = {}
    for info in infos:
        item: Any = _TYPES[info.type]
        if info.choices:  # Python would take true for 1
            item = Annotated[Literal[info.choices], BeforeValidator(_no_bool)]
        bounds: Any = {key: int(bound) if item is int else bound for key, bound in info.bounds.items()}
        item = Annotated[item, Field(**bounds)] if bounds else item
        item = list[item] if info.many else item
        field = Field(... if info.required else info.default, alias=info.name, description=info.help)
        fields[f"of_{info.name}"] = (item | None if info.optional else item, field)
    return fields


def _without_later(part: dict[str, Any], infos: Iterable[OptionInfo]) -> dict[str, Any]:
    """Return a part of a run without the options that came later and have their defaults."""
    silent = [info.name for info in infos if info.later and part[info.name] == info.default]
    return {option: value for option, value in part.items() if option not in silent}


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{show(value)} must be a number")
    return value


def load_catalog(root: Path) -> Catalog:
    """Return the catalog of this installation and of the study in `root`, from the cache there when it is current."""
    use_study(root)
    path = root / ".pfl" / f"catalog-{fingerprint()}.json"
    with contextlib.suppress(OSError, ValueError):
        return Catalog.from_json(path.read_text(encoding="utf-8"))
    catalog = build_catalog()
    if catalog.broken:  # perhaps for what is not installed, which the cache does not look at
        return catalog
    with contextlib.suppress(OSError):  # what cannot be stored is made again the next time
        write_text(path, catalog.to_json())
        for other in path.parent.glob("catalog-*.json"):
            if other != path:
                other.unlink(missing_ok=True)
    return catalog


def build_catalog() -> Catalog:
    """Import every registered entry and describe it. Slow the first time in a process: torch is imported.

    What is not built in and cannot be imported is noted as broken, and hides nothing else.
    """
    entries: dict[str, dict[str, EntryInfo]] = {kind: {} for kind in KINDS}
    broken: dict[str, dict[str, str]] = {}
    for kind in KINDS:
        registry, own = registry_of(kind), joined(KINDS[kind][0])
        origins = {name: own[name].origin if name in own else "" for name in registry.names()}
        reserved = {option.name for option in _OF_ALL.get(kind, ())}
        for name, origin in origins.items():
            try:
                entry = describe_entry(name, registry.get(name), origin)
                if taken := sorted(reserved & {option.name for option in entry.options}):
                    every = f"every {kind} has an option {taken[0]!r}; call that of {name!r} otherwise"
                    raise UserError(f"{origin}: {every}")
                entries[kind][name] = entry
            except UserError as error:
                broken.setdefault(kind, {})[name] = str(error)
    return Catalog(entries, {name: describe_entry(name, cls) for name, cls in SETTINGS.items()}, broken)


def describe_entry(name: str, cls: type, origin: str = "") -> EntryInfo:
    """Return one registered class, or one settings dataclass, as data; tuples of options are lists."""
    infos = [
        dataclasses.replace(info, default=list(info.default) if isinstance(info.default, tuple) else info.default)
        for info in describe_options(cls)
    ]
    known = {info.name for info in infos} | {"name", "citation", "smoke"}
    names = [attribute for attribute in dir(cls) if not attribute.startswith("_") and attribute not in known]
    facts = {attribute: _as_plain(inspect.getattr_static(cls, attribute)) for attribute in names}
    facts = {attribute: value for attribute, value in facts.items() if value is not None}
    citation, smoke = getattr(cls, "citation", ""), _as_plain(getattr(cls, "smoke", {}))
    return EntryInfo(name, inspect.getdoc(cls) or "", citation, smoke, tuple(infos), facts, origin)


def _as_plain(value: Any) -> Any:
    """Return plain JSON data, or None for what cannot be said in it (methods, properties, arrays)."""

    def plain(one: Any) -> Any:
        if dataclasses.is_dataclass(one) and not isinstance(one, type):
            return dataclasses.asdict(one)
        return dict(one) if isinstance(one, Mapping) else sorted(one)

    try:
        return json.loads(json.dumps(value, default=plain))
    except (TypeError, ValueError):
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
