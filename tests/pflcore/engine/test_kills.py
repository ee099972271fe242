"""A run whose process is killed while it writes ends with the bytes of one that is left in peace.

``benchmarks/kills.py`` does this many times at random instants.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.killing import Kill, Victim


@pytest.mark.matrix
def test_a_run_killed_while_it_writes_ends_with_the_same_bytes(tmp_path: Path) -> None:
    victim = Victim(tmp_path, "fedper", rounds=12)
    expected, _ = victim.undisturbed()
    assert {"rounds.parquet", "weights.safetensors"} < expected.keys()
    trial = victim.killed([Kill("checkpoint", at=3, alone=True), Kill("artifact")], expected)
    assert trial.faults == []
    assert trial.hits and trial.resumed[0] >= 3  # how many more there are depends on the machine's mood
