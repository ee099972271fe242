"""How many seeds undecided claims need, on tables whose spreads are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.claim_demo import Rows, a_and_b, by_seed
from support.report_demo import changed, claim, runs_of

from pipeline.compile.compilation import Compilation
from pipeline.plan.seeds import seeds_of_claims
from pipeline.report.statistics.power import seeds_needed
from pipeline.spec.table import ResolvedTable, TableClaim

# The leads of A over B, 0, 1 and 2: their mean is 1, and so is their deviation.
THREE: Rows = {"A": {"x": [80.0, 81.0, 82.0]}, "B": {"x": [80.0, 80.0, 80.0]}}


def lines(root: Path, *tables: ResolvedTable) -> list[str]:
    """What is said of tables whose runs lie in one workspace."""
    runs = {name: run for table in tables for name, run in runs_of(table, root).items()}
    return seeds_of_claims(root, Compilation(tables={table.spec: table for table in tables}, runs=runs))


def test_an_undecided_claim_needs_so_many(tmp_path: Path) -> None:
    assert seeds_needed(1.0, 1.0) == 10
    assert lines(tmp_path, by_seed(tmp_path, THREE, a_and_b())) == [
        "demo/table2: 'So it is.' is undecided over 3 seeds; to tell 1.00 points (±1.00 between seeds) takes about 10"
    ]
    assert seeds_needed(0.5, 1.0) == 34
    (line,) = lines(tmp_path, by_seed(tmp_path, THREE, a_and_b(margin=1.5)))
    assert "to tell 0.50 points" in line and line.endswith("about 34")


def test_the_pair_that_needs_most_counts(tmp_path: Path) -> None:
    rows: Rows = THREE | {"C": {"x": [81.5, 80.5, 82.5]}}  # A is behind C by 0.5 ± 1.32, among two pairs
    (line,) = lines(tmp_path, by_seed(tmp_path, rows, claim({"method": ["A"]}, {"method": ["B", "C"]})))
    needed = seeds_needed(0.5, float(np.std([1.5, -0.5, 0.5], ddof=1)), 0.025)
    assert line.endswith(f"takes about {needed}")
    assert "to tell 0.50 points (±1.00 between seeds)" in line


@pytest.mark.parametrize("stated", [a_and_b(margin=-9.0), a_and_b(margin=9.0)])
def test_what_is_decided_needs_none(tmp_path: Path, stated: TableClaim) -> None:
    assert lines(tmp_path, by_seed(tmp_path, THREE, stated)) == []


def test_one_seed_goes_by_the_spread_of_others(tmp_path: Path) -> None:
    one = by_seed(tmp_path, {"A": {"y": [84.0]}, "B": {"y": [83.0]}}, a_and_b(), spec="demo/one")
    assert lines(tmp_path, one) == []  # nothing is known
    line, _ = lines(tmp_path, one, by_seed(tmp_path, THREE, a_and_b()))
    assert line.startswith(
        "demo/one: 'So it is.' is undecided over 1 seed; to tell 1.00 points (±1.00 between seeds of"
    )
    assert line.endswith("of other pairs) takes about 10")


def test_a_difference_of_nothing_is_never_found(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, by_seed(tmp_path, THREE, a_and_b(margin=1.0)))
    assert "to tell 0.00 points" in line and line.endswith("takes more than 1000")


def test_where_nothing_was_measured_nothing_is_said(tmp_path: Path) -> None:
    nothing: Rows = {"A": {"x": [None, None]}, "B": {"x": [None, None]}}
    assert lines(tmp_path, by_seed(tmp_path, nothing, a_and_b())) == []
    same: Rows = {"A": {"x": [80.0, 81.0]}, "B": {"x": [80.0, 81.0]}}
    assert lines(tmp_path, by_seed(tmp_path, same, a_and_b())) == []  # no spread at all
    trial = changed(by_seed(tmp_path, THREE, a_and_b()), profile="smoke")
    assert lines(tmp_path, trial) == []
