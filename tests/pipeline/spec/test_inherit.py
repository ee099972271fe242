"""Specs that extend several files, and lists that are added to."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_catalog import BASE, CATALOG, resolved, write_specs

from pipeline.spec.inherit import inherit
from pipeline.spec.specs import load_spec
from pipeline.spec.yamlfile import Address, Document, Mark


def read(folder: Path, **texts: str) -> tuple[Document, tuple[str, ...]]:
    """Spec ``a`` with what it inherits, of files given by name without ``.yaml``."""
    specs = write_specs(folder, {f"specs/{name}.yaml": text for name, text in texts.items()})
    return inherit(specs / "a.yaml", specs)


def test_several_files_are_laid_over_one_another(tmp_path: Path) -> None:
    document, files = read(
        tmp_path,
        b="abstract: true\ntitle: b\nnotes: [b]\ngrid:\n  base: {clients: 1, seed: 1, method: fedtp}\n",
        c="title: c\ngrid:\n  base: {clients: 2, method: {embedding: 3}, seed: null}\n",
        a="extends: [b.yaml, c.yaml]\ngrid:\n  base: {clients: 3}\n",
    )
    assert files == ("specs/a.yaml", "specs/c.yaml", "specs/b.yaml")
    base = {"clients": 3, "method": {"name": "fedtp", "embedding": 3}}
    assert document.data == {
        "extends": ["b.yaml", "c.yaml"], "title": "c", "notes": ["b"], "grid": {"base": base},
    }  # fmt: skip
    assert document.marks["title",] == Mark("specs/c.yaml", 1)
    assert document.marks["grid", "base", "method", "name"] == Mark("specs/b.yaml", 5)
    assert document.marks["grid", "base", "method", "embedding"] == Mark("specs/c.yaml", 3)
    assert document.mark(("grid", "base", "seed")) == Mark("specs/c.yaml", 3)  # where it was removed


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


def test_a_list_is_replaced_or_added_to_anywhere(tmp_path: Path) -> None:
    document, _ = read(
        tmp_path,
        b="notes: [one]\n"
        "grid:\n"
        "  base:\n"
        "    analyses: [weights]\n"
        "    method: {name: x, parts: [p]}\n"
        "  axes:\n"
        "    clients: [5]\n"
        "    method: {C+: {name: x, parts: [p]}}\n"
        "table: {rows: [r]}\n",
        a="extends: b.yaml\n"
        "notes+: [two, three]\n"
        "claims+: [c]\n"
        "grid:\n"
        "  base: {analyses+: [maps], method: {parts+: [q]}}\n"
        "  axes:\n"
        "    clients+: [9]\n"
        "    method: {C+: {parts+: [q]}}\n"
        "table: {rows: [s]}\n",
    )
    del document.data["extends"]
    method = {"name": "x", "parts": ["p", "q"]}
    assert document.data == {
        "notes": ["one", "two", "three"],
        "claims": ["c"],  # nothing is inherited, so it is the list
        "grid": {
            "base": {"analyses": ["weights", "maps"], "method": method},
            "axes": {"clients": [5, 9], "method": {"C+": method}},  # a label may end in anything
        },
        "table": {"rows": ["s"]},
    }
    assert document.marks["notes",] == document.marks["notes", 0] == Mark("specs/b.yaml", 1)
    assert document.marks["notes", 2] == Mark("specs/a.yaml", 2)
    assert document.marks["claims",] == document.marks["claims", 0] == Mark("specs/a.yaml", 3)
    assert document.marks["grid", "base", "method", "parts", 1] == Mark("specs/a.yaml", 5)
    assert document.marks["grid", "axes", "clients", 1] == Mark("specs/a.yaml", 7)


def test_a_named_component_has_nothing_to_add_to(tmp_path: Path) -> None:
    document, _ = read(
        tmp_path,
        b="grid: {base: {method: {name: x, parts: [p]}}}\n",
        a="extends: b.yaml\ngrid: {base: {method: {name: y, parts+: [q]}}}\n",
    )
    assert document.data["grid"]["base"]["method"] == {"name": "y", "parts": ["q"]}


def test_methods_and_settings_of_two_files(tmp_path: Path) -> None:
    result = resolved(
        tmp_path,
        "extends: [methods.yaml, settings.yaml]\ngrid: {axes: {method: {FedTP: {embedding: 8}}}}\n",
        methods_yaml="abstract: true\ngrid: {axes: {method: {FedAvg: fedavg, FedTP: fedtp}}}\n",
        settings_yaml=f"abstract: true\ngrid: {{base: {BASE}, axes: {{clients: [5, 9]}}}}\n",
    )
    assert result.table is not None
    assert result.table.labels == {"method": ["FedAvg", "FedTP"], "clients": ["5", "9"]}
    assert [run.record["method"].get("embedding") for run in result.runs] == [None, None, 8, 8]


def test_an_abstract_file_may_add_to_lists_of_those_beside_it(tmp_path: Path) -> None:
    specs = write_specs(tmp_path, {"specs/mixin.yaml": "abstract: true\nnotes+: [of the mixin]\n"})
    assert load_spec(specs / "mixin.yaml", specs, CATALOG).body.notes == ["of the mixin"]


# Files of mappings and lists whose numbers are 1000 · file + line, so that each tells where it was written.
KEYS = st.sampled_from("pqr")
SHAPES = st.recursive(
    st.just(0),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(st.just(0), max_size=3),
    max_leaves=8,
)
FILES = st.lists(st.dictionaries(KEYS, SHAPES, min_size=1, max_size=3), min_size=1, max_size=4)


def written(tree: Any, file: int, lines: list[str], adds: bool, indent: str = "") -> None:
    """The file's text in block style, a line for each value."""
    for key, value in tree.items() if isinstance(tree, dict) else ((None, item) for item in tree):
        head = indent + (f"{key}{'+' if adds and isinstance(value, list) and value else ''}:" if key else "-")
        if isinstance(value, dict | list) and value:
            lines.append(head)
            written(value, file, lines, adds, indent + "  ")
        else:
            lines.append(f"{head} {1000 * file + len(lines) + 1 if value == 0 else value}")


