"""Tables of the spec language: every key of a spec with the values that it takes, its default and its meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pipeline.spec.catalog import Catalog
from pipeline.spec.figures import figure_title
from pipeline.spec.metrics import QUANTITIES
from pipeline.spec.run import COMPONENTS, OPTIONAL, SETTINGS
from pipeline.spec.schema import SCALARS, Features, SpecFile

PARTS = {
    "spec": "SpecFile",
    "run": "",
    "features": "Features",
    "pretrain": "Pretrain",
    "paper": "Publication",
    "grid": "Grid",
    "override": "Override",
    "tune": "Tune",
    "table": "TableSection",
    "quantity": "Quantity",
    "derived": "Derived",
    "claim": "Claim",
    "resources": "Resources",
}
"""Name of a part of a spec in `pfl describe` → the model with its keys; the keys of a run are in the catalog."""

_TYPES = {"boolean": "true or false", "integer": "whole number", "number": "number", "string": "text", "null": "null"}


SpecKey = tuple[str, str, str, str]
"""A key of a part of a spec, what it takes, its default ("required" if there is none), and its meaning."""


def keys_of(part: str, catalog: Catalog) -> list[SpecKey]:
    """Return the keys of a part, which is one of :data:`PARTS` or a group of settings."""
    if part == "run":
        return list(_keys_of_runs())
    root_schema, encoder = SpecFile.model_json_schema(), Features.model_json_schema()
    root_schema["$defs"] |= {**encoder.pop("$defs"), "Features": encoder}
    model = root_schema if part == "spec" else root_schema["$defs"].get(PARTS.get(part, ""))
    model = model or catalog.model(part, part).model_json_schema()
    needed, keys = model.get("required", []), list[SpecKey]()
    for name, schema in model["properties"].items():
        meaning = schema.get("description", "") or _summary(schema, root_schema)
        keys.append((name, _takes(schema), _default(name in needed, schema.get("default", "")), meaning))
    return keys


def metrics() -> list[tuple[str, str]]:
    """Return the names that `table.metric` accepts, each with its meaning."""
    from pipeline.report.legend import PROTOCOLS, SCORES  # imported late, since it imports pandas

    scores = [(f"{name}, clients.{name}, …", f"{words}; under a protocol.") for name, words in SCORES.items()]
    return [*PROTOCOLS.items(), *scores, *((name, kind.words) for name, kind in QUANTITIES.items())]


def figures(catalog: Catalog) -> list[tuple[str, str]]:
    """Return the names that `figures` accepts, each with what the figure shows."""
    return [(name, figure_title(name) or catalog.entry("analysis", name).summary) for name in catalog.figures()]


def _keys_of_runs() -> Iterator[SpecKey]:
    for kind in COMPONENTS:
        help_ = f"A name of `pfl list {kind}s`, or `{{name: …}}` with its options."
        yield kind, "name or options", OPTIONAL.get(kind, {}).get("name", "required"), help_
    for name, (minimum, meaning) in SCALARS.items():
        yield name, f"whole number, at least {minimum}", "0" if name == "seed" else "required", meaning
    for kind in SETTINGS:
        yield kind, f"keys of `{kind}`", "", f"`pfl describe {kind}` has them."
    yield "analyses", "list of names or options", "", "What is made of the trained models: `pfl list analyses`."


def _takes(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_takes(arm) for arm in schema["anyOf"]))
    if names := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return ", ".join(names) if len(names) < 8 else "a name"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        part = next((part for part, model in PARTS.items() if model == name), "")
        return f"keys of `{part}`" if part else "keys"
    if "$comment" in schema:
        return {"run": "fields of a run", "axes": "values per axis", "figure": "figure"}.get(schema["$comment"], "keys")
    match schema.get("type"):
        case "array":
            return f"list of {_takes(schema.get('items', {})) or 'values'}"
        case "object" if "anyOf" in (schema.get("additionalProperties") or {}):
            return "labels per axis"
        case "object":
            return f"mapping to {_takes(schema.get('additionalProperties') or {}) or 'values'}"
        case list(types):
            return "text or number" if "string" in types else " or ".join(_TYPES[type_] for type_ in types)
        case None:
            return ""
        case name:
            return _TYPES[name]


def _summary(schema: dict[str, Any], root_schema: dict[str, Any]) -> str:
    for arm in (schema, schema.get("items", {}), *schema.get("anyOf", [])):
        if "$ref" in arm:
            text = str(root_schema["$defs"][arm["$ref"].rpartition("/")[2]].get("description", ""))
            return text.partition("\n\n")[0].replace("\n", " ")
    return ""


def _default(required: bool, value: Any) -> str:
    if required:
        return "required"
    if value in ("", (), []) or isinstance(value, dict):
        return ""
    return value if isinstance(value, str) else json.dumps(value)
