"""Everything that specs can name, as plain data: entries of the registries with their options, settings, and figures.

Collecting entries imports every method and backbone, and with them torch. The result is therefore stored as JSON, with
a hash of the sources of all entries in the file name, so that reading a spec or completing it in an editor does not
import torch.
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
from pflcore.registry import KINDS, did_you_mean, extensions_of, registry_of, use_study
from pipeline.spec.figures import figure_names
from pipeline.spec.metrics import Part
from pipeline.spec.run import RUN_FIELDS, SETTINGS, options
from pipeline.spec.schema import Features, first_error
from pipeline.spec.yamlfile import Address, show

_HELP = """Use that many generated training samples of the dataset's shape, and a quarter as many test samples, \
instead of the real data; null is the real data."""
STAND_IN = OptionInfo("stand_in", "int", False, True, False, None, _HELP, None, {"ge": 4})
"""An option that every dataset has besides its own; code that loads a dataset removes it before creating the entry."""
_HELP = "A frozen encoder whose features clients get in place of samples: `pfl describe features`; null is none."
FEATURES = OptionInfo("features", "features", False, True, False, None, _HELP, None, {}, later=True)
"""The option of every dataset for the features stage; the keys are those of :class:`pipeline.spec.schema.Features`."""
_HELP = "Seed of the split, whatever the seed of the run; null: that one."
SPLIT_SEED = OptionInfo("seed", "int", False, True, False, None, _HELP, None, {"ge": 0}, later=True)
"""An option that every partition has; :attr:`pipeline.spec.run.Run.federation` removes it."""
_COMMON_OPTIONS = {"dataset": (STAND_IN, FEATURES), "partition": (SPLIT_SEED,)}
_KEYS = Annotated[dict[str, Any], WithJsonSchema({"$comment": "features"})]
_TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "features": _KEYS}


@dataclass(eq=False)
class Invalid(Exception):
    """The error of a part of a run that is not valid: the option, the address in its value, and the message."""

    option: str | None  # None when one is missing or several contradict each other
    inside: Address
    message: str


