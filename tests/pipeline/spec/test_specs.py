"""Finding specs, inheriting, and the schema for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.fake_catalog import CATALOG, write_specs

from pipeline.spec.editor_schema import json_schema
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
    schema, names = json_schema(CATALOG), ["fedavg", "fedper", "fedtp"]
    definitions = schema["$defs"]
    assert "$comment" not in json.dumps(schema)
    assert _references(schema) == {f"#/$defs/{name}" for name in definitions}
    summaries = [CATALOG.entry("method", name).summary for name in names]
    assert definitions["method"]["anyOf"][:4] == [
        {"enum": names, "enumDescriptions": summaries}, *({"$ref": f"#/$defs/method_{name}"} for name in names),
    ]  # fmt: skip
    fedtp = definitions["method_fedtp"]
    assert fedtp["additionalProperties"] is False and fedtp["required"] == ["name"]
    assert definitions["option.variant"]["enum"] == ["as_written", "as_released"]
    embedding = {"default": 32, "description": "Length of a client's embedding.", "minimum": 1, "type": "integer"}
    assert definitions["option.embedding"] == embedding
    assert definitions["Grid"]["properties"]["base"]["$ref"] == "#/$defs/run"
    assert set(definitions["analysis_maps"]["properties"]) == {"name", "clients", "images"}
    assert definitions["figure"]["enum"] == sorted([*figure_names(), "maps", "weights"])
    _, with_settings = definitions["method.axis"]["anyOf"]
    assert {"required": ["training"]} in with_settings["anyOf"]  # else the stricter form holds
    assert "channels+" in definitions["backbone"]["anyOf"][-1]["properties"]
    assert "channels+" not in definitions["backbone_convnet"]["properties"]  # a name leaves nothing to add to


RIGHT = [
    "{title: x, notes+: [a], grid: {base: {dataset: {name: ten, stand_in: 8}, analyses+: [maps]}}}",
    "{grid: {axes: {partition.alpha: [0.3], method: [fedavg, {name: fedtp, embedding: 2, training: {lr: 0.1}}]}}}",
    "{grid: {axes: {clients+: [5], dataset: {A: null, B: hundred}, own: {A: {clients: 3}}, training.lr: null}}}",
    "{paper: {table: II}, claims: [{text: t, better: {method: A}, than: others}, {text: t, within: 1, over: [a]}]}",
    "{figures: [maps], tune: {space: {training.lr: [1]}}}",
]
WRONG = {
    "titel": "{titel: x}", "an addition to no list": "{title+: [x]}", "an entry": "{grid: {base: {method: fedpt}}}",
    "an option": "{grid: {base: {method: {name: fedtp, embeding: 2}}}}",
    "a bound": "{grid: {axes: {partition.alpha: [0]}}}", "a type": "{grid: {base: {training: {lr: fast}}}}",
    "a required option": "{grid: {base: {method: {name: fedper}}}}", "a figure": "{figures: [map]}",
    "no comparison": "{claims: [{text: t, better: {method: A}}]}",
    "two claims": "{claims: [{text: t, within: 1, than: others}]}",
}  # fmt: skip


@pytest.mark.parametrize("text", [*RIGHT, *(pytest.param(text, id=name) for name, text in WRONG.items())])
def test_what_the_schema_accepts(text: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema(CATALOG))
    assert validator.is_valid(parse_yaml(text, "a.yaml").data) == (text in RIGHT)


def _references(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_references, value))
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return own.union(*map(_references, value.values()))


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
