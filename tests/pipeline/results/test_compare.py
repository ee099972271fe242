"""`pfl compare`: two tables made by hand, what is said of their cells, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.project import make_project, spec

from pflcore.artifacts import write_table
from pflcore.errors import UserError
from pipeline.results.compare import BEYOND, CHANCE, NOT_RUN, ONE_SEED, SAME, compare
from pipeline.workspace import Workspace

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("method", "size")),
        *((name, pa.float64()) for name in ("obtained_mean", "obtained_std")),
        ("by_seed", pa.list_(pa.struct([("seed", pa.int64()), ("value", pa.float64())]))),
    ]
)


def row(method: str, by_seed: dict[int, float], size: str = "small", std: float | None = None) -> dict[str, Any]:
    return {
        "method": method,
        "size": size,
        "obtained_mean": sum(by_seed.values()) / len(by_seed) if by_seed else None,
        "obtained_std": std,
        "by_seed": [{"seed": seed, "value": value} for seed, value in by_seed.items()],
    }


def write(root: Path, spec: str, rows: list[dict[str, Any]], columns: list[str], decimals: int = 1) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    path = root / f"reports/{spec}/table.parquet"
    write_table(path, table, "table/2", rows=["method"], columns=columns, decimals=decimals)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, tmp_path, "paper")


def test_what_is_said_of_a_cell(workspace: Workspace) -> None:
    far = {seed: 80.0 + seed % 3 for seed in range(6)}
    first = {
        "same": far,
        "differs": far,
        "chance": far,
        "one seed": {0: 80.0},
        "other seeds": {0: 80.0, 1: 82.0},
        "never run": {},
        "first alone": far,
    }
    second = {
        "second alone": far,
        "never run": {0: 70.25},
        "other seeds": {2: 80.0, 3: 82.0},
        "one seed": {0: 80.5},
        "chance": {seed: 81.2 + (-1) ** seed for seed in far},
        "differs": {seed: value - 9.0 + (-1) ** seed / 2 for seed, value in far.items()},
        "same": far,
    }
    write(workspace.root, "a", [row(*item) for item in first.items()], [])
    write(workspace.root, "b/c", [row(*item) for item in second.items()], [])
    found = compare(workspace, "a", "b/c")
    assert [(one.labels, one.first, one.second, one.difference, one.verdict) for one in found] == [
        ("same", "81.0", "81.0", "+0.0", SAME),
        ("differs", "81.0", "72.0", "\N{MINUS SIGN}9.0", BEYOND),
        ("chance", "81.0", "81.2", "+0.2", CHANCE),
        ("one seed", "80.0", "80.5", "+0.5", ONE_SEED),
        ("other seeds", "81.0", "81.0", "+0.0", ONE_SEED),
        ("never run", "—", "70.2", "", NOT_RUN),
    ]


def test_cells_are_matched_on_the_axes_that_both_tables_have(workspace: Workspace) -> None:
    write(workspace.root, "a", [row("x", {0: 80.0}, size, 0.5) for size in ("small", "large")], ["size"], decimals=2)
    write(workspace.root, "b", [row("x", {0: 81.0}, "large")], ["size"])
    write(workspace.root, "c", [row("x", {0: 82.0})], [])
    write(workspace.root, "d", [row("y", {0: 82.0})], [])
    (pair,) = compare(workspace, "a", "b")
    assert (pair.labels, pair.first, pair.second, pair.difference) == ("x, large", "80.00±0.50", "81.00", "+1.00")
    assert [one.labels for one in compare(workspace, "b", "c")] == ["x"]
    for specs, line in (
        (("c", "a"), "a: several cells for x; the other table lacks one of its axes"),
        (("c", "d"), "c and d have no cells with the same labels"),
        (("c", "e"), "e: its report has not been made; type `pfl run e`"),
    ):
        with pytest.raises(UserError, match=f"^{line}$"):
            compare(workspace, *specs)


@pytest.mark.matrix
def test_the_command_shows_the_cells_that_differ(tmp_path: Path) -> None:
    project = make_project(tmp_path, {f"specs/{name}.yaml": spec() for name in ("one/a", "one/b", "c")})
    write(tmp_path, "one/a", [row("x", {0: 80.0}), row("y[z]", {0: 70.0})], [])
    write(tmp_path, "c", [row("x", {0: 80.0}), row("y[z]", {0: 72.0})], [])
    done = project.call("pfl", "compare", "one/a", "c")
    head, *cells, last = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert head.split() == ["cell", "one/a", "c", "difference", "verdict"]
    assert [line.split() for line in cells] == [["y[z]", "70.0", "72.0", "+2.0", "fewer", "than", "two", "seeds"]]
    assert last == "2 cells: 1 the same, 1 fewer than two seeds"
    assert project.call("pfl", "compare", "c", "c").stdout == "2 cells: 2 the same\n"
    for words, line in (
        (("c", "one/b"), "one/b: its report has not been made; type `pfl run one/b`"),
        (("c", "one"), "pfl compare takes two specs, not a folder of them"),
        (("c", "d"), "unknown spec 'd'"),
    ):
        done = project.call("pfl", "compare", *words)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(f"pfl: {line}"), done.stderr
        assert done.stderr.count("\n") == 1
