"""The stages of a compilation as a graph."""

from __future__ import annotations

from pathlib import Path

from support.project import make_project

from pipeline.compile.compilation import Graph, Stage


def test_stages_as_a_graph(tmp_path: Path) -> None:
    """a → b → d, a → c → d; and those of a compilation."""
    deps = {"d": ("b", "c"), "b": ("a",), "c": ("a",), "a": ("raw",)}
    graph = Graph([Stage("f", name, f"pfl stage train {name}", before, (name,)) for name, before in deps.items()])
    order = graph.needed(["f:d"])
    assert order == [f"f:{name}" for name in "abcd"] and graph.after("f:a") == {f"f:{name}" for name in "bcd"}
    assert graph.heights(order, {"f:a": 1, "f:b": 10, "f:c": 2, "f:d": 5}) == {"f:d": 5, "f:c": 7, "f:b": 15, "f:a": 16}
    kinds = {one.kind for one in make_project(tmp_path).compiled().stages}
    assert kinds == {"guard", "data", "partition", "describe", "train", "evaluate", "report", "index"}
