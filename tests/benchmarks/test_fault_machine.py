"""``benchmarks/faults.py`` finds nothing, in a dozen faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks/faults.py"


@pytest.mark.slow
def test_a_dozen_faults() -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, "--faults", "12", "--seed", "3"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
