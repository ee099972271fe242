"""Finding specs, inheriting, and the schema for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.fake_catalog import BASE, CATALOG, write_specs

from pipeline.spec.figures import figure_names
from pipeline.spec.schema import json_schema
from pipeline.spec.specs import find_specs, flat_id, load_spec
from pipeline.spec.yamlfile import Mark


def test_ids_are_paths_below_the_folder(tmp_path: Path) -> None:
    names = ["b.yaml", "a/table2.yaml", "a/table2.v1.yaml", ".hidden.yaml", ".git/x.yaml", "b.csv", "README.md"]
    specs = write_specs(tmp_path, {f"specs/{name}": "title: x\n" for name in names})
    assert find_specs(specs) == {
        "a/table2": specs / "a/table2.yaml",
        "a/table2.v1": specs / "a/table2.v1.yaml",
        "b": specs / "b.yaml",
    }
    assert flat_id("a/table2.v1") == "a-table2-v1"


def test_a_folder_given_relative_and_untidy(tmp_path: Path, monkeypatch: Any) -> None:
    write_specs(tmp_path, {"specs/sub/a.yaml": "extends: ../b.yaml\n", "specs/b.yaml": "title: b\n"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    specs = Path("other/../specs")
    spec = load_spec(find_specs(specs)["sub/a"], specs, CATALOG)
    assert (spec.id, spec.title, spec.files) == ("sub/a", "b", ("specs/sub/a.yaml", "specs/b.yaml"))


def test_inheritance(tmp_path: Path) -> None:
    specs = write_specs(
        tmp_path,
        {
            "specs/base.yaml": """\
abstract: true
title: Base
notes: [one, two]
paper: {name: P, citation: C}
grid:
  base:
    dataset: ten
    partition: {name: dirichlet, alpha: 0.1, min_samples: 5}
    backbone: vit
    method: {name: fedtp, embedding: 8}
    training: {rounds: 10, lr: 0.1}
  axes:
    method: {A: fedavg, B: {name: fedtp, embedding: 8}, C: fedtp}
    clients: [10, 20]
""",
            "specs/sub/middle.yaml": "extends: ../base.yaml\nabstract: true\ngrid: {base: {seed: 3}}\n",
            "specs/a.yaml": """\
extends: sub/middle.yaml
title: Child
notes: [three]
paper: {table: II}
grid:
  base:
    dataset: {stand_in: null}
    partition: {name: pathological}
    backbone: {depth: 2}
    method: {embedding: 16}
    training: {lr: null, momentum: 0.9}
  axes:
    method:
      B: {embedding: 4}
      A: null
      D: {name: fedavg}
    clients: [30]
