"""Reading, finding, inheriting and selecting specs, the catalogue, and the schema for editors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_catalog import CATALOG, write_specs
from support.project import make_project, spec

from pflcore.errors import UserError
from pflcore.registry import KINDS, registry_of
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.generated import write
from pipeline.spec import catalog as module
from pipeline.spec.catalog import Catalog, load_catalog
from pipeline.spec.editor_schema import json_schema
from pipeline.spec.figures import figure_names
from pipeline.spec.selection import SpecSelection, add, drop, named, read_selection
from pipeline.spec.specs import find_specs, inherit, load_spec
from pipeline.spec.yamlfile import MAX_NODES, Document, Mark, dotted, load_yaml, parse_yaml

SCALARS = {
    "1e-3": 0.001, "1e3": 1000.0, "0.1": 0.1, ".5": 0.5, "5.": 5.0, "-3": -3, "+3": 3, "0": 0, "true": True,
    "false": False, "null": None, "~": None, "": None, "on": "on", "no": "no", "True": "True", "007": "007",
    "0x10": "0x10", "1_000": "1_000", "1:30": "1:30", "2020-01-01": "2020-01-01", "'5'": "5", '"true"': "true",
    "''": "", "=": "=", "FedAvg-T": "FedAvg-T", "Δ×": "Δ×",
}  # fmt: skip


def test_scalars_and_lines(tmp_path: Path) -> None:
    for text, value in SCALARS.items():
        found = parse_yaml(f"key: {text}\n", "a.yaml").data["key"]
        assert (found, type(found)) == (value, type(value)), text
    assert parse_yaml("50: a\ntrue: b\n1.0: c\n", "a.yaml").data == {"50": "a", "true": "b", "1.0": "c"}
    assert len(parse_yaml("a:\n" + "- 1\n" * (MAX_NODES - 2), "a.yaml").data["a"]) == MAX_NODES - 2
    text = "title: t\nshared: &s\n  lr: 1\ngrid:\n  copy: *s\n  list:\n    - 1\n    - {a: 2}\n"
    (tmp_path / "a.yaml").write_text("\ufeff" + text, encoding="utf-8")
    document = load_yaml(tmp_path / "a.yaml", "specs/a.yaml")
    assert document.data["grid"] == {"copy": {"lr": 1}, "list": [1, {"a": 2}]}
    assert {dotted(address): mark.line for address, mark in document.marks.items()} == {
        "": 1, "title": 1, "shared": 2, "shared.lr": 3, "grid": 4, "grid.copy": 5, "grid.copy.lr": 3, "grid.list": 6,
        "grid.list[0]": 7, "grid.list[1]": 8, "grid.list[1].a": 8,
    }  # fmt: skip
    assert str(document.error(("grid", "list", 1, "none", 0), "bad")) == "specs/a.yaml:8: grid.list[1].none[0]: bad"


def test_ids_are_paths_below_the_folder(tmp_path: Path) -> None:
    names = ["b.yaml", "a/table2.yaml", "a/table2.v1.yaml", ".hidden.yaml", ".git/x.yaml", "b.csv", "README.md"]
    specs = write_specs(tmp_path, {f"specs/{name}": "title: x\n" for name in names})
    found = list(find_specs(specs).items())
    assert found == [(name, specs / f"{name}.yaml") for name in ("a/table2", "a/table2.v1", "b")]


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
    loaded = load_spec(specs / "a.yaml", specs, CATALOG)
    assert loaded.files == ("specs/a.yaml", "specs/sub/middle.yaml", "specs/base.yaml") and not loaded.abstract
    data, marks = loaded.document.data, loaded.document.marks
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


def read(folder: Path, **texts: str) -> tuple[Document, tuple[str, ...]]:
    """Return spec ``a`` with what it inherits, of files given by name without ``.yaml``."""
    specs = write_specs(folder, {f"specs/{name}.yaml": text for name, text in texts.items()})
    return inherit(specs / "a.yaml", specs)


def test_a_file_inherited_in_two_ways_is_merged_once_and_lists_are_added_to(tmp_path: Path) -> None:
    base = "{clients: 1, seed: 1, method: {name: x, parts: [p]}}, axes: {method: {C+: {p: [p]}}}"
    document, files = read(
        tmp_path,
        base=f"notes: [n]\ngrid: {{base: {base}}}\n",
        b="extends: base.yaml\nnotes+: [b]\ngrid: {base: {clients: 2}}\n",
        c="extends: base.yaml\nnotes+: [c]\ngrid: {base: {seed: 2}}\n",
        a="extends: [b.yaml, c.yaml]\nnotes+: [a]\nclaims+: [c]\n"
        "grid: {base: {method: {parts+: [q]}}, axes: {method: {C+: {p+: [q]}}}}\n",
    )
    assert files == ("specs/a.yaml", "specs/c.yaml", "specs/b.yaml", "specs/base.yaml")
    method = {"name": "x", "parts": ["p", "q"]}
    assert document.data["grid"]["base"] == {"clients": 2, "seed": 2, "method": method}
    assert document.data["grid"]["axes"] == {"method": {"C+": {"p": ["p", "q"]}}}  # a label may end in anything
    assert (document.data["notes"], document.data["claims"]) == (["n", "b", "c", "a"], ["c"])
    marks = [("notes",), ("notes", 0), ("notes", 2), ("notes", 3), ("claims", 0)]
    places = ["base.yaml:1", "base.yaml:1", "c.yaml:2", "a.yaml:2", "a.yaml:3"]
    assert [str(document.marks[mark]) for mark in marks] == [f"specs/{place}" for place in places]


# --- the catalogue ----------------------------------------------------------------------------------------------------


def test_the_catalogue_and_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, vit = CATALOG.entry("method", "fedper"), CATALOG.entry("backbone", "vit")
    assert (entry.summary, entry.citation) == ("A personal head.", "Arivazhagan et al., 2019")
    assert entry.facts == {"personal": ["head"], "results_version": 1}
    assert [(option.name, option.required, option.bounds) for option in entry.options] == [("layers", True, {"ge": 1})]
    assert vit.smoke == {"depth": 1} and vit.facts["groups"] == {"qkv": r"attention\.qkv", "head": r"head\."}
    built: list[int] = []
    monkeypatch.setattr(module, "build_catalog", lambda: built.append(1) or CATALOG)
    for damage in (None, "{", "[]", '{"entries": {}, "settings": {}}', "\xff"):
        if damage is not None:
            next((tmp_path / ".pfl").iterdir()).write_bytes(damage.encode("latin1"))
        built.clear()
        assert load_catalog(tmp_path) == load_catalog(tmp_path) == CATALOG and built == [1]
    monkeypatch.setattr(module, "fingerprint", lambda: "0" * 64)
    (tmp_path / ".pfl/other.json").touch()
    assert load_catalog(tmp_path) == CATALOG
    assert sorted(item.name for item in (tmp_path / ".pfl").iterdir()) == [f"catalog-{'0' * 64}.json", "other.json"]


def test_the_real_catalogue_is_read_without_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from pipeline.spec.catalog import load_catalog;"
        "import pipeline.compile.compiler;"
        "catalog = load_catalog(Path(sys.argv[1])); print('torch' in sys.modules); print(catalog.to_json())"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    (first, built), (second, cached) = (output.split("\n", 1) for output in outputs)
    assert (first, second) == ("True", "False") and Catalog.from_json(built) == (known := Catalog.from_json(cached))
    assert {kind: known.names(kind) for kind in KINDS} == {kind: registry_of(kind).names() for kind in KINDS}


# --- the schema -------------------------------------------------------------------------------------------------------

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


def test_the_schema_completes_names_and_refuses_what_is_wrong() -> None:
    schema, names = json_schema(CATALOG), ["fedavg", "fedper", "fedtp"]
    definitions, text = schema["$defs"], json.dumps(schema)
    assert "$comment" not in text and all(f'"#/$defs/{name}"' in text for name in definitions)
    summaries = [CATALOG.entry("method", name).summary for name in names]
    assert definitions["method"]["anyOf"][:2] == [
        {"enum": names, "enumDescriptions": summaries}, {"$ref": "#/$defs/method_fedavg"}
    ]  # fmt: skip
    embedding = {"default": 32, "description": "Length of a client's embedding.", "minimum": 1, "type": "integer"}
    assert definitions["method_fedtp"]["properties"]["embedding"] == embedding
    assert definitions["figure"]["enum"] == sorted([*figure_names(), "maps", "weights"])
    validator = pytest.importorskip("jsonschema").Draft202012Validator(schema)
    assert [text for text in (*RIGHT, *WRONG) if validator.is_valid(parse_yaml(text, "a.yaml").data)] == RIGHT


# --- which specs DVC sees ---------------------------------------------------------------------------------------------

KNOWN = ["alone", "paper/base", "paper/one", "paper/two", "studies/mine"]


def test_what_pyproject_names_and_what_is_added(tmp_path: Path) -> None:
    project = make_project(tmp_path, {})

    def selected(settings: str) -> SpecSelection:
        project.write("pyproject.toml", f"[tool.pfl]\n{settings}\n")
        return read_selection(project.workspace(), KNOWN)

    for settings, default, shared in (
        ("", ["alone"], KNOWN),
        ("compile = []", ["alone"], ["alone"]),
        ("default = ['paper/two']\ncompile = ['studies/*']", ["paper/two"], ["paper/two", "studies/mine"]),
        ("default = []\ncompile = ['paper/one', 'alon?']", [], ["alone", "paper/one"]),
    ):
        assert selected(settings) == SpecSelection(default, shared, [])
    for settings, message in (
        ("compile = ['paper/on']", r"tool\.pfl\.compile: unknown spec 'paper/on'; did you mean 'paper/one'\?"),
        ("default = [3]", r"tool\.pfl\.default = \[3\] must be a list of spec names"),
        ("watch_upgrades = 1", r"tool\.pfl\.watch_upgrades = 1 must be true or false"),
        ("default = [", "not readable as TOML"),
    ):
        with pytest.raises(UserError, match=rf"^pyproject\.toml: {message}"):
            selected(settings)
    add(project.workspace(), ["paper/two", "alone"])
    add(project.workspace(), ["paper/one", "gone"])
    selection = selected("default = []\ncompile = ['alone']")
    assert (selection.added, selection.compiled) == (["paper/one", "paper/two"], ["alone", "paper/one", "paper/two"])
    drop(project.workspace(), ["paper/two", "studies/mine"])
    assert selected("default = []\ncompile = ['alone']").added == ["paper/one"]
    assert named(["specs/paper/two.yaml", "alone", "alone"], KNOWN) == ["paper/two", "alone"]
    assert named(["paper/"], KNOWN) == ["paper/base", "paper/one", "paper/two"]
    with pytest.raises(UserError, match="unknown spec 'papr'; did you mean 'paper'"):
        named(["papr"], KNOWN)


def test_only_what_is_selected_has_stages_and_the_rest_may_be_broken(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/a.yaml": spec(), "specs/b.yaml": spec("[local]", rounds=3)})
    project.write("pyproject.toml", "[tool.pfl]\ncompile = []\n")
    project.compile()
    before = project.generated()
    add(project.workspace(), ["b"])
    project.compile()
    added = project.generated()
    assert added.keys() - before.keys() >= {"stages/tables/b.json"} and added["dvc.yaml"] == before["dvc.yaml"]
    project.write("specs/b.yaml", "gird: {}\n")
    with pytest.raises(UserError, match=r"specs/b\.yaml:1: gird: unknown key"):
        compile_workspace(project.workspace())
    compilation = compile_workspace(project.workspace(), wanted=["a"])
    assert list(compilation.skipped) == ["b"] and list(compilation.tables) == ["a"]
    write(project.workspace(), compilation)  # and what it was is still there
    assert "stages/tables/b.json" in project.generated()
    drop(project.workspace(), ["b"])
    project.compile()
    assert project.generated() == before
