"""How long a run took, as its file has it, which anybody may have edited."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.timing import Timing, read_timing


@pytest.mark.parametrize(
    ("seconds", "rounds", "core_seconds", "sensible"),
    [
        ("2.5", "3", "null", True),
        ("2.5", "3", "4", True),
        ("Infinity", "3", "null", False),
        ("NaN", "3", "null", False),
        ("-1", "3", "null", False),
        ("2.5", "3", "Infinity", False),
        (f"1{'0' * 400}", "3", "null", False),  # a whole number that is larger than any float
        ('"2.5"', "3", "null", False),
    ],
)
def test_what_is_no_duration_is_no_timing(
    tmp_path: Path, seconds: str, rounds: str, core_seconds: str, sensible: bool
) -> None:
    path = tmp_path / "run.json"
    path.write_text(f'{{"seconds": {seconds}, "device": "cpu", "rounds": {rounds}, "core_seconds": {core_seconds}}}')
    known = None if core_seconds == "null" else 4
    assert read_timing(path) == (Timing(2.5, "cpu", 3, known) if sensible else None)