def leaves(value: Any, address: Address = ()) -> list[tuple[Address, int]]:
    if isinstance(value, int):
        return [(address, value)]
    items = enumerate(value) if isinstance(value, list) else value.items()
    return [leaf for key, item in items for leaf in leaves(item, (*address, key))]


def laid_over(base: Any, child: Any) -> Any:
    """What merging means, on plain data."""
    if not isinstance(child, dict):
        return child
    base = base if isinstance(base, dict) else {}
    return {**base, **{key: laid_over(base.get(key), item) for key, item in child.items()}}


@given(FILES, st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_value_remembers_its_line_however_files_are_merged(trees: list[dict[str, Any]], chained: bool) -> None:
    """A list of files and a chain of them are the same, and each number is found where it says that it was written."""
    texts = {}
    for index, tree in enumerate(trees, start=1):
        before = f"f{index - 1}.yaml" if chained and index > 1 else ""
        lines = [f"extends: {before}" if before else "title: x"]
        written(tree, index, lines, adds=False)
        texts[f"f{index}"] = "\n".join(lines) + "\n"
    last = f"f{len(trees)}.yaml" if chained else "[" + ", ".join(f"{name}.yaml" for name in texts) + "]"
    with TemporaryDirectory() as folder:
        document, files = read(Path(folder), **texts, a=f"extends: {last}\n")
    assert files == ("specs/a.yaml", *(f"specs/f{index}.yaml" for index in range(len(trees), 0, -1)))
    data = {key: value for key, value in document.data.items() if key not in ("extends", "title")}
    for address, number in leaves(data):
        file, line = divmod(number, 1000)
        assert document.marks[address] == Mark(f"specs/f{file}.yaml", line)
    merged: dict[str, Any] = {}
    for tree in trees:
        merged = laid_over(merged, tree)
    assert [address for address, _ in leaves(data)] == [address for address, _ in leaves(merged)]


@given(
    st.lists(st.dictionaries(KEYS, st.lists(st.just(0), min_size=1, max_size=3), min_size=1), min_size=1, max_size=4)
)
@settings(max_examples=100, deadline=None)
def test_added_items_are_in_order_and_remember_their_lines(trees: list[dict[str, Any]]) -> None:
    texts = {}
    for index, tree in enumerate(trees, start=1):
        lines = ["grid:", "  base:"]
        written(tree, index, lines, adds=True, indent="    ")
        texts[f"f{index}"] = "\n".join(lines) + "\n"
    with TemporaryDirectory() as folder:
        document, _ = read(Path(folder), **texts, a="extends: [" + ", ".join(f"{name}.yaml" for name in texts) + "]\n")
    found = leaves(document.data["grid"])
    assert len(found) == sum(len(items) for tree in trees for items in tree.values())
    for address, number in found:
        file, line = divmod(number, 1000)
        assert document.marks["grid", *address] == Mark(f"specs/f{file}.yaml", line)
    for items in document.data["grid"]["base"].values():
        assert items == sorted(items)
