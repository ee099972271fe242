"""``benchmarks/oracles.py``: plain loops agree with the engine, and code that does something else is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/oracles.py"
SMALL = ("--clients", "4", "--train-limit", "40")
ANOTHER_RATE = """
from dataclasses import replace
from oracle import plain

METHODS = {"fedper": {}}

def run(method, options, setting):
    return plain.run(method, options, replace(setting, training=replace(setting.training, lr=0.1)))
"""


def oracles(*arguments: str) -> tuple[int, dict[str, list[str]]]:
    """Return the exit code, and cells by method."""
    done = subprocess.run([sys.executable, SCRIPT, *SMALL, *arguments], capture_output=True, text=True, check=False)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert lines, done.stderr
    return done.returncode, {first: rest for first, *rest in lines}


def test_plain_loops_end_with_the_engines_models() -> None:
    code, found = oracles("--rounds", "2")
    assert code == 0 and found.keys() == {"fedavg", "fedprox", "fedper", "fedrep", "ditto", "local"}
    for ours, theirs, apart, differ, entry in found.values():
        assert (ours, apart, differ) == (theirs, "0.00", "0 of 4")
        assert 0 < float(entry) < 2e-6
    assert len({ours for ours, *_ in found.values()}) > 2  # methods that cannot be told apart would prove little


@pytest.mark.matrix
def test_code_that_does_something_else_is_told(tmp_path: Path) -> None:
    adapter = tmp_path / "another_rate.py"
    adapter.write_text(ANOTHER_RATE)
    code, found = oracles("--adapter", str(adapter), "--rounds", "1")
    assert code == 1 and float(found["fedper"][-1]) > 1e-3
