"""`pfl compare`: two tables made by hand, what is said of their cells, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.command import Pfl
from support.command import pfl as pfl
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
    mean = sum(by_seed.values()) / len(by_seed) if by_seed else None
    values = [{"seed": seed, "value": value} for seed, value in by_seed.items()]
    return {"method": method, "size": size, "obtained_mean": mean, "obtained_std": std, "by_seed": values}


def write(root: Path, name: str, rows: list[dict[str, Any]], columns: list[str], decimals: int = 1) -> None:
    path, meta = root / f"reports/{name}/table.parquet", {"rows": ["method"], "columns": columns, "decimals": decimals}
    write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA), "table/2", **meta)


FAR = {seed: 80.0 + seed % 3 for seed in range(6)}
CELLS: dict[str, tuple[dict[int, float] | None, dict[int, float] | None, str]] = {
    "same": (FAR, FAR, SAME),
    "differs": (FAR, {seed: value - 9.0 + (-1) ** seed / 2 for seed, value in FAR.items()}, BEYOND),
    "chance": (FAR, {seed: 81.2 + (-1) ** seed for seed in FAR}, CHANCE),
    "one seed": ({0: 80.0}, {0: 80.5}, ONE_SEED),
    "other seeds": ({0: 80.0, 1: 82.0}, {2: 80.0, 3: 82.0}, ONE_SEED),
    "never run": ({}, {0: 70.25}, NOT_RUN),
    "first alone": (FAR, None, ""),
    "second alone": (None, FAR, ""),
}


def test_what_is_said_of_a_cell(tmp_path: Path) -> None:
    for name, at in (("a", 0), ("b/c", 1)):
        write(tmp_path, name, [row(label, own[at]) for label, own in CELLS.items() if own[at] is not None], [])
    found = compare(Workspace(tmp_path, tmp_path, "paper"), "a", "b/c")
    assert {one.labels: one.verdict for one in found} == {name: own[2] for name, own in CELLS.items() if own[2]}
    assert [(one.first, one.second, one.difference) for one in found if one.labels in ("differs", "never run")] == [
        *(("81.0", "72.0", "\N{MINUS SIGN}9.0"), ("—", "70.2", "")),
    ]


def test_cells_are_matched_on_the_axes_that_both_tables_have(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, tmp_path, "paper")
    write(tmp_path, "a", [row("x", {0: 80.0}, size, 0.5) for size in ("small", "large")], ["size"], decimals=2)
    write(tmp_path, "b", [row("x", {0: 81.0}, "large")], ["size"])
    write(tmp_path, "c", [row("x", {0: 82.0})], [])
    write(tmp_path, "d", [row("y", {0: 82.0})], [])
    (pair,) = compare(workspace, "a", "b")
    assert (pair.labels, pair.first, pair.second, pair.difference) == ("x, large", "80.00±0.50", "81.00", "+1.00")
    assert [one.labels for one in compare(workspace, "b", "c")] == ["x"]
    for specs, line in {
        ("c", "a"): "a: several cells for x; the other table lacks one of its axes",
        ("c", "d"): "c and d have no cells with the same labels",
        ("c", "e"): "e: its report has not been made; type `pfl run e`",
    }.items():
        with pytest.raises(UserError, match=f"^{line}$"):
            compare(workspace, *specs)


def test_the_command_shows_the_cells_that_differ(tmp_path: Path, pfl: Pfl) -> None:
    make_project(tmp_path, {f"specs/{name}.yaml": spec() for name in ("one/a", "one/b", "c")})
    write(tmp_path, "one/a", [row("x", {0: 80.0}), row("y[z]", {0: 70.0})], [])
    write(tmp_path, "c", [row("x", {0: 80.0}), row("y[z]", {0: 72.0})], [])
    code, out, _ = pfl(tmp_path, "compare", "one/a", "c")
    _, line, last = out.splitlines()
    assert (code, last) == (0, "2 cells: 1 the same, 1 fewer than two seeds")
    assert line.split()[:4] == ["y[z]", "70.0", "72.0", "+2.0"]
    assert pfl(tmp_path, "compare", "c", "one")[::2] == (2, "pfl: pfl compare takes two specs, not a folder of them\n")
