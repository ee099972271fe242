"""``benchmarks/gpu.py`` on a CPU: it is made for machines on which nobody can mend it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Sections that end well, in part, with an error, never, and after the deadline.
SECTIONS = """
import sys, time
from pathlib import Path
from card import section

section.MARGIN = 0.1

def good(bench):
    bench.write(value=2 / 3)

def partly(bench):
    with bench.tried(part="first"):
        raise ValueError("no\\nmore")
    bench.write(part="second", ok=True)

def wrong(bench):
    bench.write(value=1)
    raise KeyError("lost")

def hangs(bench):
    bench.write(value=2)
    time.sleep(100)

out = Path(sys.argv[1])
sections = {"good": (good, 9), "partly": (partly, 9), "wrong": (wrong, 9), "hangs": (hangs, 0.5), "late": (good, 0.05)}
section.run_sections(sections, "cpu", True, out, 60)
print(section.summary(section.lines(out)))
"""


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "gpu.jsonl").read_text().splitlines()]


def test_sections_lose_nothing_but_themselves(tmp_path: Path) -> None:
    there = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run([sys.executable, "-c", SECTIONS, tmp_path], env=there, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = lines(tmp_path)
    ends = {line["section"]: line["status"] for line in written if "status" in line}
    assert ends == {"good": "done", "partly": "done", "wrong": "failed", "hangs": "killed", "late": "skipped"}
    rest = [{key: line[key] for key in line} for line in written if "status" not in line]
    assert rest == [
        {"section": "good", "value": 0.6667},
        {"section": "partly", "part": "first", "ok": False, "error": "ValueError: no"},
        {"section": "partly", "part": "second", "ok": True},
        {"section": "wrong", "value": 1},
        {"section": "wrong", "ok": False, "error": "KeyError: 'lost'"},
        {"section": "hangs", "value": 2},
    ]
    assert done.stdout.startswith("1 of 3 checks held\n")
    assert (
        "| part | ok | error |\n|---|---|---|\n| first | False | ValueError: no |\n| second | True |  |" in done.stdout
    )


def test_all_sections_fit_into_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from card.section import MARGIN, USUAL

    seconds = [seconds for _, seconds in runpy.run_path(str(BENCHMARKS / "gpu.py"))["SECTIONS"].values()]
    assert sum(seconds) <= 530 and len(seconds) == 14
    # Also if each of them hangs, and is killed a while after its time; what is left at the end is for the tables.
    assert sum(each + MARGIN for each in seconds) + 2 * MARGIN <= USUAL == 540


@pytest.mark.matrix
def test_every_section_runs_on_a_cpu(tmp_path: Path) -> None:
    # Machines that are shared take many times as long.
    command = [sys.executable, BENCHMARKS / "gpu.py", "--device", "cpu", "--quick", "--deadline", "3000"]
    done = subprocess.run([*command, "--out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = lines(tmp_path)
    ends = {line["section"]: line["status"] for line in written if "status" in line}
    assert len(ends) == 16 and set(ends.values()) == {"done"}, done.stdout
    assert [line for line in written if "error" in line or line.get("ok") is False] == []

    def of(section: str) -> list[dict[str, Any]]:
        return [line for line in written if line["section"] == section and "status" not in line]

    assert len(of("agree")) == 2 * 7 and len(of("methods")) >= 4 and len(of("resume")) == 2
    both = {(line["precision"], line["sizes"]) for line in of("w1")}
    assert both == {(line["precision"], line["sizes"]) for line in of("w2")}
    assert both == {(precision, sizes) for precision in ("fp32", "bf16") for sizes in ("equal", "dirichlet")}
    assert all(line["samples_per_s"] > 0 and line["to_plain"] > 0 for line in [*of("w1"), *of("w2")])
    assert [line["runs"] for line in of("side_by_side")] == [1, 2]
    assert {line["way"] for line in of("hypernetwork")} == {"ours", "a backward pass per client"}
    assert (tmp_path / "gpu.md").read_text().splitlines()[0].endswith("checks held")
