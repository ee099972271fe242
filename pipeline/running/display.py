"""Showing a ``pfl run``: bars on a terminal, lines elsewhere; and its state, from any terminal, as a table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from pipeline.running.board import OVER, Board, StageState

SHOWN = ("data", "partition", "train", "report")  # kinds of stages that are worth a line when they end
LINE_EVERY = 30.0  # seconds between two lines about all, where there is no terminal
MAX_BARS = 24
_BLOCKS = "▁▂▃▄▅▆▇█"
_STYLES = {"done": "green", "cached": "dim", "running": "cyan", "failed": "red", "waiting": "yellow", "skipped": "dim"}


class Display:
    """What is shown on standard error while a run goes on; a context manager."""

    def __init__(self, board: Board) -> None:
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(16),
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True)),
        )
        self.board, self.next_line = board, time.monotonic() + LINE_EVERY
        # Standard output may be a file, in which nothing of a display belongs.
        self.bars = Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            disable=not sys.stderr.isatty(),
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Display:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def ended(self, entry: StageState) -> None:
        """Say how a stage ended."""
        if entry.state == "failed":
            self.say(f"FAILED {entry.name}: {entry.note}")
        elif entry.kind in SHOWN:
            self.say(f"{entry.name}: {duration(entry.seconds)}{', diverged' if entry.diverged else _accuracy(entry)}")

    def tick(self) -> None:
        """Show the state as it is now."""
        running = self.board.of_state("running")
        if not self.bars.disable:
            shown = {entry.address: entry for entry in running[:MAX_BARS]}
            for address in [address for address in self.tasks if address and address not in shown]:
                self.bars.remove_task(self.tasks.pop(address))
            due = [entry for entry in self.board.entries.values() if entry.state != "cached"]
            over = sum(entry.state in OVER or entry.round / max(entry.rounds, 1) for entry in due)
            self._bar("", "", over, len(due), overall(self.board))
            for address, entry in shown.items():
                text = _state(entry, self.bars.console.encoding)
                self._bar(address, entry.name, entry.round, entry.rounds or None, text)
        elif time.monotonic() > self.next_line:
            self.next_line = time.monotonic() + LINE_EVERY
            names = "; ".join(f"{entry.name} {_rounds(entry)}".rstrip() for entry in running[:4])
            self.say(f"{overall(self.board)}{': ' + names if names else ''}")

    def _bar(self, key: str, name: str, done: float, total: float | None, text: str) -> None:
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(name, text="")
        self.bars.update(self.tasks[key], completed=done, total=total, text=text)


def show_status(board: Board, console: Console, everything: bool) -> None:
    """Print what `pfl status` does: the whole in a line, then what runs, has failed or diverged; or every stage."""
    now, alive = time.time(), board.alive
    state = datetime.fromtimestamp(board.began).strftime("%Y-%m-%d %H:%M:%S")
    if alive:
        state = f"since {state}, process {board.process}"
    elif board.ended:
        state += f", ended after {duration(board.ended - board.began)}"
    else:
        state += ", was killed; the same command goes on"
    for line in (f"{board.title}: {state}", overall(board)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for column in ("stage", "state", "rounds", "accuracy", "curve", "time", "left", ""):
        table.add_column(column, no_wrap=column in ("state", "rounds", "curve", "time", "left"), overflow="fold")
    for entry in board.entries.values():
        if not (everything or entry.diverged or entry.state in ("running", "failed", "waiting")):
            continue
        running = entry.state == "running"
        state = "stopped" if running and not alive else "diverged" if entry.diverged else entry.state
        running &= alive
        table.add_row(
            entry.name,
            Text(state, style=_STYLES.get(state, "magenta")),
            f"{entry.round}/{entry.rounds}" if entry.rounds else "",
            _accuracy(entry).removeprefix(", "),
            _curve(entry, console.encoding) if entry.state == "running" else "",
            duration(entry.elapsed(now)) if running or (entry.seconds and state != "stopped") else "",
            duration(entry.left(now)) if running else "",
            Text(entry.note or (entry.place if running else "")),
        )
    if table.row_count:
        console.print(table)


def summary(board: Board) -> list[str]:
    """Return the lines at the end: counts, then each failure with the last lines of its log, and how to try again."""
    counts, trains = board.counts(), board.of_kind("train")
    missing = counts["skipped"] + counts["queued"] + counts["waiting"]
    words = {"done": counts["done"], "cached": counts["cached"], "failed": counts["failed"], "not done": missing}
    words["runs trained"] = sum(entry.state == "done" for entry in trains)
    lines = [f"{len(board.entries)} stages in {duration(time.time() - board.began)}: {_counted(words)}"]
    if diverged := sorted(entry.subject for entry in trains if entry.diverged):
        lines.append(f"diverged: {', '.join(diverged)}")
    for entry in board.of_state("failed"):
        lines.append(f"FAILED {entry.name}: {entry.note}")
        lines += [f"    {line}" for line in _tail(entry.log) if line != f"pfl: {entry.note}"]  # which has been said
        lines += [f"    all of it: {os.path.relpath(entry.log)}"] if entry.log else []
    if counts["failed"]:
        lines.append(f"what is done stays done; to try the rest again: {board.title}")
    return lines


def overall(board: Board) -> str:
    """Return how far a run is, in a line."""
    counts = board.counts()
    words = _counted({state: counts[state] for state in (*_STYLES, "queued") if state != "cached"})
    cached = f" ({counts['cached']} cached)" if counts["cached"] else ""
    left = f", about {duration(board.left(time.time()))} left" if board.alive else ""
    return f"{words or 'nothing to do'}{cached}{left}"


def duration(seconds: float) -> str:
    """Return seconds in words: ``42 s``, ``3:07 min``, ``2:05 h``, ``3 d 4 h``."""
    whole = round(seconds)
    if whole < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    if whole < 48 * 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Return a curve as a line of text, from its lowest value to its highest; "" for none."""
    count = min(width, len(values))
    chosen = [values[round(at * (len(values) - 1) / max(count - 1, 1))] for at in range(count)]
    low, high = min(chosen, default=0.0), max(chosen, default=0.0)
    return "".join(_BLOCKS[round((value - low) / ((high - low) or 1.0) * (len(_BLOCKS) - 1))] for value in chosen)


def _counted(counts: dict[str, int]) -> str:
    """Return ``3 done, 1 failed``, without what there is none of."""
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def _curve(entry: StageState, encoding: str | None) -> str:
    return sparkline(entry.curve) if (encoding or "").lower().startswith("utf") else ""


def _state(entry: StageState, encoding: str | None) -> str:
    """Return what stands beside the bar of a running stage."""
    now = time.time()
    left = f"{duration(entry.left(now))} left" if entry.rounds else ""
    parts = (entry.place, _rounds(entry), _curve(entry, encoding), duration(entry.elapsed(now)), left)
    return "  ".join(filter(None, parts))


def _rounds(entry: StageState) -> str:
    return f"round {entry.round}/{entry.rounds}{_accuracy(entry)}" if entry.rounds else ""


def _accuracy(entry: StageState) -> str:
    return "" if entry.accuracy is None else f", {100 * entry.accuracy:.2f} %"


def _tail(log: str, lines: int = 5) -> list[str]:
    """Return the last lines of a log, without those that only frame it."""
    try:
        text = Path(log).read_text(encoding="utf-8", errors="replace") if log else ""
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.startswith("---")][-lines:]
