"""The spec language as a JSON Schema for editors: the models of specs, and every entry of the catalog."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pipeline.spec.catalog import Catalog
from pipeline.spec.fields import Fields
from pipeline.spec.figures import figure_names
from pipeline.spec.inherit import ADD
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS
from pipeline.spec.schema import COMPARISONS, SCALARS, SpecFile

_SHARED_LENGTH = 80  # characters of JSON; what is shorter is easier to read where it is needed
_BY_NAME = ("properties", "$defs")  # keywords whose values are schemas by name
_DATA = ("default", "const", "enum", "examples")  # keywords whose values are no schemas


def json_schema(catalog: Catalog) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12), for editors: `# yaml-language-server: $schema=…`."""
    fields = Fields.of(catalog)
    schema = SpecFile.model_json_schema()
    definitions = schema["$defs"]
    run: dict[str, Any] = {}
    for kind in COMPONENTS:
        update = {
            "description": f"Options that update the {kind} set elsewhere.",
            "type": "object",
            "properties": {"name": False, **_with_additions(_all_options(fields, kind))},
            "additionalProperties": False,
        }
        definitions[kind] = {"anyOf": [*_entries(fields, kind, definitions), update]}
        run[kind] = {"$ref": f"#/$defs/{kind}"}
    for field, kind in LISTS.items():
        items = {"anyOf": _entries(fields, kind, definitions)}
        run[field] = {"type": "array", "items": items, "description": f"Of `pfl list {field}`, each at most once."}
    for name, (least, description) in SCALARS.items():
        run[name] = {"type": "integer", "minimum": least, "description": description}
    for kind in SETTINGS:
        definitions[kind] = fields.model(kind, kind).model_json_schema()
        run[kind] = {"$ref": f"#/$defs/{kind}"}
    run = {name: run[name] for name in RUN_FIELDS}
    definitions["run"] = {
        "description": "A run, or a patch of one.",
        "type": "object",
        "properties": run,
        "additionalProperties": False,
    }
    # No entry has a dot in its name, so none of its definitions is called like these.
    definitions |= {f"{kind}.axis": _with_settings(fields, kind, run) for kind in COMPONENTS}
    definitions["axes"] = _axes(fields, {**run, **{kind: {"$ref": f"#/$defs/{kind}.axis"} for kind in COMPONENTS}})
    definitions["space"] = {
        "type": "object",
        "propertyNames": {"pattern": r"^(training|method|backbone)\."},
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    definitions["figure"] = {"enum": figures_of(catalog)}
    schema = _fill_placeholders(schema)
    definitions = schema["$defs"]
    definitions["Claim"] |= _claim_forms(definitions["Claim"]["properties"])
    del definitions["Publication"]["required"]  # its name may be inherited
    for part in (schema, *(definitions[name] for name in ("Grid", "TableSection", "run", "axes"))):
        part["properties"] = _with_additions(part["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **share(schema)}


def figures_of(catalog: Catalog) -> list[str]:
    """Return the figures that a spec can list."""
    return sorted({*figure_names(), *catalog.names("analysis")})


def share(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the same schema with a definition, named after its property, for each longer part that occurs twice.

    Titles that only repeat a property's name are left out.
    """
    uses: Counter[str] = Counter()
    _count(schema, uses)
    names: dict[str, str] = {}  # by content
    added: dict[str, Any] = {}

    def inside(part: Any, name: str) -> Any:
        """Return a part whose own parts are shared; `name` is that of the nearest property."""
        if isinstance(part, list):
            return [placed(inner, name) for inner in part]
        if not isinstance(part, dict):
            return part
        result: dict[str, Any] = {}
        for key, inner in part.items():
            if key == "properties":
                result[key] = {property_: placed(value, property_) for property_, value in inner.items()}
            elif key != "title" or inner != name.replace("_", " ").title():
                result[key] = inner if key in _DATA else placed(inner, name)
        return result

    def placed(part: Any, name: str) -> Any:
        """Return a part, or in its place where its definition is."""
        text = json.dumps(part, sort_keys=True)
        if not isinstance(part, dict) or uses[text] < 2 or len(text) < _SHARED_LENGTH:
            return inside(part, name)
        if text not in names:
            stem = f"option.{name.rpartition('.')[2].removesuffix('+')}"
            taken = sum(other == stem or other.startswith(f"{stem}.") for other in names.values())
            names[text] = f"{stem}.{taken + 1}" if taken else stem
            added[names[text]] = inside(part, name)
        return {"$ref": f"#/$defs/{names[text]}"}

    own = {name: inside(part, name) for name, part in schema["$defs"].items()}
    rest = inside({key: part for key, part in schema.items() if key != "$defs"}, "")
    return {**rest, "$defs": {**own, **dict(sorted(added.items()))}}


def _count(part: Any, uses: Counter[str]) -> None:
    """Count how often each schema occurs, without those within another that has been seen."""
    for key, inner in part.items() if isinstance(part, dict) else enumerate(part if isinstance(part, list) else ()):
        if key in _BY_NAME:
            _count([*inner.values()], uses)
        elif isinstance(inner, dict) and key not in _DATA:
            uses[text := json.dumps(inner, sort_keys=True)] += 1
            if uses[text] == 1:
                _count(inner, uses)
        elif isinstance(inner, list):
            _count(inner, uses)


def _entries(fields: Fields, kind: str, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what names an entry of a kind, alone or with its options, which are added to the definitions."""
    names = fields.catalog.names(kind)
    definitions |= {f"{kind}_{name}": fields.model(kind, name).model_json_schema() for name in names}
    summaries = [fields.catalog.entry(kind, name).summary for name in names]  # editors show them beside the names
    return [{"enum": names, "enumDescriptions": summaries}, *({"$ref": f"#/$defs/{kind}_{name}"} for name in names)]


def _with_settings(fields: Fields, kind: str, run: dict[str, Any]) -> dict[str, Any]:
    """Return a component as a value of its axis: what of the run goes with it may stand beside its options."""
    beside = {field: run[field] for field in fields.beside(kind)}
    both = {
        "description": f"A {kind}, and what of the run goes with it in this row or column.",
        "type": "object",
        "properties": {"name": {"enum": fields.names(kind)}, **_all_options(fields, kind), **beside},
        "anyOf": [{"required": [field]} for field in beside],
        "additionalProperties": False,
    }
    return {"anyOf": [{"$ref": f"#/$defs/{kind}"}, both]}


def _with_additions(properties: dict[str, Any]) -> dict[str, Any]:
    """Return properties with a key for each list that adds to what is inherited of it."""
    added = {}
    for key, value in properties.items():
        for arm in value.get("anyOf", [value]) if isinstance(value, dict) else ():
            if arm.get("type") == "array":
                added[key + ADD] = {**arm, "description": f"Added to the {key} that are inherited."}
    return {**properties, **added}


def _all_options(fields: Fields, kind: str) -> dict[str, Any]:
    """Return per option of any entry of the kind what one of the entries accepts."""
    accepted: dict[str, list[Any]] = {}
    for name in fields.names(kind):
        properties = fields.model(kind, name).model_json_schema()["properties"]
        for option in fields.known(kind, name):
            if properties[option] not in accepted.setdefault(option, []):
                accepted[option].append(properties[option])
    return {option: arms[0] if len(arms) == 1 else {"anyOf": arms} for option, arms in sorted(accepted.items())}


def _axes(fields: Fields, run: dict[str, Any]) -> dict[str, Any]:
    """Return the axes: run fields and `part.option` take lists or labelled values, any other name labelled patches."""
    values = dict(run)
    for kind in (*COMPONENTS, *SETTINGS):
        values |= {f"{kind}.{option}": value for option, value in _all_options(fields, kind).items()}
    axes = {name: {"anyOf": [{"type": "array", "items": value}, *_labelled(value)]} for name, value in values.items()}
    labelled = {"anyOf": _labelled({"$ref": "#/$defs/run"})}
    return {"type": "object", "properties": axes, "additionalProperties": labelled}


def _labelled(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a value per label; null takes an inherited one out, or the axis."""
    null = {"type": "null"}
    return [{"type": "object", "additionalProperties": {"anyOf": [value, null]}}, null]


def _claim_forms(properties: dict[str, Any]) -> dict[str, Any]:
    """Return which keys of a claim go together, and that `than` may be `others`."""
    forms: list[dict[str, Any]] = [{"required": [form, "than"], "properties": {}} for form in COMPARISONS]
    forms.append({"required": ["within", "over"], "properties": {"than": False, "margin": False}})
    than = {"anyOf": [{"const": "others"}, properties["than"]]}
    return {"properties": {**properties, "than": than}, "oneOf": forms}


def _fill_placeholders(value: Any) -> Any:
    if isinstance(value, list):
        return [_fill_placeholders(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {key: _fill_placeholders(item) for key, item in value.items() if key != "$comment"}
    return {"$ref": f"#/$defs/{value['$comment']}", **result} if "$comment" in value else result
