"""docs/tutorial.md does what it says; with a wheel alone, see the tests of packaging."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tutorial import check, follow, masked, steps


@pytest.mark.matrix
def test_it_does_what_it_says(tmp_path: Path) -> None:
    check(follow(tmp_path))


def test_its_steps_are_found() -> None:
    found = [step.split()[:2][-1] for step, _ in steps()]
    files = ["specs/own.yaml", "specs/own.csv"]
    assert found == ["init", "plan", "run", "new", "check", *files, "plan", "run"]
    assert masked("| FedAvg | **71.49±3.50** (75.0) |") == masked("| FedAvg      |   1.4±3.50 (**5**) |")
    assert masked("12 runs") != masked("12 trials")
