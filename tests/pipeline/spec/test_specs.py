"""Reading YAML, finding specs, inheriting, and the schema for editors. What is refused is in test_wrong_specs.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pipeline.spec.figures import figure_names
from pipeline.spec.inherit import inherit
from support.fake_catalog import CATALOG, write_specs

from pipeline.spec.editor_schema import json_schema
from pipeline.spec.specs import find_specs, flat_id, load_spec
from pipeline.spec.yamlfile import MAX_NODES, Document, Mark, dotted, load_yaml, parse_yaml

SCALARS = {
    "1e-3": 0.001, "1e3": 1000.0, "0.1": 0.1, ".5": 0.5, "5.": 5.0, "-3": -3, "+3": 3, "0": 0, "true": True,
    "false": False, "null": None, "~": None, "": None, "on": "on", "no": "no", "True": "True", "007": "007",
    "0x10": "0x10", "1_000": "1_000", "1:30": "1:30", "2020-01-01": "2020-01-01", "'5'": "5", '"true"': "true",
    "''": "", "=": "=", "FedAvg-T": "FedAvg-T", "Δ×": "Δ×",
}  # fmt: skip


def test_scalars_and_keys() -> None:
    for text, value in SCALARS.items():
        found = parse_yaml(f"key: {text}\n", "a.yaml").data["key"]
        assert (found, type(found)) == (value, type(value)), text
    assert parse_yaml("50: a\ntrue: b\n1.0: c\n", "a.yaml").data == {"50": "a", "true": "b", "1.0": "c"}
    assert len(parse_yaml("a:\n" + "- 1\n" * (MAX_NODES - 2), "a.yaml").data["a"]) == MAX_NODES - 2


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    text = "title: t\nshared: &s\n  lr: 1\ngrid:\n  copy: *s\n  list:\n    - 1\n    - {a: 2}\n"
    (tmp_path / "a.yaml").write_text("\ufeff" + text, encoding="utf-8")
    document = load_yaml(tmp_path / "a.yaml", "specs/a.yaml")
    assert document.data["grid"] == {"copy": {"lr": 1}, "list": [1, {"a": 2}]}
    assert document.data["grid"]["copy"] is not document.data["shared"]
    assert {dotted(address): mark.line for address, mark in document.marks.items()} == {
        "": 1, "title": 1, "shared": 2, "shared.lr": 3, "grid": 4, "grid.copy": 5, "grid.copy.lr": 3, "grid.list": 6,
        "grid.list[0]": 7, "grid.list[1]": 8, "grid.list[1].a": 8,
    }  # fmt: skip
    assert document.mark(("grid", "list", 1, "missing", 0)) == Mark("specs/a.yaml", 8)
    assert str(document.error(("grid", "copy", "lr"), "bad")) == "specs/a.yaml:3: grid.copy.lr: bad"


def test_ids_are_paths_below_the_folder(tmp_path: Path) -> None:
    names = ["b.yaml", "a/table2.yaml", "a/table2.v1.yaml", ".hidden.yaml", ".git/x.yaml", "b.csv", "README.md"]
    specs = write_specs(tmp_path, {f"specs/{name}": "title: x\n" for name in names})
    assert list(find_specs(specs).items()) == [
        (name, specs / f"{name}.yaml") for name in ("a/table2", "a/table2.v1", "b")
    ]
    assert flat_id("a/table2.v1") == "a-table2-v1"


def read(folder: Path, **texts: str) -> tuple[Document, tuple[str, ...]]:
    """Return spec ``a`` with what it inherits, of files given by name without ``.yaml``."""
    specs = write_specs(folder, {f"specs/{name}.yaml": text for name, text in texts.items()})
    return inherit(specs / "a.yaml", specs)


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
    specs = write_specs(tmp_path, {"specs/base.yaml": base, "specs/sub/middle.yaml": middle, "specs/a.yaml": child})
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


def test_a_file_inherited_in_two_ways_is_merged_once(tmp_path: Path) -> None:
    """Else the second way would undo what the first has changed, and add to lists twice."""
    document, files = read(
        tmp_path,
        base="notes: [n]\ngrid: {base: {clients: 1, seed: 1}}\n",
        b="extends: base.yaml\nnotes+: [b]\ngrid: {base: {clients: 2}}\n",
        c="extends: base.yaml\nnotes+: [c]\ngrid: {base: {seed: 2}}\n",
        a="extends: [b.yaml, c.yaml]\nnotes+: [a]\n",
    )
    assert files == ("specs/a.yaml", "specs/c.yaml", "specs/b.yaml", "specs/base.yaml")
    assert document.data["grid"]["base"] == {"clients": 2, "seed": 2}
    assert document.data["notes"] == ["n", "b", "c", "a"]


def test_a_list_is_added_to_anywhere(tmp_path: Path) -> None:
    parent = "notes: [one]\ngrid:\n  base: {analyses: [weights], method: {name: x, parts: [p]}}\n"
    parent += "  axes:\n    clients: [5]\n    method: {C+: {name: x, parts: [p]}}\n"
    child = "extends: b.yaml\nnotes+: [two, three]\nclaims+: [c]\ngrid:\n"
    child += (
        "  base: {analyses+: [maps], method: {parts+: [q]}}\n  axes: {clients+: [9], method: {C+: {parts+: [q]}}}\n"
    )
    document, _ = read(tmp_path, b=parent, a=child)
    method = {"name": "x", "parts": ["p", "q"]}
    assert {name: part for name, part in document.data.items() if name != "extends"} == {
        "notes": ["one", "two", "three"],
        "claims": ["c"],  # nothing is inherited, so it is the list
        "grid": {
            "base": {"analyses": ["weights", "maps"], "method": method},
            "axes": {"clients": [5, 9], "method": {"C+": method}},  # a label may end in anything
        },
    }
    marks = [("notes",), ("notes", 0), ("notes", 2), ("claims", 0), ("grid", "axes", "clients", 1)]
    places = ["specs/b.yaml:1", "specs/b.yaml:1", "specs/a.yaml:2", "specs/a.yaml:3", "specs/a.yaml:6"]
    assert [str(document.marks[mark]) for mark in marks] == places


def test_schema_completes_names_and_options() -> None:
    schema, names = json_schema(CATALOG), ["fedavg", "fedper", "fedtp"]
    definitions = schema["$defs"]
    assert "$comment" not in json.dumps(schema) and _references(schema) == {f"#/$defs/{name}" for name in definitions}
    summaries = [CATALOG.entry("method", name).summary for name in names]
    assert definitions["method"]["anyOf"][:4] == [
        {"enum": names, "enumDescriptions": summaries}, *({"$ref": f"#/$defs/method_{name}"} for name in names),
    ]  # fmt: skip
    embedding = {"default": 32, "description": "Length of a client's embedding.", "minimum": 1, "type": "integer"}
    assert definitions["option.embedding"] == embedding
    assert definitions["option.variant"]["enum"] == ["as_written", "as_released"]
    assert definitions["figure"]["enum"] == sorted([*figure_names(), "maps", "weights"])
    assert {"required": ["training"]} in definitions["method.axis"]["anyOf"][1]["anyOf"]  # else the stricter form holds


RIGHT = [
    "{title: x, notes+: [a], grid: {base: {dataset: {name: ten, stand_in: 8}, analyses+: [maps]}}}",
    "{grid: {axes: {partition.alpha: [0.3], method: [fedavg, {name: fedtp, embedding: 2, training: {lr: 0.1}}]}}}",
    "{grid: {axes: {clients+: [5], dataset: {A: null, B: hundred}, own: {A: {clients: 3}}, training.lr: null}}}",
    "{paper: {table: II}, claims: [{text: t, better: {method: A}, than: others}, {text: t, within: 1, over: [a]}]}",
    "{figures: [maps], tune: {space: {training.lr: [1]}}, grid: {base: {backbone: {channels+: [3]}}}}",
]
WRONG = [
    "{titel: x}", "{title+: [x]}", "{grid: {base: {method: fedpt}}}", "{figures: [map]}",
    "{grid: {base: {method: {name: fedtp, embeding: 2}}}}", "{grid: {axes: {partition.alpha: [0]}}}",
    "{grid: {base: {training: {lr: fast}}}}", "{grid: {base: {method: {name: fedper}}}}",
    "{claims: [{text: t, better: {method: A}}]}", "{claims: [{text: t, within: 1, than: others}]}",
    "{grid: {base: {backbone: {name: convnet, channels+: [3]}}}}",  # a name leaves nothing to add to
]  # fmt: skip


def test_what_the_schema_accepts() -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator(json_schema(CATALOG))
    assert [text for text in (*RIGHT, *WRONG) if validator.is_valid(parse_yaml(text, "a.yaml").data)] == RIGHT


def _references(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_references, value))
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return own.union(*map(_references, value.values()))
