"""The parts of a run checked against the catalog: an entry with its options, or a group of settings."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pflcore.errors import UserError
from pflcore.options import OptionInfo
from pflcore.registry import did_you_mean
from pipeline.spec.catalog import Catalog
from pipeline.spec.run import RUN_FIELDS, SETTINGS, options
from pipeline.spec.yamlfile import show

_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "str": (str, "text; quote it"),
    "bool": (bool, "true or false"),
}
_BOUNDS: dict[str, tuple[Callable[[Any, float], bool], str]] = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "greater than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}


@dataclass(eq=False)
class Invalid(Exception):
    """A component or a group of settings that does not validate.

    Attributes:
        option: The option at fault, or None when one is missing or several contradict each other.
        index: The position in the option's list, or None.
        message: What is wrong, without the place.
    """

    option: str | None
    index: int | None
    message: str


class Fields:
    """Validates the parts of a run against one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._valid: dict[tuple[str, str], dict[str, Any]] = {}

    def known(self, kind: str, name: str) -> list[str]:
        """Return the options of an entry, or of a group of settings."""
        return [option.name for option in self.catalog.options(kind, name)]

    def names(self, kind: str) -> list[str]:
        """Return the entries of a kind; a group of settings is the only one of its kind."""
        return [kind] if kind in SETTINGS else self.catalog.names(kind)

    def options(self, kind: str) -> list[str]:
        """Return the options of all entries of a kind, or of a group of settings, sorted."""
        return sorted({option for name in self.names(kind) for option in self.known(kind, name)})

    def beside(self, kind: str) -> list[str]:
        """Return the fields of a run that a value of this component's axis can set beside its own options.

        One that is called like an option of any entry of the kind is none of them: there, that key is the option.
        """
        options = self.options(kind)
        return [field for field in RUN_FIELDS if field != kind and field not in options]

    def validate(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a part of a run with defaults written out, as JSON data. Equal parts are shared: do not modify it.

        Args:
            kind: A kind of entries or a settings group.
            values: What the spec says; for an entry with a known `name`.

        Raises:
            Invalid: An option is unknown, missing, or has a bad value.
        """
        key = (kind, json.dumps(values, sort_keys=True))
        if key not in self._valid:
            self._valid[key] = self._validated(kind, values)
        return self._valid[key]

    def stated(self, kind: str, part: Mapping[str, Any], option: str) -> Any:
        """Return the value of an option in a part of a run, which leaves out defaults of options marked `later`."""
        infos = self.catalog.options(kind, str(part.get("name", kind)))
        return part.get(option, next(as_data(info.default) for info in infos if info.name == option))

    def check_name(self, kind: str, name: Any) -> None:
        """Raise :class:`Invalid` when `name` is not an entry of the kind."""
        if not isinstance(name, str):
            raise Invalid("name", None, f"{show(name)} is no {kind}'s name; quote it if it is one")
        if name not in self.catalog.entries[kind]:
            raise Invalid("name", None, f"unknown {kind} {show(name)}{did_you_mean(name, self.catalog.names(kind))}")

    def _validated(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        own = {} if kind in SETTINGS else {"name": values["name"]}
        infos = {info.name: info for info in self.catalog.options(kind, own.get("name", kind))}
        part = {name: _checked(info, values[name]) for name, info in infos.items() if name in values}
        for name in values:
            if name not in infos and name not in own:
                raise Invalid(name, None, f"unknown option{did_you_mean(name, list(infos)) or '; there are none'}")
        for name, info in infos.items():
            if info.required and name not in part:
                raise Invalid(None, None, f"{kind} {show(own.get('name', kind))} needs the option {show(name)}")
        part = {**own, **{name: part.get(name, as_data(info.default)) for name, info in infos.items()}}
        if kind in SETTINGS:
            try:
                SETTINGS[kind](**options(part))
            except UserError as error:  # each option is right, but they contradict each other
                raise Invalid(None, None, str(error)) from None
        silent = {name for name, info in infos.items() if info.later and part[name] == as_data(info.default)}
        return {name: value for name, value in part.items() if name not in silent}


def as_data(default: Any) -> Any:
    """Return a default as JSON data: a tuple is a list there, also where the catalog has not been through JSON."""
    return list(default) if isinstance(default, tuple) else default


def _checked(info: OptionInfo, value: Any) -> Any:
    """Return the value of an option as records have it. Raises :class:`Invalid`."""
    if value is None and info.optional:
        return None
    if not info.many:
        return _checked_item(info, value, None)
    if not isinstance(value, list):
        raise Invalid(info.name, None, f"{show(value)} must be a list")
    return [_checked_item(info, item, index) for index, item in enumerate(value)]


def _checked_item(info: OptionInfo, value: Any, index: int | None) -> Any:
    types, noun = _TYPES[info.type]
    item = float(value) if info.type == "float" and type(value) is int else value
    if info.choices is not None and item not in info.choices:
        raise Invalid(info.name, index, f"{show(item)} must be one of {', '.join(map(show, info.choices))}")
    if not isinstance(item, types) or isinstance(item, bool) != (info.type == "bool"):
        raise Invalid(info.name, index, f"{show(value)} must be {noun}")
    if isinstance(item, float) and not math.isfinite(item):
        raise Invalid(info.name, index, f"{show(value)} must be finite")
    for key, bound in info.bounds.items():
        holds, words = _BOUNDS[key]
        if not holds(item, bound):
            raise Invalid(info.name, index, f"{show(value)} must be {words} {bound:g}")
    return item
