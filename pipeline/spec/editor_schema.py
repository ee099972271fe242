"""The spec language as a JSON Schema for editors: the models of specs, and every entry of the catalog."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from pipeline.spec.catalog import Catalog
from pipeline.spec.fields import Fields
from pipeline.spec.figures import figure_names
from pipeline.spec.inherit import ADD
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS
from pipeline.spec.schema import COMPARISONS, SCALARS, SpecFile

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
    names = {"pattern": r"^(training|method|backbone)\."}
    values = {"type": "array", "minItems": 1}
    definitions["space"] = {"type": "object", "propertyNames": names, "additionalProperties": values}
    # Which keys of a claim go together, and that `than` may be `others`.
    claim = definitions["Claim"]
    claim["oneOf"] = [{"required": [form, "than"], "properties": {}} for form in COMPARISONS]
    claim["oneOf"].append({"required": ["within", "over"], "properties": {"than": False, "margin": False}})
    claim["properties"]["than"] = {"anyOf": [{"const": "others"}, claim["properties"]["than"]]}
    del definitions["Publication"]["required"]  # its name may be inherited
    for part in (schema, *(definitions[name] for name in ("Grid", "TableSection", "run", "axes"))):
        arms = ((key, arm) for key, value in part["properties"].items() for arm in value.get("anyOf", [value]))
        part["properties"] |= {key + ADD: _added(key, arm) for key, arm in arms if arm.get("type") == "array"}
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
            lists = {
                name: arms[0] for name, arms in options.items() if self.definitions[arms[0]].get("type") == "array"
            }
            added = {name + ADD: _added(name, _ref(arm)) for name, arm in lists.items()}
            both = {"name": False, **{name: _any(map(_ref, arms)) for name, arms in options.items()}, **added}
            update = _object(f"Options that update the {kind} set elsewhere.", both)
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
        values = {**run, **{kind: _ref(f"{kind}.axis") for kind in COMPONENTS}}
        for kind in (*COMPONENTS, *SETTINGS):
            values |= {f"{kind}.{name}": _any(map(_ref, arms)) for name, arms in self.all_options(kind).items()}
        axes = {name: {"anyOf": [{"type": "array", "items": one}, *_labelled(one)]} for name, one in values.items()}
        patches = {"anyOf": _labelled(_ref("run"))}  # of axes that have names of their own
        self.definitions["axes"] = {"type": "object", "properties": axes, "additionalProperties": patches}

    def options(self, kind: str, name: str) -> dict[str, str]:
        """Return the definition of each option; of options of one name those that differ are numbered."""
        found = {}
        model = self.fields.model(kind, name).model_json_schema(schema_generator=_WithoutTitles)
        for option, schema in model.get("properties", {}).items():
            names = (f"option.{option}" + (f".{number}" if number > 1 else "") for number in itertools.count(1))
            found[option] = next(one for one in names if self.definitions.setdefault(one, schema) == schema)
        return found

    def all_options(self, kind: str) -> dict[str, list[str]]:
        """Return per option of any entry of the kind the definitions of what one of the entries accepts."""
        accepted: dict[str, dict[str, None]] = {}
        for name in self.catalog.names(kind):
            for option, definition in self.options(kind, name).items():
                accepted.setdefault(option, {})[definition] = None
        return {option: list(arms) for option, arms in sorted(accepted.items())}

    def entry(self, kind: str, name: str) -> Schema:
        """Return an entry with its options, or a group of settings."""
        own = {} if kind in SETTINGS else {"name": {"const": name}}
        options = {option: _ref(one) for option, one in self.options(kind, name).items()}
        needed = [*own, *(info.name for info in self.catalog.options(kind, name) if info.required)]
        return _object(self.catalog.entry(kind, name).summary, {**own, **options}) | {"required": needed}

    def entries(self, kind: str) -> list[Schema]:
        """Return what names an entry of a kind, alone or with its options, which are added to the definitions."""
        names = self.catalog.names(kind)
        self.definitions |= {f"{kind}_{name}": self.entry(kind, name) for name in names}
        summaries = [self.catalog.entry(kind, name).summary for name in names]  # editors show them beside the names
        return [{"enum": names, "enumDescriptions": summaries}, *(_ref(f"{kind}_{name}") for name in names)]

    def with_settings(self, kind: str, run: dict[str, Schema]) -> Schema:
        """Return a component as a value of its axis: what of the run goes with it may stand beside its options."""
        beside = {field: run[field] for field in self.fields.beside(kind)}
        options = {name: _any(map(_ref, arms)) for name, arms in self.all_options(kind).items()}
        properties = {"name": {"enum": self.catalog.names(kind)}, **options, **beside}
        both = _object(f"A {kind}, and what of the run goes with it in this row or column.", properties)
        return {"anyOf": [_ref(kind), {**both, "anyOf": [{"required": [field]} for field in beside]}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _any(arms: Iterable[Schema]) -> Schema:
    schemas = list(arms)
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _object(description: str, properties: dict[str, Any]) -> Schema:
    return {"description": description, "type": "object", "properties": properties, "additionalProperties": False}


def _labelled(value: Schema) -> list[Schema]:
    """Return a value per label; null takes an inherited one out, or the axis."""
    return [{"type": "object", "additionalProperties": {"anyOf": [value, _NULL]}}, _NULL]


def _added(key: str, schema: Schema) -> Schema:
    return {**schema, "description": f"Added to the {key} that are inherited."}