""",
        },
    )
    spec = load_spec(specs / "a.yaml", specs, CATALOG)
    assert spec.files == ("specs/a.yaml", "specs/sub/middle.yaml", "specs/base.yaml")
    assert not spec.abstract
    assert spec.document.data == {
        "extends": "sub/middle.yaml",
        "title": "Child",
        "notes": ["three"],  # lists are replaced
        "paper": {"name": "P", "citation": "C", "table": "II"},
        "grid": {
            "base": {
                "dataset": {"name": "ten", "stand_in": None},  # options update a bare name; null without heirs stays
                "partition": {"name": "pathological"},  # a name replaces the component
                "backbone": {"name": "vit", "depth": 2},
                "method": {"name": "fedtp", "embedding": 16},
                "training": {"rounds": 10, "momentum": 0.9},  # null removes what was inherited
                "seed": 3,
            },
            "axes": {
                "method": {"B": {"name": "fedtp", "embedding": 4}, "C": "fedtp", "D": {"name": "fedavg"}},
                "clients": [30],
            },
        },
    }
    assert list(spec.document.data["grid"]["axes"]["method"]) == ["B", "C", "D"]
    marks = spec.document.marks
    assert marks["grid", "base", "seed"] == Mark("specs/sub/middle.yaml", 3)
    assert marks["grid", "base", "training", "rounds"] == Mark("specs/base.yaml", 11)
    assert marks["grid", "base", "training", "momentum"] == Mark("specs/a.yaml", 11)


def test_the_title_is_the_id_unless_stated(tmp_path: Path) -> None:
    specs = write_specs(tmp_path, {"specs/a/b.yaml": f"grid: {{base: {BASE}}}\n"})
    assert load_spec(specs / "a/b.yaml", specs, CATALOG).title == "a/b"


def test_schema_completes_names_and_options() -> None:
    shared, names, kinds = json_schema(CATALOG), ["fedavg", "fedper", "fedtp"], ["maps", "weights"]
    assert "$comment" not in json.dumps(shared)
    assert _references(shared) == {f"#/$defs/{name}" for name in shared["$defs"]}
    schema = _written_out(shared, shared["$defs"])
    definitions = schema["$defs"]
    assert definitions["method"]["anyOf"][:4] == [
        {"enum": names, "enumDescriptions": [CATALOG.entry("method", name).summary for name in names]},
        {"$ref": "#/$defs/method_fedavg"},
        {"$ref": "#/$defs/method_fedper"},
        {"$ref": "#/$defs/method_fedtp"},
    ]
    fedtp = definitions["method_fedtp"]
    assert fedtp["additionalProperties"] is False
    assert fedtp["required"] == ["name"]
    assert fedtp["properties"]["name"]["const"] == "fedtp"
    assert fedtp["properties"]["variant"]["enum"] == ["as_written", "as_released"]
    assert fedtp["properties"]["embedding"] == {
        "default": 32,
        "description": "Length of a client's embedding.",
        "minimum": 1,
        "type": "integer",
    }
    assert "stand_in" in definitions["dataset_ten"]["properties"]
    assert set(definitions["method"]["anyOf"][4]["properties"]) == {
        "name", "layers", "embedding", "server_lr", "normalised", "variant",
    }  # fmt: skip
    assert schema["properties"]["grid"]["$ref"] == "#/$defs/Grid"
    assert definitions["Grid"]["properties"]["base"]["$ref"] == "#/$defs/run"
    assert list(definitions["run"]["properties"]) == [
        "dataset", "partition", "clients", "seed", "backbone", "method", "training", "evaluation", "analyses",
        "analyses+",
    ]  # fmt: skip
    assert definitions["run"]["properties"]["analyses"] == {
        "description": "Of `pfl list analyses`, each at most once.",
        "type": "array",
        "items": {
            "anyOf": [
                {
                    "enum": ["maps", "weights"],
                    "enumDescriptions": [CATALOG.entry("analysis", name).summary for name in kinds],
                },
                {"$ref": "#/$defs/analysis_maps"},
                {"$ref": "#/$defs/analysis_weights"},
            ]
        },
    }
    assert set(definitions["analysis_maps"]["properties"]) == {"name", "clients", "images"}
    assert definitions["figure"]["enum"] == sorted([*figure_names(), "maps", "weights"])
    axes = definitions["axes"]["properties"]
    assert axes["method"]["anyOf"][0] == {"type": "array", "items": {"$ref": "#/$defs/method.axis"}}
    plain, with_settings = definitions["method.axis"]["anyOf"]
    assert plain == {"$ref": "#/$defs/method"}
    assert with_settings["properties"]["training"] == {"$ref": "#/$defs/training"}
    assert {"required": ["training"]} in with_settings["anyOf"]  # else the stricter form holds
    assert "method" not in with_settings["properties"] and "embedding" in with_settings["properties"]
    assert axes["training.rounds"]["anyOf"][0]["items"]["type"] == "integer"
    alpha, removed = axes["partition.alpha"]["anyOf"][1]["additionalProperties"]["anyOf"]
    assert alpha["exclusiveMinimum"] == 0 and removed == axes["partition.alpha"]["anyOf"][2] == {"type": "null"}
    assert "required" not in definitions["Publication"]  # what is not said may be inherited
    assert definitions["Grid"]["properties"]["only"]["additionalProperties"]["anyOf"][1]["type"] == "array"
    assert axes["clients+"]["items"] == axes["clients"]["anyOf"][0]["items"]
    assert {"notes+", "claims+", "figures+"} < set(schema["properties"]) and "title+" not in schema["properties"]
    assert (
        definitions["Grid"]["properties"]["exclude+"]["items"] == definitions["Grid"]["properties"]["exclude"]["items"]
    )
    assert "channels+" in definitions["backbone"]["anyOf"][-1]["properties"]
    assert "channels+" not in definitions["backbone_convnet"]["properties"]  # a name leaves nothing to add to
    assert [arm.get("type") for arm in schema["properties"]["extends"]["anyOf"]] == ["string", "array", "null"]
    claim = definitions["Claim"]
    assert claim["properties"]["than"]["anyOf"][0] == {"const": "others"}
    assert [form["required"] for form in claim["oneOf"]] == [
        ["better", "than"], ["steadier", "than"], ["within", "over"],
    ]  # fmt: skip
    assert claim["oneOf"][2]["properties"] == {"than": False, "margin": False}
    assert claim["required"] == ["text"]


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
