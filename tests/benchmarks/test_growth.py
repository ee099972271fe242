"""``benchmarks/growth.py``: its scheduler, which stands on the insides of ``pfl run``, sees all of its runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def test_the_scheduler_goes_through_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Behind the package pipeline, whose name a script there has too.
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[2] / "benchmarks")])
    from growing.scheduled import scheduled

    speed, resident = scheduled(300, tmp_path)
    assert speed.at == [100, 200, 300] and len(resident.seen) == 3
