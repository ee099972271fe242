"""The spec language as a JSON Schema for editors: the models of specs, and every entry of the catalog."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from pipeline.spec.catalog import Catalog
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS
from pipeline.spec.schema import COMPARISONS, SCALARS, Features, SpecFile
from pipeline.spec.specs import ADD

Schema = dict[str, Any]
_NULL = {"type": "null"}


def json_schema(catalog: Catalog) -> Schema:
    """Return the JSON Schema (draft 2020-12), for editors: `# yaml-language-server: $schema=…`."""
    schema: Schema = SpecFile.model_json_schema(schema_generator=_WithoutTitles)
    definitions = schema["$defs"]
    definitions |= _runs(catalog)
    definitions["figure"] = {"enum": catalog.figures()}
    names = {"pattern": r"^(training|method|backbone)\."}
    values = {"type": "array", "minItems": 1}
    definitions["space"] = {"type": "object", "propertyNames": names, "additionalProperties": values}
    # Pydantic's schema does not say which keys of a claim go together, nor that `than` may be `others`.
    claim = definitions["Claim"]
    claim["oneOf"] = [{"required": [form, "than"], "properties": {}} for form in COMPARISONS]
    claim["oneOf"].append({"required": ["within", "over"], "properties": {"than": False, "margin": False}})
    claim["properties"]["than"] = {"anyOf": [{"const": "others"}, claim["properties"]["than"]]}
    del definitions["Publication"]["required"]  # its name may be inherited
    for part in (schema, *(definitions[name] for name in ("Grid", "TableSection", "run", "axes"))):
        part["properties"] |= _added_properties(part["properties"])
    # Pydantic accepts only references to its own definitions, so its models name the others in a `$comment`.
    text = json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    return dict(json.loads(text.replace('"$comment": "', '"$ref": "#/$defs/')))


class _WithoutTitles(GenerateJsonSchema):
    """A generator that leaves out titles that only repeat a field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _runs(catalog: Catalog) -> dict[str, Schema]:
    """Return definitions of runs, of axes, and of every entry and group of settings."""
    definitions: dict[str, Schema] = {}
    accepted: dict[str, dict[str, Schema]] = defaultdict(dict)  # kind → option → what some entry accepts
    for kind in catalog.entries | catalog.settings:
        by_option: dict[str, list[Schema]] = defaultdict(list)
        for name in catalog.names(kind):
            model = catalog.model(kind, name).model_json_schema(schema_generator=_WithoutTitles)
            options = model.get("properties", {})
            for option, schema in options.items():
                if schema not in by_option[option]:
                    by_option[option].append(schema)
            identity = {} if kind in SETTINGS else {"name": {"const": name}}
            required = [*identity, *(info.name for info in catalog.options(kind, name) if info.required)]
            entry = _object(catalog.entry(kind, name).summary, {**identity, **options}) | {"required": required}
            definitions[kind if kind in SETTINGS else f"{kind}_{name}"] = entry
        for option, schemas in sorted(by_option.items()):
            accepted[kind][option] = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        if kind in SETTINGS:
            continue
        names = catalog.names(kind)  # editors show summaries beside them
        named = {"enum": names, "enumDescriptions": [catalog.entry(kind, name).summary for name in names]}
        entries = [named, *(_ref(f"{kind}_{name}") for name in names)]
        if kind in COMPONENTS:
            update = {"name": False, **accepted[kind], **_added_properties(accepted[kind])}
            entries.append(_object(f"Options that update the {kind} set elsewhere.", update))
        definitions[kind] = {"anyOf": entries}
    features = Features.model_json_schema(schema_generator=_WithoutTitles)
    definitions |= features.pop("$defs")
    features["properties"] |= accepted["backbone"] | {"backbone": {"enum": catalog.names("backbone")}}
    features["properties"].pop("pretrained", None)
    definitions["features"] = features
    run: dict[str, Schema] = {kind: _ref(kind) for kind in (*COMPONENTS, *SETTINGS)}
    for name, (minimum, description) in SCALARS.items():
        run[name] = {"type": "integer", "minimum": minimum, "description": description}
    for field, kind in LISTS.items():
        run[field] = {"type": "array", "items": _ref(kind), "description": f"Of `pfl list {field}`, each at most once."}
    run = {name: run[name] for name in RUN_FIELDS}
    definitions["run"] = _object("A run, or a patch of one.", run)
    values = dict(run)
    for kind in COMPONENTS:  # in a value of its axis, fields of the run may stand beside its options
        fields = {field: run[field] for field in catalog.axis_fields(kind)}
        full = _object(
            f"A {kind}, and what of the run goes with it in this row or column.",
            {"name": {"enum": catalog.names(kind)}, **accepted[kind], **fields},
        )
        values[kind] = {"anyOf": [_ref(kind), {**full, "anyOf": [{"required": [field]} for field in fields]}]}
    for kind in (*COMPONENTS, *SETTINGS):
        values |= {f"{kind}.{option}": schema for option, schema in accepted[kind].items()}
    axes = {name: {"anyOf": [{"type": "array", "items": value}, *_by_label(value)]} for name, value in values.items()}
    patches = {"anyOf": _by_label(_ref("run"))}  # of axes that no run field is named after
    definitions["axes"] = {"type": "object", "properties": axes, "additionalProperties": patches}
    return definitions


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _object(description: str, properties: dict[str, Any]) -> Schema:
    return {"description": description, "type": "object", "properties": properties, "additionalProperties": False}


def _by_label(value: Schema) -> list[Schema]:
    """Return the schemas of an axis with a value per label; null removes an inherited label, or the axis."""
    return [{"type": "object", "additionalProperties": {"anyOf": [value, _NULL]}}, _NULL]


def _added_properties(properties: dict[str, Any]) -> dict[str, Schema]:
    """Return a property ``key+`` for each list among the properties of a mapping: it adds to the inherited items."""
    adding: dict[str, Schema] = {}
    for key, value in properties.items():
        for arm in value.get("anyOf", [value]):
            if arm.get("type") == "array":
                adding[key + ADD] = {**arm, "description": f"Added to the {key} that are inherited."}
    return adding
