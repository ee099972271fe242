"""Sections of a benchmark, each in a process of its own with its own time: what fails, hangs or is killed loses itself.

A fault on a GPU poisons the process it occurs in, so sections must not share one. The first process imports everything
and never touches the device, so that forks of it start at once and may use it.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LINES = "gpu.jsonl"
USUAL = 540.0  # the deadline that sections' times are made for; they have more of a later one
MARGIN = 3.0  # seconds between a section's own end and its being killed


@dataclass(frozen=True)
class Bench:
    """What a section is told: where it runs, how thoroughly, until when, and where its lines go."""

    device: str
    quick: bool
    out: Path
    section: str
    ends: float

    @property
    def left(self) -> float:
        """Seconds that remain, less than 0 afterwards."""
        return self.ends - time.monotonic()

    def limit(self) -> None:
        """End this process a while after its time, should nobody be left to do so. To be called where one begins."""
        signal.alarm(math.ceil(max(0.0, self.left) + 2 * MARGIN))

    def write(self, **facts: Any) -> None:
        """Add a line at once."""
        short = {name: float(f"{one:.4g}") if isinstance(one, float) else one for name, one in facts.items()}
        with (self.out / LINES).open("a") as file:
            file.write(json.dumps({"section": self.section, **short}) + "\n")

    @contextmanager
    def tried(self, **what: Any) -> Iterator[None]:
        """A part of a section: an exception is a line that begins with `what`, and the next part follows."""
        try:
            yield
        except Exception as error:
            self.write(**what, ok=False, error=_first_line(error))


Section = Callable[[Bench], None]


def run_sections(
    sections: Mapping[str, tuple[Section, float]], device: str, quick: bool, out: Path, deadline: float
) -> None:
    """Run them one after the other until all are done, or `deadline` seconds have passed.

    Args:
        sections: Name → what it does, and the seconds that it may take.
        out: The folder that ``gpu.jsonl`` is in. Each section ends with a line that has its ``status``: done, failed
            (with the error), killed (it took longer than it may) or skipped (there was no time).
    """
    started = time.monotonic()
    for name, (function, seconds) in sections.items():
        begun = time.monotonic()
        allowed = min(seconds * max(1.0, deadline / USUAL), deadline - (begun - started) - 2 * MARGIN)
        bench = Bench(device, quick, out, name, begun + allowed)
        if allowed < MARGIN:
            bench.write(status="skipped", seconds=0.0)
            continue
        process = multiprocessing.get_context("fork").Process(target=_perform, args=(function, bench))
        process.start()
        try:
            process.join(allowed + MARGIN)
            status = "killed" if process.is_alive() else "failed" if process.exitcode else "done"
        finally:
            with suppress(ProcessLookupError):  # what the section started goes with it, however it ended
                os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        bench.write(status=status, seconds=time.monotonic() - begun)


def lines(out: Path) -> list[dict[str, Any]]:
    """Return what was written so far; a line that was cut is left out."""
    return [json.loads(line) for line in (out / LINES).read_text().splitlines() if line.endswith("}")]


def summary(written: list[dict[str, Any]]) -> str:
    """Return a table per section, and how many of the checks held."""
    held = [line["ok"] for line in written if "ok" in line]
    parts = [f"{sum(map(bool, held))} of {len(held)} checks held\n"]
    for section in dict.fromkeys(line["section"] for line in written):
        own = [line for line in written if line["section"] == section]
        ends = [f"{line['status']}, {line['seconds']} s" for line in own if "status" in line]
        rows = [{name: line[name] for name in line if name != "section"} for line in own if "status" not in line]
        parts.append(f"## {section} ({ends[0] if ends else 'not ended'})\n")
        if names := list(dict.fromkeys(name for row in rows for name in row)):
            body = ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
            parts.append("\n".join([f"| {' | '.join(names)} |", "|" + "---|" * len(names), *body]) + "\n")
    return "\n".join(parts)


def _perform(function: Section, bench: Bench) -> None:
    os.setsid()  # with what it starts, so that it can be killed with it
    bench.limit()
    try:
        function(bench)
    except Exception as error:
        traceback.print_exc()
        bench.write(ok=False, error=_first_line(error))
        raise SystemExit(1) from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]