@dataclass(frozen=True)
class EntryInfo:
    """One registered entry, such as a dataset or a method, or one group of settings.

    `facts` holds the other public class attributes that are plain data, such as a dataset's shape or a method's
    personal groups. `origin` is the file of the study or the package of an entry, or "" if it is built in.
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
    # Kind → name → what is wrong with it, of parts that are not built in.
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
        """Return the options that a spec may set of an entry, or of a group of settings."""
        return self.entry(kind, name).options + _COMMON_OPTIONS.get(kind, ())

    def all_options(self, kind: str) -> list[str]:
        """Return the names of the options of all entries of a kind, or of a group of settings, sorted."""
        return sorted({option.name for name in self.names(kind) for option in self.options(kind, name)})

    def group_of(self, option: str) -> str:
        """Return the group of settings that has an option, or ""."""
        return next((group for group in self.settings if option in self.all_options(group)), "")

    def axis_fields(self, kind: str) -> list[str]:
        """Return the fields of a run that a value of this component's axis can set besides its own options.

        Fields that have the name of an option of any entry of the kind are left out: the key then means the option.
        """
        reserved = [kind, *self.all_options(kind)]
        return [field for field in RUN_FIELDS if field not in reserved]

    def check_part(self, name: str, kinds: Iterable[str]) -> None:
        """Raise :class:`UserError` if a part of one of the kinds has that name and is broken."""
        for kind in kinds:
            if name in self.broken.get(kind, {}):
                raise UserError(self.broken[kind][name])

    def figures(self) -> list[str]:
        """Return the figures that a spec can list."""
        return sorted({*figure_names(), *self.names("analysis")})

    def model(self, kind: str, name: str) -> type[Part]:
        """Return a model of the options of an entry, or of a group of settings."""
        if (kind, name) not in self._models:
            self._models[kind, name] = create_model(name, __base__=Part, **_fields(self.options(kind, name)))
        return self._models[kind, name]

    def encoder(self, backbone: str) -> type[Features]:
        """Return a model of a dataset's `features`, with the backbone's options; `weights` replaces `pretrained`."""
        if ("features", backbone) not in self._models:
            infos = [info for info in self.options("backbone", backbone) if info.name != "pretrained"]
            self._models["features", backbone] = create_model("features", __base__=Features, **_fields(infos))
        return cast("type[Features]", self._models["features", backbone])

    def validate(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a part of a run with defaults written out, as JSON data. Raises :class:`Invalid`.

        Equal `values` give the same object, so do not modify it. `values` of an entry have a `name`.
        """
        key = json.dumps([kind, values], sort_keys=True)
        if key not in self._valid:
            self._valid[key] = self._validate(kind, values)
        return self._valid[key]

    def _validate(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        identity = {} if kind in SETTINGS else {"name": values["name"]}
        name = identity.get("name", kind)
        if not isinstance(name, str):
            raise Invalid("name", (), f"{show(name)} is no {kind}'s name; quote it if it is one")
        if problem := self.broken.get(kind, {}).get(name):
            raise Invalid("name", (), problem)
        if name not in self.names(kind):
            raise Invalid("name", (), f"unknown {kind} {show(name)}{_name_hint(kind, name, self.names(kind))}")
        model = self.model(kind, name)
        try:
            chosen = {option: value for option, value in values.items() if option not in identity}
            part = {**identity, **model.model_validate(chosen).model_dump(by_alias=True)}
            if kind in SETTINGS:
                SETTINGS[kind](**options(part))
        except ValidationError as error:
            loc, message = first_error(error, model, "option")
            raise Invalid(str(loc[0]) if loc else None, loc[1:], message) from None
        except UserError as error:  # each option is valid, but they contradict each other
            raise Invalid(None, (), str(error)) from None
        if kind == "dataset" and part["features"] is not None:
            part["features"] = self._features(part["features"])
        return _without_later(part, self.options(kind, name))

    def _features(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Return `features` of a dataset with defaults written out. Raises :class:`Invalid`."""
        name = features.get("backbone")
        if not isinstance(name, str):
            raise Invalid("features", (), "backbone: must be a name; its options stand beside it")
        if name not in self.entries["backbone"]:
            hint = did_you_mean(name, self.names("backbone"))
            raise Invalid("features", ("backbone",), f"unknown backbone {show(name)}{hint}")
        facts = self.entry("backbone", name).facts
        unfit = {"takes": ("text", "predicts every character of a text"), "predicts": ("boxes", "is a detector")}
        for fact, (value, reason) in unfit.items():
            if facts.get(fact) == value:
                raise Invalid("features", ("backbone",), f"{name} {reason}, so it has no features of a sample")
        model = self.encoder(name)
        try:
            part = model.model_validate(features).model_dump(by_alias=True)
        except ValidationError as error:
            raise Invalid("features", *first_error(error, model, "option")) from None
        part.pop("pretrain" if part["pretrain"] is None else "weights")
        return _without_later(part, [info for info in self.options("backbone", name) if info.name in part])

    def option_value(self, kind: str, part: Mapping[str, Any], option: str) -> Any:
        """Return the value of an option in a part of a run; the default if the part leaves it out (`later`)."""
        infos = self.options(kind, str(part.get("name", kind)))
        return part.get(option, next(info.default for info in infos if info.name == option))


ADAPTER = TypeAdapter(Catalog)  # for the cache, as JSON


def _fields(infos: Iterable[OptionInfo]) -> dict[str, Any]:
    """Return options as fields of a model, under other names, as an option may have the name of a model's method."""
    fields: dict[str, Any] = {}
    for info in infos:
        item: Any = _TYPES[info.type]
        if info.choices:  # in Python true equals 1
            item = Annotated[Literal[info.choices], BeforeValidator(_no_bool)]
        bounds: Any = {key: int(bound) if item is int else bound for key, bound in info.bounds.items()}
        item = Annotated[item, Field(**bounds)] if bounds else item
        item = list[item] if info.many else item
        field = Field(... if info.required else info.default, alias=info.name, description=info.help)
        fields[f"of_{info.name}"] = (item | None if info.optional else item, field)
    return fields


def _name_hint(kind: str, name: str, names: list[str]) -> str:
    """Return the end of an error message: how to name one of timm's models, or else the nearest known entry."""
    if kind == "backbone":
        from timm import is_model  # slow, so only for a message

        if is_model(name):
            return f"; it is one of timm's: write {{name: timm_model, model: {name}}}"
    return did_you_mean(name, names)


def _without_later(part: dict[str, Any], infos: Iterable[OptionInfo]) -> dict[str, Any]:
    """Return a part of a run without the options marked `later` that have their defaults."""
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
        return ADAPTER.validate_json(path.read_bytes())
    catalog = build_catalog()
    if catalog.broken:  # perhaps by a missing package, whose installation does not change the hash
        return catalog
    with contextlib.suppress(OSError):  # without the cache, the next process collects again
        write_text(path, ADAPTER.dump_json(catalog, indent=1).decode())
        for other in path.parent.glob("catalog-*.json"):
            if other != path:
                other.unlink(missing_ok=True)
    return catalog


def build_catalog() -> Catalog:
    """Import every registered entry and describe it. Slow on the first call, which imports torch.

    An entry that is not built in and cannot be used is added to `broken`.
    """
    entries: dict[str, dict[str, EntryInfo]] = {kind: {} for kind in KINDS}
    broken: dict[str, dict[str, str]] = {}
    for kind in KINDS:
        registry, added = registry_of(kind), extensions_of(KINDS[kind][0])
        origins = {name: added[name].origin if name in added else "" for name in registry.names()}
        reserved = {option.name for option in _COMMON_OPTIONS.get(kind, ())}
        for name, origin in origins.items():
            try:
                entry = describe_entry(name, registry.get(name), origin)
                if clashes := sorted(reserved & {option.name for option in entry.options}):
                    every = f"every {kind} has an option {clashes[0]!r}; call that of {name!r} otherwise"
                    raise UserError(f"{origin}: {every}")
                entries[kind][name] = entry
            except UserError as error:
                broken.setdefault(kind, {})[name] = str(error)
    return Catalog(entries, {name: describe_entry(name, cls) for name, cls in SETTINGS.items()}, broken)


def describe_entry(name: str, cls: type, origin: str = "") -> EntryInfo:
    """Return one registered class, or one settings dataclass, as data. Defaults that are tuples become lists."""
    infos = [
        dataclasses.replace(info, default=list(info.default) if isinstance(info.default, tuple) else info.default)
        for info in describe_options(cls)
    ]
    excluded = {info.name for info in infos} | {"name", "citation", "smoke"}
    names = [name for name in dir(cls) if not name.startswith("_") and name not in excluded]
    values = {attribute: _as_plain(inspect.getattr_static(cls, attribute)) for attribute in names}
    facts = {attribute: value for attribute, value in values.items() if value is not None}
    citation, smoke = getattr(cls, "citation", ""), _as_plain(getattr(cls, "smoke", {}))
    return EntryInfo(name, inspect.getdoc(cls) or "", citation, smoke, tuple(infos), facts, origin)


def _as_plain(value: Any) -> Any:
    """Return a value as plain JSON data, or None if JSON cannot represent it (methods, properties, arrays)."""

    def plain(item: Any) -> Any:
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            return dataclasses.asdict(item)
        return dict(item) if isinstance(item, Mapping) else sorted(item)

    try:
        return json.loads(json.dumps(value, default=plain))
    except (TypeError, ValueError):
        return None


def fingerprint() -> str:
    """Return a hash of all that a catalog can depend on. It includes relative names of modules, not their folders."""
    folder = Path(pflcore.__file__).parent
    sources = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.py"))}
    added = [
        f"{entry.origin} {name}" for package, _ in KINDS.values() for name, entry in extensions_of(package).items()
    ]
    digest = hashlib.sha256(sys.version.encode() + "\0".join(added).encode())
    for name, path in {**sources, **extensions.modules()}.items():
        content = path.read_bytes()
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
