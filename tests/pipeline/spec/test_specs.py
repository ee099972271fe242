"""Finding specs, inheriting, and the schema for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.fake_catalog import CATALOG, write_specs

from pipeline.spec.editor_schema import json_schema, share
from pipeline.spec.figures import figure_names
from pipeline.spec.specs import find_specs, flat_id, load_spec
from pipeline.spec.yamlfile import MAX_NODES, Mark, dotted, load_yaml, parse_yaml


def test_ids_are_paths_below_the_folder(tmp_path: Path) -> None:
    names = ["b.yaml", "a/table2.yaml", "a/table2.v1.yaml", ".hidden.yaml", ".git/x.yaml", "b.csv", "README.md"]
    specs = write_specs(tmp_path, {f"specs/{name}": "title: x\n" for name in names})
    assert find_specs(specs) == {
        "a/table2": specs / "a/table2.yaml",
        "a/table2.v1": specs / "a/table2.v1.yaml",
        "b": specs / "b.yaml",
    }
    assert flat_id("a/table2.v1") == "a-table2-v1"


def test_inheritance(tmp_path: Path) -> None:
    base = """\
abstract: true
notes: [one, two]
paper: {name: P, citation: C}
grid:
  base: {dataset: ten, partition: {name: dirichlet, alpha: 0.1}, backbone: vit, training: {rounds: 10, lr: 0.1}}
  axes: {method: {A: fedavg, B: {name: fedtp, embedding: 8}, C: fedtp}, clients: [10, 20]}
"""
    child = """\
extends: sub/middle.yaml
notes: [three]
paper: {table: II}
grid:
  base:
    dataset: {stand_in: null}
    partition: {name: pathological}
    training: {lr: null, momentum: 0.9}
  axes: {method: {B: {embedding: 4}, A: null, D: {name: fedavg}}, clients: [30]}
