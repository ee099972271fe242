"""Specs of the project, shrunk by the `smoke` profile, from data to report: one per paper, and when asked all."""

from __future__ import annotations

import json
import shutil
from html import unescape
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.project import Project

from pipeline.spec.catalog import load_catalog
from pipeline.spec.specs import find_specs, load_spec

ROOT = Path(__file__).parents[2]
SPECS = find_specs(ROOT / "specs")
ONE_PER_PAPER = ("fedofa/fig5", "fedperfix/table6", "fedtp/fig4", "pfedla/table3_office31")
MARKS = {name: pytest.mark.matrix if name in ONE_PER_PAPER else pytest.mark.slow for name in sorted(SPECS)}


@pytest.mark.parametrize("name", [pytest.param(name, marks=mark) for name, mark in MARKS.items()])
def test_a_spec_runs_from_end_to_end(name: str, tmp_path: Path) -> None:
    spec = load_spec(SPECS[name], ROOT / "specs", load_catalog(ROOT))
    if spec.abstract:
        pytest.skip("a spec that others extend has no runs")
    shutil.copytree(ROOT / "specs", tmp_path / "specs")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    done = Project(tmp_path).call("pfl", "run", name, "--profile", "smoke")
    assert done.returncode == 0, done.stderr
    reports = tmp_path / "build/smoke/reports"
    cells = pq.read_table(reports / name / "table.parquet").to_pandas()
    trained = cells[(cells["runs"].map(len) > 0) & (cells["verdict"] != "diverged")]
    resolved = json.loads((tmp_path / f"build/smoke/stages/tables/{name}.json").read_text(encoding="utf-8"))
    quantity = any(cell.get("quantity") for cell in resolved["cells"])  # no share of anything
    assert len(trained) and trained["obtained_mean"].between(0, float("inf") if quantity else 100).all()
    for kind in ("md", "tex", "html"):
        page = unescape((reports / "papers" / f"{name.partition('/')[0]}.{kind}").read_text(encoding="utf-8"))
        assert "SMOKE PROFILE" in page and spec.title.split(":")[0] in page.replace("\\", "")


def test_every_paper_has_one() -> None:
    papers = {name.partition("/")[0] for name in SPECS if "/" in name} - {"checks"}
    assert {name.partition("/")[0] for name in ONE_PER_PAPER} == papers
