"""Reading, finding, inheriting and selecting specs, the catalogue, and the schema for editors."""

import json
from pathlib import Path

import pytest
from support.fake_catalog import CATALOG, write_specs
from support.mistakes import line_of
from support.paper_specs import catalog_of_all
from support.project import make_project

from pflcore.options import describe_options
from pflcore.registry import KINDS, registry_of
from pflcore.settings import Training
from pipeline.spec import catalog as module
from pipeline.spec.catalog import ADAPTER, load_catalog
from pipeline.spec.editor_schema import json_schema
from pipeline.spec.figures import figure_names
from pipeline.spec.selection import SpecSelection, read_selection
from pipeline.spec.specs import find_specs, load_spec
from pipeline.spec.yamlfile import MAX_NODES, dotted, parse_yaml, read_text

SCALARS = {
    "1e-3": 0.001, "1e3": 1000.0, "0.1": 0.1, ".5": 0.5, "5.": 5.0, "-3": -3, "+3": 3, "0": 0, "true": True,
    "false": False, "null": None, "~": None, "": None, "on": "on", "no": "no", "True": "True", "007": "007",
    "0x10": "0x10", "1_000": "1_000", "1:30": "1:30", "2020-01-01": "2020-01-01", "'5'": "5", '"true"': "true",
    "''": "", "=": "=", "FedAvg-T": "FedAvg-T", "Δ×": "Δ×",
}  # fmt: skip


def test_scalars_and_lines(tmp_path: Path) -> None:
    for text, value in SCALARS.items():
        parsed = parse_yaml(f"key: {text}\n", "a.yaml").data["key"]
        assert (parsed, type(parsed)) == (value, type(value)), text
    assert parse_yaml("50: a\ntrue: b\n1.0: c\n", "a.yaml").data == {"50": "a", "true": "b", "1.0": "c"}
    assert len(parse_yaml("a:\n" + "- 1\n" * (MAX_NODES - 2), "a.yaml").data["a"]) == MAX_NODES - 2
    text = "title: t\nshared: &s\n  lr: 1\ngrid:\n  copy: *s\n  list:\n    - 1\n    - {a: 2}\n"
    (tmp_path / "a.yaml").write_text("\ufeff" + text, encoding="utf-8")
    document = parse_yaml(read_text(tmp_path / "a.yaml", "specs/a.yaml"), "specs/a.yaml")
    assert document.data["grid"] == {"copy": {"lr": 1}, "list": [1, {"a": 2}]}
    assert {dotted(address): mark.line for address, mark in document.marks.items()} == {
        "": 1, "title": 1, "shared": 2, "shared.lr": 3, "grid": 4, "grid.copy": 5, "grid.copy.lr": 3, "grid.list": 6,
        "grid.list[0]": 7, "grid.list[1]": 8, "grid.list[1].a": 8,
    }  # fmt: skip
    assert str(document.error(("grid", "list", 1, "none", 0), "bad")) == "specs/a.yaml:8: grid.list[1].none[0]: bad"
    names = ["b.yaml", "a/table2.yaml", "a/table2.v1.yaml", ".hidden.yaml", ".git/x.yaml", "b.csv", "README.md"]
    specs = write_specs(tmp_path / "names", {f"specs/{name}": "title: x\n" for name in names})
    paths = list(find_specs(specs).items())  # hidden ones are skipped
    assert paths == [(name, specs / f"{name}.yaml") for name in ("a/table2", "a/table2.v1", "b")]


