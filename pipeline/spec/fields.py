"""The parts of a run checked against the catalog: an entry with its options, or a group of settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, create_model

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.catalog import Catalog
from pipeline.spec.metrics import Part
from pipeline.spec.run import RUN_FIELDS, SETTINGS, options
from pipeline.spec.schema import first_fault
from pipeline.spec.yamlfile import show


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{show(value)} must be a number")
    return value


_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(eq=False)
class Invalid(Exception):
    """A part of a run that does not validate: the option at fault, its position in a list, and what is wrong."""

    option: str | None  # None when one is missing or several contradict each other
    index: int | None
    message: str


class Fields:
    """Validates the parts of a run against one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._models: dict[tuple[str, str], type[Part]] = catalog.memory
        self._valid: dict[str, dict[str, Any]] = catalog.memory

    def model(self, kind: str, name: str) -> type[Part]:
        """Return the options of an entry, or of a group of settings."""
        if (kind, name) not in self._models:
            fields: dict[str, Any] = {}
            for info in self.catalog.options(kind, name):
                item: Any = _TYPES[info.type]
                if info.choices:  # Python would take true for 1
                    item = Annotated[Literal[info.choices], BeforeValidator(_number)]
                bounds: Any = {key: int(bound) if item is int else bound for key, bound in info.bounds.items()}
                item = Annotated[item, Field(**bounds)] if bounds else item
                item = list[item] if info.many else item
                field = Field(... if info.required else info.default, alias=info.name, description=info.help)
                # Attributes of another name, since an option may be called like a method of models.
                fields[f"of_{info.name}"] = (item | None if info.optional else item, field)
            self._models[kind, name] = create_model(name, __base__=Part, **fields)
        return self._models[kind, name]

    def known(self, kind: str, name: str) -> list[str]:
        """Return the options of an entry, or of a group of settings."""
        return [option.name for option in self.catalog.options(kind, name)]

    def options(self, kind: str) -> list[str]:
        """Return the options of all entries of a kind, or of a group of settings, sorted."""
        return sorted({option for name in self.catalog.names(kind) for option in self.known(kind, name)})

    def beside(self, kind: str) -> list[str]:
        """Return the fields of a run that a value of this component's axis can set beside its own options.

        One that is called like an option of any entry of the kind is none of them: there, that key is the option.
        """
        own = [kind, *self.options(kind)]
        return [field for field in RUN_FIELDS if field not in own]

    def validate(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a part of a run with defaults written out, as JSON data; raise :class:`Invalid`.

        Equal parts are shared: do not modify it. `values` of an entry have a `name` that is known.
        """
        key = json.dumps([kind, values], sort_keys=True)
        if key not in self._valid:
            own = {} if kind in SETTINGS else {"name": values["name"]}
            model = self.model(kind, own.get("name", kind))
            try:
                stated = {option: value for option, value in values.items() if option not in own}
                part = {**own, **model.model_validate(stated).model_dump(by_alias=True)}
                if kind in SETTINGS:
                    SETTINGS[kind](**options(part))
            except ValidationError as error:
                loc, message = first_fault(error, model, "option")
                index = next((step for step in loc[1:] if isinstance(step, int)), None)
                raise Invalid(str(loc[0]) if loc else None, index, message) from None
            except UserError as error:  # each option is right, but they contradict each other
                raise Invalid(None, None, str(error)) from None
            infos = self.catalog.options(kind, own.get("name", kind))
            silent = [info.name for info in infos if info.later and part[info.name] == info.default]
            self._valid[key] = {name: value for name, value in part.items() if name not in silent}
        return self._valid[key]

    def stated(self, kind: str, part: Mapping[str, Any], option: str) -> Any:
        """Return the value of an option in a part of a run, which leaves out defaults of options marked `later`."""
        infos = self.catalog.options(kind, str(part.get("name", kind)))
        return part.get(option, next(info.default for info in infos if info.name == option))

    def check_name(self, kind: str, name: Any) -> None:
        """Raise :class:`Invalid` when `name` is not an entry of the kind."""
        if not isinstance(name, str):
            raise Invalid("name", None, f"{show(name)} is no {kind}'s name; quote it if it is one")
        if name not in self.catalog.entries[kind]:
            raise Invalid("name", None, f"unknown {kind} {show(name)}{did_you_mean(name, self.catalog.names(kind))}")
