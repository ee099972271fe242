"""Every spec of the project, shrunk by the `smoke` profile, from data to report. Minutes; `make slow` runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.catalog import load_catalog
from pipeline.specs import find_specs, load_spec

ROOT = Path(__file__).parent.parent
SPECS = find_specs(ROOT / "specs")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_spec_runs_from_end_to_end(name: str, tmp_path: Path) -> None:
    if load_spec(SPECS[name], ROOT / "specs", load_catalog(ROOT)).abstract:
        pytest.skip("a spec that others extend has no runs")
    shutil.copytree(ROOT / "specs", tmp_path / "specs")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    command = [str(Path(sys.executable).with_name("pfl")), "run", name, "--profile", "smoke"]
    # One thread: images are few, and other tests run beside this one.
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PFL_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cells = pq.read_table(tmp_path / "build/smoke/reports" / name / "table.parquet").to_pandas()
    trained = cells[cells["runs"].map(len) > 0]
    assert len(trained) and trained["obtained_mean"].between(0, 100).all()
