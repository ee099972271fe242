"""Pydantic models of components and settings, made from the catalog, and their errors in words.

Validated components are cached: a grid of a thousand runs holds a few dozen distinct ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from pflcore.errors import UserError
from pflcore.options import OptionInfo
from pflcore.registry import did_you_mean
from pipeline.spec.catalog import Catalog
from pipeline.spec.run import RUN_FIELDS, SETTINGS, options
from pipeline.spec.yamlfile import show

_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
_NEEDS = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text; quote it",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be `key: value` lines",
    "model_type": "must be `key: value` lines",
    "finite_number": "must be finite",
    "too_short": "must not be empty",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "greater than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


class Invalid(Exception):
    """A component or a group of settings that does not validate.

    Attributes:
        option: The option at fault, or None when one is missing or several contradict each other.
        index: The position in the option's list, or None.
        message: What is wrong, without the place.
    """

    def __init__(self, option: str | None, index: int | None, message: str) -> None:
        super().__init__(message)
        self.option = option
        self.index = index
        self.message = message


class Fields:
    """Validates the parts of a run against one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._models: dict[tuple[str, str], type[BaseModel]] = {}
        self._valid: dict[tuple[str, str], dict[str, Any]] = {}

    @classmethod
    def of(cls, catalog: Catalog) -> Fields:
        """Return the fields of a catalog, made once: every spec needs them, and models are slow to make."""
        if not _MADE or _MADE[0].catalog is not catalog:
            _MADE[:] = [cls(catalog)]  # the last alone, or a process that compiles for hours would keep them all
        return _MADE[0]

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

    def model(self, kind: str, name: str) -> type[BaseModel]:
        """Return the strict model of an entry, `name` included, or of a group of settings, whose name is its kind."""
        if (kind, name) not in self._models:
            self._models[kind, name] = _model(kind, name, self.catalog)
        return self._models[kind, name]

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
            name = kind if kind in SETTINGS else values["name"]
            try:
                part = self.model(kind, name).model_validate(dict(values)).model_dump(mode="json", by_alias=True)
                if kind in SETTINGS:
                    SETTINGS[kind](**options(part))
            except ValidationError as error:
                raise self._invalid(kind, name, error) from None
            except UserError as error:  # each option is right, but they contradict each other
                raise Invalid(None, None, str(error)) from None
            for option in self.catalog.options(kind, name):
                if option.later and part[option.name] == _plain(option.default):
                    del part[option.name]
            self._valid[key] = part
        return self._valid[key]

    def stated(self, kind: str, part: Mapping[str, Any], option: str) -> Any:
        """Return the value of an option in a part of a run, which leaves out defaults of options marked `later`."""
        infos = self.catalog.options(kind, str(part.get("name", kind)))
        return part.get(option, next(_plain(info.default) for info in infos if info.name == option))

    def check_name(self, kind: str, name: Any) -> None:
        """Raise :class:`Invalid` when `name` is not an entry of the kind."""
        if not isinstance(name, str):
            raise Invalid("name", None, f"{show(name)} is no {kind}'s name; quote it if it is one")
        if name not in self.catalog.entries[kind]:
            raise Invalid("name", None, f"unknown {kind} {show(name)}{did_you_mean(name, self.catalog.names(kind))}")

    def _invalid(self, kind: str, name: str, error: ValidationError) -> Invalid:
        details = first_error(error)
        option, *rest = details["loc"]
        if details["type"] == "missing":
            return Invalid(None, None, f"{kind} {show(name)} needs the option {show(option)}")
        index = rest[0] if rest and isinstance(rest[0], int) else None
        return Invalid(str(option), index, explain(details, self.known(kind, name)))


_MADE: list[Fields] = []


def first_error(error: ValidationError) -> Any:
    """Return the error to name: what is misspelt says more than what is missing because of it."""
    return min(error.errors(include_url=False), key=lambda item: item["type"] == "missing")


def explain(details: Any, known: list[str]) -> str:
    """Return one of pydantic's errors in a few words, with the offending value.

    Args:
        details: An item of ``ValidationError.errors()``.
        known: The names that would have been accepted, for an unknown one.
    """
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown option{did_you_mean(str(details['loc'][-1]), known) or '; there are none'}"
    if kind == "missing":
        return f"{show(details['loc'][-1])} is missing"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{show(value)} must be {words} {context[key]:g}"
    if kind == "literal_error":
        return f"{show(value)} must be one of {context['expected']}"
    if kind == "value_error":
        return str(context["error"])
    return f"{show(value)} {_NEEDS[kind]}" if kind in _NEEDS else f"{show(value)}: {details['msg']}"


def _option_type(info: OptionInfo) -> Any:
    """Return the annotation that checks one option."""
    base: Any = _TYPES[info.type]
    if info.choices is not None and info.type in ("str", "int"):
        base = Literal[info.choices]
    elif info.choices is not None:
        base = Annotated[base, AfterValidator(_one_of(info.choices))]
    if info.bounds:
        bounds: dict[str, Any] = dict(info.bounds)
        base = Annotated[base, Field(**bounds)]
    if info.many:
        base = Annotated[
            tuple[base, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
        ]
    return base | None if info.optional else base


def _one_of(choices: tuple[Any, ...]) -> Any:
    def check(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{show(value)} must be one of {', '.join(map(show, choices))}")
        return value

    return check


def _model(kind: str, name: str, catalog: Catalog) -> type[BaseModel]:
    info = catalog.settings[kind] if kind in SETTINGS else catalog.entries[kind][name]
    fields: dict[str, Any] = {}
    if kind not in SETTINGS:
        fields["entry_name"] = (Literal[name], Field(alias="name", description=info.summary))
    for option in catalog.options(kind, name):
        default = ... if option.required else option.default
        # Aliases, because an option may be called what BaseModel calls one of its methods.
        field = Field(default, alias=option.name, description=option.help)
        fields[f"option_{option.name}"] = (_option_type(option), field)
    config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, title=name)
    model: type[BaseModel] = create_model(f"{kind}_{name}", __config__=config, __doc__=info.summary, **fields)
    return model


def _plain(default: Any) -> Any:
    """Return a default as JSON data: a tuple is a list there, also where the catalog has not been through JSON."""
    return list(default) if isinstance(default, tuple) else default
