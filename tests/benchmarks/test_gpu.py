"""``benchmarks/gpu.py`` on a CPU: it is made for machines on which nobody can mend it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_all_sections_fit_into_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from card.section import MARGIN, USUAL

    seconds = [seconds for _, seconds in runpy.run_path(str(BENCHMARKS / "gpu.py"))["SECTIONS"].values()]
    # Also if each of them hangs, and is killed a while after its time; what is left at the end is for the tables.
    assert sum(each + MARGIN for each in seconds) + 2 * MARGIN <= USUAL == 540


@pytest.mark.matrix
def test_every_section_runs_on_a_cpu(tmp_path: Path) -> None:
    # Machines that are shared take many times as long.
    command = [sys.executable, BENCHMARKS / "gpu.py", "--device", "cpu", "--quick", "--deadline", "3000"]
    done = subprocess.run([*command, "--out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert {line["status"] for line in lines if "status" in line} == {"done"}, done.stdout
    assert [line for line in lines if "error" in line or line.get("ok") is False] == []
