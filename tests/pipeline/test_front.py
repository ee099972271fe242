"""What a stranger reads first is what the commands give: the README's table, and the published numbers obtained."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from support.project import BIN

from pipeline.compile.compiler import source_folder
from pipeline.results.report import write_report
from pipeline.workspace import Workspace

ROOT = source_folder()
POINTS = 3.0
"""By how much a cell of the quickstart may differ on another processor, as the README says."""


def readme_table() -> dict[tuple[str, str], float]:
    """Return method and partition → accuracy, as the README prints it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.partition("<!-- quickstart table -->")[2].partition("<!-- end -->")[0].strip().splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    means = {(row[0], name): re.search(r"[\d.]+", cell) for row in rows for name, cell in zip(header, row, strict=True)}
    return {key: float(found[0]) for key, found in means.items() if found and key[1] != header[0]}


@pytest.mark.matrix
def test_the_quickstart_gives_the_table_of_the_readme() -> None:
    done = subprocess.run([BIN / "pfl", "run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(ROOT / "reports/quickstart/table.csv")
    found = {(row["method"], row["partition"]): row["obtained_mean"] for row in table.to_dict("records")}
    shown = readme_table()
    assert len(shown) == 12 and shown.keys() == found.keys()
    assert {key: found[key] for key in shown if abs(found[key] - shown[key]) > POINTS} == {}


@pytest.mark.matrix
def test_the_page_of_results_is_what_the_ledger_says(tmp_path: Path) -> None:
    for name in ("README.md", "pyproject.toml", "specs", "results", "docs"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    assert write_report(Workspace.find(tmp_path)) == []


@pytest.mark.matrix
def test_every_spec_is_valid() -> None:
    done = subprocess.run([BIN / "pfl", "validate"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