BASE = """\
abstract: true
notes: [one, two]
paper: {name: P, citation: C}
grid:
  base: {dataset: ten, partition: {name: dirichlet, alpha: 0.1}, backbone: convnet, training: {rounds: 10, lr: 0.1}}
  axes: {method: {A: fedavg, B: {name: fedtp, embedding: 8}, C: fedtp, D+: {name: fedper, layers: 1}}, seed: [1, 2]}
"""
MIDDLE = "extends: ../base.yaml\nabstract: true\nnotes+: [three]\ngrid: {base: {seed: 3, training: {rounds: 9}}}\n"
SIDE = "extends: base.yaml\nabstract: true\nnotes+: [four]\ngrid: {base: {backbone: {name: convnet, channels: [4]}}}\n"
CHILD = """\
extends: [sub/middle.yaml, side.yaml]
notes+: [five]
figures+: [maps]
paper: {table: II}
grid:
  base:
    dataset: {stand_in: null}
    partition: {name: pathological}
    backbone: {channels+: [8]}
    training: {lr: null, momentum: 0.9}
  axes: {method: {B: {embedding: 4}, A: null, C: {embedding: 3}, D+: {layers: 2}, E: fedavg}, seed: [5]}
"""


def test_inheritance(tmp_path: Path) -> None:
    texts = {"base": BASE, "sub/middle": MIDDLE, "side": SIDE, "a": CHILD}
    specs = write_specs(tmp_path, {f"specs/{name}.yaml": text for name, text in texts.items()})
    loaded = load_spec(specs / "a.yaml", specs, CATALOG)
    files = ("specs/a.yaml", "specs/side.yaml", "specs/sub/middle.yaml", "specs/base.yaml")
    assert loaded.files == files and not loaded.body.abstract
    data = loaded.document.data
    assert data["notes"] == ["one", "two", "three", "four", "five"] and data["figures"] == ["maps"]
    assert data["paper"] == {"name": "P", "citation": "C", "table": "II"}
    assert data["grid"]["base"] == {
        "dataset": {"name": "ten", "stand_in": None},  # options update a bare name; null without heirs stays
        "partition": {"name": "pathological"},  # a name replaces the component
        "backbone": {"name": "convnet", "channels": [4, 8]},
        "training": {"rounds": 9, "momentum": 0.9},  # null removes; the base of both does not undo what one changed
        "seed": 3,
    }
    axes = data["grid"]["axes"]
    assert list(axes["method"].items()) == [
        ("B", {"name": "fedtp", "embedding": 4}),
        ("C", {"name": "fedtp", "embedding": 3}),
        ("D+", {"name": "fedper", "layers": 2}),  # a label may end in anything
        ("E", "fedavg"),
    ]
    assert axes["seed"] == [5]  # lists are replaced
    places = {
        ("notes",): "base.yaml:2", ("notes", 0): "base.yaml:2", ("notes", 3): "side.yaml:3", ("figures", 0): "a.yaml:3",
        ("grid", "base", "seed"): "sub/middle.yaml:4", ("grid", "axes", "method", "B", "name"): "base.yaml:6",
    }  # fmt: skip
    assert {key: str(loaded.document.marks[key]) for key in places} == {
        key: f"specs/{place}" for key, place in places.items()
    }


# --- the catalogue and the schema -------------------------------------------------------------------------------------


def test_the_catalogue_and_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = catalog_of_all()
    entry, vit = CATALOG.entry("method", "fedper"), CATALOG.entry("backbone", "vit")
    assert (entry.summary, entry.citation) == ("A personal head.", "Arivazhagan et al., 2019")
    assert entry.facts == {"personal": ["head"], "results_version": 1}
    assert [(option.name, option.required, option.bounds) for option in entry.options] == [("layers", True, {"ge": 1})]
    assert vit.smoke == {"depth": 1} and vit.facts["groups"] == {"qkv": r"attention\.qkv", "head": r"head\."}
    built: list[int] = []
    monkeypatch.setattr(module, "build_catalog", lambda: built.append(1) or CATALOG)
    for damage in (None, "{", "[]", "\xff"):
        if damage is not None:
            next((tmp_path / ".pfl").iterdir()).write_bytes(damage.encode("latin1"))
        built.clear()
        assert load_catalog(tmp_path) == load_catalog(tmp_path) == CATALOG and built == [1]
    monkeypatch.setattr(module, "fingerprint", lambda: "0" * 64)
    (tmp_path / ".pfl/other.json").touch()
    assert load_catalog(tmp_path) == CATALOG
    assert sorted(item.name for item in (tmp_path / ".pfl").iterdir()) == [f"catalog-{'0' * 64}.json", "other.json"]
    assert {kind: real.names(kind) for kind in KINDS} == {kind: registry_of(kind).names() for kind in KINDS}
    assert ADAPTER.validate_json(ADAPTER.dump_json(real)) == real


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
    "{claims: [{text: t, better: {method: A}}]}", "{claims: [{text: t, within: 1, over: [a], than: others}]}",
    "{grid: {base: {backbone: {name: convnet, channels+: [3]}}}}",  # a name leaves nothing to add to
]  # fmt: skip


