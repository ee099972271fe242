"""``benchmarks/mutation.py``: most of what Cosmic Ray plants is noticed, and what is not is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray")
SCRIPT = Path(__file__).parents[2] / "benchmarks/mutation.py"
# Of what computes results and what reports say, the modules whose tests take a second or two.
MODULES = ("pflcore/engine/optimizers", "pflcore/server_view", "pipeline/report/statistics")
PLAN = """
modules:
  pflcore/engine/stopping.py: [tests/test_tiers.py::test_what_counts_can_be_said]
argued:
  - {module: pflcore/engine/stopping.py, line: "if waited == patience:", becomes: "if waited != patience:", why: none}
"""


def mutation(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.matrix
def test_nine_of_ten_mistakes_are_noticed() -> None:
    done = mutation("--modules", *MODULES, "--sample", "4", "--seed", "1", "--jobs", "2", "--least", "90")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " of 32 noticed" in done.stdout


@pytest.mark.matrix
def test_what_nobody_notices_is_told(tmp_path: Path) -> None:
    """The tests named here say nothing of the module, so all that is planted in it survives."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    done = mutation("--plan", str(plan), "--sample", "3", "--least", "1")
    assert done.returncode == 1, done.stderr
    assert "\n0 of 3 noticed (0 %)\n" in done.stdout and done.stdout.count("  survived: ") == 3