"""
    middle = "extends: ../base.yaml\nabstract: true\ngrid: {base: {seed: 3}}\n"
    files = {"specs/base.yaml": base, "specs/sub/middle.yaml": middle, "specs/a.yaml": child}
    specs = write_specs(tmp_path, {name: text.encode() for name, text in files.items()})
    spec = load_spec(specs / "a.yaml", specs, CATALOG)
    assert spec.files == ("specs/a.yaml", "specs/sub/middle.yaml", "specs/base.yaml") and not spec.abstract
    data, marks = spec.document.data, spec.document.marks
    assert data["notes"] == ["three"] and data["paper"] == {"name": "P", "citation": "C", "table": "II"}
    assert data["grid"]["base"] == {
        "dataset": {"name": "ten", "stand_in": None},  # options update a bare name; null without heirs stays
        "partition": {"name": "pathological"},  # a name replaces the component
        "backbone": "vit",
        "training": {"rounds": 10, "momentum": 0.9},  # null removes what was inherited
        "seed": 3,
    }
    methods = {"B": {"name": "fedtp", "embedding": 4}, "C": "fedtp", "D": {"name": "fedavg"}}
    assert data["grid"]["axes"] == {"method": methods, "clients": [30]}  # lists are replaced
    assert list(data["grid"]["axes"]["method"]) == ["B", "C", "D"]
    assert marks["grid", "base", "seed"] == Mark("specs/sub/middle.yaml", 3)
    assert marks["grid", "base", "training", "rounds"] == Mark("specs/base.yaml", 5)
    assert marks["grid", "base", "training", "momentum"] == Mark("specs/a.yaml", 8)


def test_schema_completes_names_and_options() -> None:
    shared, names = json_schema(CATALOG), ["fedavg", "fedper", "fedtp"]
    assert "$comment" not in json.dumps(shared)
    assert _references(shared) == {f"#/$defs/{name}" for name in shared["$defs"]}
    schema = _written_out(shared, shared["$defs"])
    definitions = schema["$defs"]
    summaries = [CATALOG.entry("method", name).summary for name in names]
    assert definitions["method"]["anyOf"][:4] == [
        {"enum": names, "enumDescriptions": summaries}, *({"$ref": f"#/$defs/method_{name}"} for name in names),
    ]  # fmt: skip
    fedtp = definitions["method_fedtp"]
    assert fedtp["additionalProperties"] is False and fedtp["required"] == ["name"]
    assert fedtp["properties"]["variant"]["enum"] == ["as_written", "as_released"]
    embedding = {"default": 32, "description": "Length of a client's embedding.", "minimum": 1, "type": "integer"}
    assert fedtp["properties"]["embedding"] == embedding
    assert "stand_in" in definitions["dataset_ten"]["properties"]
    assert definitions["Grid"]["properties"]["base"]["$ref"] == "#/$defs/run"
    assert {"dataset", "training", "analyses", "analyses+"} < set(definitions["run"]["properties"])
    assert definitions["run"]["properties"]["analyses"]["items"]["anyOf"][1] == {"$ref": "#/$defs/analysis_maps"}
    assert set(definitions["analysis_maps"]["properties"]) == {"name", "clients", "images"}
    assert definitions["figure"]["enum"] == sorted([*figure_names(), "maps", "weights"])
    assert schema["properties"]["figures"]["anyOf"][0]["items"] == {"$ref": "#/$defs/figure"}
    axes = definitions["axes"]["properties"]
    assert axes["method"]["anyOf"][0] == {"type": "array", "items": {"$ref": "#/$defs/method.axis"}}
    plain, with_settings = definitions["method.axis"]["anyOf"]
    assert plain == {"$ref": "#/$defs/method"}
    assert with_settings["properties"]["training"] == {"$ref": "#/$defs/training"}
    assert {"required": ["training"]} in with_settings["anyOf"]  # else the stricter form holds
    alpha, removed = axes["partition.alpha"]["anyOf"][1]["additionalProperties"]["anyOf"]
    assert alpha["exclusiveMinimum"] == 0 and removed == axes["partition.alpha"]["anyOf"][2] == {"type": "null"}
    assert "required" not in definitions["Publication"]  # what is not said may be inherited
    assert axes["clients+"]["items"] == axes["clients"]["anyOf"][0]["items"]
    assert {"notes+", "claims+", "figures+"} < set(schema["properties"]) and "title+" not in schema["properties"]
    assert "channels+" in definitions["backbone"]["anyOf"][-1]["properties"]
    assert "channels+" not in definitions["backbone_convnet"]["properties"]  # a name leaves nothing to add to
    forms = [form["required"] for form in definitions["Claim"]["oneOf"]]
    assert forms == [["better", "than"], ["steadier", "than"], ["within", "over"]]


def _written_out(value: Any, definitions: dict[str, Any]) -> Any:
    """With what is shared in each of its places."""
    if isinstance(value, list):
        return [_written_out(inner, definitions) for inner in value]
    if not isinstance(value, dict):
        return value
    name = str(value.get("$ref", "")).removeprefix("#/$defs/")
    if name.startswith("option."):
        return _written_out(definitions[name], definitions)
    return {key: _written_out(inner, definitions) for key, inner in value.items()}


def _references(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_references, value))
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return own.union(*map(_references, value.values()))


# A JSON Schema without what it says twice.

LR = {"description": "Learning rate of the clients' optimiser, above nothing.", "exclusiveMinimum": 0, "title": "Lr"}
OTHER = {"description": "Learning rate of the server's optimiser, may be none.", "minimum": 0, "title": "Server lr"}


def test_what_occurs_twice_is_a_definition() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/a"}, "title": {"type": "string", "title": "Title"}},
        "$defs": {
            "a": {"properties": {"lr": LR, "few": {"type": "integer"}, "server_lr": OTHER}, "default": LR},
            "b": {"properties": {"lr": LR, "few": {"type": "integer"}}, "title": "b"},
            "axes": {"properties": {"training.lr": {"anyOf": [{"type": "array", "items": LR}, {"type": "null"}]}}},
        },
    }
    rate = {"$ref": "#/$defs/option.lr"}
    assert share(schema) == {
        "properties": {"a": {"$ref": "#/$defs/a"}, "title": {"type": "string"}},
        "$defs": {
            "a": {"properties": {"lr": rate, "few": {"type": "integer"}, "server_lr": OTHER}, "default": LR},
            "b": {"properties": {"lr": rate, "few": {"type": "integer"}}, "title": "b"},
            "axes": {"properties": {"training.lr": {"anyOf": [{"type": "array", "items": rate}, {"type": "null"}]}}},
            "option.lr": {key: value for key, value in LR.items() if key != "title"},
        },
    }


def test_other_options_of_the_same_name_are_told_apart() -> None:
    changed = {**LR, "exclusiveMinimum": 1}
    one, two = {"properties": {"lr": LR}}, {"properties": {"lr": changed}}
    shared = share({"$defs": {"a": one, "b": two, "c": {**one, "type": "object"}, "d": {**two, "type": "object"}}})
    rates = [shared["$defs"][name]["properties"]["lr"]["$ref"] for name in "abcd"]
    assert rates == [f"#/$defs/option.lr{end}" for end in ("", ".2", "", ".2")]
    assert [shared["$defs"][name]["exclusiveMinimum"] for name in ("option.lr", "option.lr.2")] == [0, 1]


# Scalars, positions and limits of the YAML subset. What is refused is in test_malformed.py.

SCALARS = {
    "1e-3": 0.001, "1e3": 1000.0, "0.1": 0.1, ".5": 0.5, "5.": 5.0, "-3": -3, "+3": 3, "0": 0, "true": True,
    "false": False, "null": None, "~": None, "": None, "on": "on", "no": "no", "True": "True", "007": "007",
    "0x10": "0x10", "1_000": "1_000", "1:30": "1:30", "2020-01-01": "2020-01-01", "'5'": "5", '"true"': "true",
    "''": "", "=": "=", "FedAvg-T": "FedAvg-T", "Δ×": "Δ×",
}  # fmt: skip


def test_scalars() -> None:
    for text, value in SCALARS.items():
        found = parse_yaml(f"key: {text}\n", "a.yaml").data["key"]
        assert (found, type(found)) == (value, type(value)), text


def test_keys_become_text() -> None:
    assert parse_yaml("50: a\ntrue: b\n1.0: c\n", "a.yaml").data == {"50": "a", "true": "b", "1.0": "c"}


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    text = "title: t\nshared: &s\n  lr: 1\ngrid:\n  copy: *s\n  list:\n    - 1\n    - {a: 2}\n"
    (tmp_path / "a.yaml").write_text("\ufeff" + text, encoding="utf-8")
    document = load_yaml(tmp_path / "a.yaml", "specs/a.yaml")
    assert document.data["grid"] == {"copy": {"lr": 1}, "list": [1, {"a": 2}]}
    lines = {dotted(address): mark.line for address, mark in document.marks.items()}
    assert lines == {
        "": 1,
        "title": 1,
        "shared": 2,
        "shared.lr": 3,
        "grid": 4,
        "grid.copy": 5,
        "grid.copy.lr": 3,  # where it is written
        "grid.list": 6,
        "grid.list[0]": 7,
        "grid.list[1]": 8,
        "grid.list[1].a": 8,
    }
    assert document.mark(("grid", "list", 1, "missing", 0)) == Mark("specs/a.yaml", 8)
    assert str(document.error(("grid", "copy", "lr"), "bad")) == "specs/a.yaml:3: grid.copy.lr: bad"


def test_a_repeated_value_is_not_shared() -> None:
    data = parse_yaml("a: &a {x: 1}\nb: *a\n", "a.yaml").data
    data["a"]["x"] = 2
    assert data["b"] == {"x": 1}


def test_as_many_values_as_allowed() -> None:
    text = "a:\n" + "- 1\n" * (MAX_NODES - 2)
    assert len(parse_yaml(text, "a.yaml").data["a"]) == MAX_NODES - 2