def test_the_schema_completes_names_and_refuses_what_is_wrong() -> None:
    schema, names = json_schema(CATALOG), ["fedavg", "fedper", "fedtp"]
    definitions, text = schema["$defs"], json.dumps(schema)
    assert "$comment" not in text and all(f'"#/$defs/{name}"' in text for name in definitions)
    listed = {"enum": names, "enumDescriptions": [CATALOG.entry("method", name).summary for name in names]}
    assert definitions["method"]["anyOf"][:2] == [listed, {"$ref": "#/$defs/method_fedavg"}]
    embedding = {"default": 32, "description": "Length of a client's embedding.", "minimum": 1, "type": "integer"}
    assert definitions["method_fedtp"]["properties"]["embedding"] == embedding
    assert definitions["figure"]["enum"] == sorted([*figure_names(), "maps", "weights"])
    validator = pytest.importorskip("jsonschema").Draft202012Validator(schema)
    assert [text for text in (*RIGHT, *WRONG) if validator.is_valid(parse_yaml(text, "a.yaml").data)] == RIGHT


# --- which specs DVC sees ---------------------------------------------------------------------------------------------

KNOWN = ["alone", "paper/base", "paper/one", "paper/two", "studies/mine"]
SELECTED = {
    "": (["alone"], KNOWN),
    "compile = []": (["alone"], ["alone"]),
    "default = ['paper/two']\ncompile = ['studies/*']": (["paper/two"], ["paper/two", "studies/mine"]),
    "default = []\ncompile = ['paper/one', 'alon?']": ([], ["alone", "paper/one"]),
    "compile = ['paper/on']": "tool.pfl.compile: unknown spec 'paper/on'; did you mean 'paper/one'?",
    "default = [3]": "tool.pfl.default = [3] must be a list of spec names",
    "watch_upgrades = 1": "tool.pfl.watch_upgrades = 1 must be true or false",
    "default = [": "not readable as TOML",
}
"""Lines of pyproject.toml → default and shared specs, or what is wrong."""


def test_what_pyproject_names(tmp_path: Path) -> None:
    project = make_project(tmp_path, {})
    workspace = project.workspace()

    def selected(settings: str) -> SpecSelection:
        project.write("pyproject.toml", f"[tool.pfl]\n{settings}\n")
        return read_selection(workspace, KNOWN)

    for settings, expected in SELECTED.items():
        if isinstance(expected, tuple):
            assert selected(settings) == SpecSelection(*expected, [])
            continue
        assert line_of(selected, settings).startswith(f"pyproject.toml: {expected}")


def test_later_options_are_in_no_record_at_their_defaults() -> None:
    later = {option.name for option in describe_options(Training) if option.later}
    for catalog in (CATALOG, ADAPTER.validate_json(ADAPTER.dump_json(CATALOG))):  # in which lists are no tuples
        assert "milestones" in later and not later & catalog.validate("training", {"rounds": 3}).keys()
        part = catalog.validate("training", {"milestones": [2], "schedule": "step", "gamma": 0.5})
        assert later & part.keys() == {"milestones", "schedule", "gamma"}
