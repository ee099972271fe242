"""The spec language as a JSON Schema for editors: the models of specs, and every entry of the catalog."""

from __future__ import annotations

import itertools
import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from pflcore.options import OptionInfo
from pipeline.spec.catalog import Catalog
from pipeline.spec.fields import Fields, as_data
from pipeline.spec.figures import figure_names
from pipeline.spec.inherit import ADD
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS
from pipeline.spec.schema import COMPARISONS, SCALARS, SpecFile

_TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_NULL = {"type": "null"}

Schema = dict[str, Any]


def json_schema(catalog: Catalog) -> Schema:
    """Return the JSON Schema (draft 2020-12), for editors: `# yaml-language-server: $schema=…`."""
    # Pydantic knows no definitions but its own, so its models name the others in comments.
    text = json.dumps(SpecFile.model_json_schema(schema_generator=_WithoutTitles))
    schema: Schema = json.loads(text.replace('"$comment": "', '"$ref": "#/$defs/'))
    definitions = schema["$defs"]
    definitions |= _Entries(catalog).definitions
    definitions["figure"] = {"enum": figures_of(catalog)}
    definitions["space"] = {
        "type": "object",
        "propertyNames": {"pattern": r"^(training|method|backbone)\."},
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    definitions["Claim"] |= _claim_forms(definitions["Claim"]["properties"])
    del definitions["Publication"]["required"]  # its name may be inherited
    for part in (schema, *(definitions[name] for name in ("Grid", "TableSection", "run", "axes"))):
        part["properties"] |= _additions(part["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def figures_of(catalog: Catalog) -> list[str]:
    """Return the figures that a spec can list."""
    return sorted({*figure_names(), *catalog.names("analysis")})


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out titles that only repeat a field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class _Entries:
    """Definitions of runs and axes, of every entry, and of every option, which many entries share."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.fields = Fields(catalog)
        self.definitions: dict[str, Schema] = {}
        run: dict[str, Schema] = {}
        for kind in COMPONENTS:
            options = self.all_options(kind)
            added = {name + ADD: _added(name, schema) for name, schema in options.items() if self.is_list(schema)}
            update = _object(f"Options that update the {kind} set elsewhere.", {"name": False, **options, **added})
            self.definitions[kind] = {"anyOf": [*self.entries(kind), update]}
            run[kind] = _ref(kind)
        for field, kind in LISTS.items():
            items = {"anyOf": self.entries(kind)}
            run[field] = {"type": "array", "items": items, "description": f"Of `pfl list {field}`, each at most once."}
        for name, (least, description) in SCALARS.items():
            run[name] = {"type": "integer", "minimum": least, "description": description}
        for kind in SETTINGS:
            self.definitions[kind] = self.entry(kind, kind)
            run[kind] = _ref(kind)
        run = {name: run[name] for name in RUN_FIELDS}
        self.definitions["run"] = _object("A run, or a patch of one.", run)
        # No entry has a dot in its name, so none of its definitions is called like these.
        self.definitions |= {f"{kind}.axis": self.with_settings(kind, run) for kind in COMPONENTS}
        self.definitions["axes"] = self.axes({**run, **{kind: _ref(f"{kind}.axis") for kind in COMPONENTS}})

    def option(self, info: OptionInfo) -> Schema:
        """Return a reference to the definition of an option; options of one name that differ are numbered."""
        one: Schema = {"enum": list(info.choices)} if info.choices else {"type": _TYPES[info.type]}
        one |= {_BOUNDS[key]: bound for key, bound in info.bounds.items()}
        schema = {"type": "array", "items": one} if info.many else one
        schema = {"anyOf": [schema, _NULL]} if info.optional else schema
        schema |= {"description": info.help} | ({} if info.required else {"default": as_data(info.default)})
        names = (f"option.{info.name}" + (f".{number}" if number > 1 else "") for number in itertools.count(1))
        return _ref(next(name for name in names if self.definitions.setdefault(name, schema) == schema))

    def entry(self, kind: str, name: str) -> Schema:
        """Return an entry with its options, or a group of settings."""
        infos = self.catalog.options(kind, name)
        own = {} if kind in SETTINGS else {"name": {"const": name}}
        summary = (self.catalog.settings if kind in SETTINGS else self.catalog.entries[kind])[name].summary
        schema = _object(summary, {**own, **{info.name: self.option(info) for info in infos}})
        return schema | {"required": [*own, *(info.name for info in infos if info.required)]}

    def entries(self, kind: str) -> list[Schema]:
        """Return what names an entry of a kind, alone or with its options, which are added to the definitions."""
        names = self.catalog.names(kind)
        self.definitions |= {f"{kind}_{name}": self.entry(kind, name) for name in names}
        summaries = [self.catalog.entry(kind, name).summary for name in names]  # editors show them beside the names
        return [{"enum": names, "enumDescriptions": summaries}, *(_ref(f"{kind}_{name}") for name in names)]

    def all_options(self, kind: str) -> dict[str, Schema]:
        """Return per option of any entry of the kind what one of the entries accepts."""
        accepted: dict[str, list[Schema]] = {}
        for name in self.fields.names(kind):
            for info in self.catalog.options(kind, name):
                arms = accepted.setdefault(info.name, [])
                arms += [arm for arm in [self.option(info)] if arm not in arms]
        return {option: arms[0] if len(arms) == 1 else {"anyOf": arms} for option, arms in sorted(accepted.items())}

    def is_list(self, option: Schema) -> bool:
        """Return whether an option, given by its reference, is a list."""
        return self.definitions.get(option.get("$ref", "").removeprefix("#/$defs/"), {}).get("type") == "array"

    def with_settings(self, kind: str, run: dict[str, Schema]) -> Schema:
        """Return a component as a value of its axis: what of the run goes with it may stand beside its options."""
        beside = {field: run[field] for field in self.fields.beside(kind)}
        properties = {"name": {"enum": self.fields.names(kind)}, **self.all_options(kind), **beside}
        both = _object(f"A {kind}, and what of the run goes with it in this row or column.", properties)
        return {"anyOf": [_ref(kind), {**both, "anyOf": [{"required": [field]} for field in beside]}]}

    def axes(self, run: dict[str, Schema]) -> Schema:
        """Return the axes: run fields and `part.option` take lists or labelled values, other names labelled patches."""
        values = dict(run)
        for kind in (*COMPONENTS, *SETTINGS):
            values |= {f"{kind}.{option}": value for option, value in self.all_options(kind).items()}
        axes = {name: {"anyOf": [{"type": "array", "items": one}, *_labelled(one)]} for name, one in values.items()}
        return {"type": "object", "properties": axes, "additionalProperties": {"anyOf": _labelled(_ref("run"))}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _object(description: str, properties: dict[str, Any]) -> Schema:
    return {"description": description, "type": "object", "properties": properties, "additionalProperties": False}


def _labelled(value: Schema) -> list[Schema]:
    """Return a value per label; null takes an inherited one out, or the axis."""
    return [{"type": "object", "additionalProperties": {"anyOf": [value, _NULL]}}, _NULL]


def _added(key: str, schema: Schema) -> Schema:
    return {**schema, "description": f"Added to the {key} that are inherited."}


def _additions(properties: dict[str, Any]) -> dict[str, Schema]:
    """Return a key for each list, which adds to what is inherited of it."""
    arms = ((key, arm) for key, value in properties.items() for arm in value.get("anyOf", [value]))
    return {key + ADD: _added(key, arm) for key, arm in arms if arm.get("type") == "array"}


def _claim_forms(properties: dict[str, Any]) -> Schema:
    """Return which keys of a claim go together, and that `than` may be `others`."""
    forms: list[Schema] = [{"required": [form, "than"], "properties": {}} for form in COMPARISONS]
    forms.append({"required": ["within", "over"], "properties": {"than": False, "margin": False}})
    than = {"anyOf": [{"const": "others"}, properties["than"]]}
    return {"properties": {**properties, "than": than}, "oneOf": forms}
