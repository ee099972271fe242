"""Showing a ``pfl run``: bars on a terminal, lines elsewhere; and its state, from any terminal, as a table."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.running.board import Board, StageState, duration, in_words, tail
from pipeline.stages.live import live_curves, sparkline

TOLD = ("data", "partition", "train", "report")  # kinds of stages that are worth a line when they end
LINE_EVERY = 30.0  # seconds between two lines about all, where there is no terminal
_MOST_RUNNING = 24  # rows of the live table
_STYLES = {"done": "green", "cached": "dim", "running": "cyan", "failed": "red", "waiting": "yellow", "skipped": "dim"}


@contextmanager
def show(board: Board) -> Iterator[Lines]:
    """For the time of a block, what suits standard error: on a terminal bars, below lines about what has ended."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    with Live(
        get_renderable=lambda: live_view(board),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    ):
        yield Lines(every=math.inf)


class Lines:
    """A line when something ends, and one about all, `every` some seconds."""

    def __init__(self, every: float = LINE_EVERY) -> None:
        self._every = every
        self._next = time.monotonic() + every

    def ended(self, entry: StageState) -> None:
        if entry.kind in TOLD or entry.state == "failed":
            self.say(_ending(entry))

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def tick(self, board: Board) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        running = "; ".join(f"{entry.name} {_rounds(entry)}".rstrip() for entry in board.of_state("running")[:4])
        self.say(f"{_overall(board)}{': ' + running if running else ''}")


def live_view(board: Board) -> RenderableType:
    """What runs now, a row each, and all of it in one."""
    now, curves = time.time(), _curves(board, sys.stderr.encoding)
    table = Table(box=None, padding=(0, 1), show_header=False)
    running = board.of_state("running")
    for entry in running[:_MOST_RUNNING]:
        share = entry.round / entry.rounds if entry.rounds else 0.0
        table.add_row(
            Text(entry.name, overflow="ellipsis", no_wrap=True),
            entry.place,
            ProgressBar(total=1.0, completed=share, width=16, pulse=not entry.rounds),
            _rounds(entry),
            curves.get(entry.subject, ""),
            duration(entry.elapsed(now)),
            f"{duration(entry.left(now))} left" if entry.rounds else "",
        )
    if len(running) > _MOST_RUNNING:
        table.add_row(f"and {len(running) - _MOST_RUNNING} more")
    total, over = _work(board)
    whole = Table(box=None, padding=(0, 1), show_header=False)
    whole.add_row(ProgressBar(total=max(total, 1), completed=over, width=24), Text(_overall(board), no_wrap=True))
    return Group(table, whole)


def show_status(board: Board, console: Console, everything: bool) -> None:
    """What `pfl status` prints: the whole in a line, then what runs, has failed or diverged; or every stage."""
    now = time.time()
    began = datetime.fromtimestamp(board.began).strftime("%Y-%m-%d %H:%M:%S")
    if board.alive:
        state = f"since {began}, process {board.process}"
    elif board.ended:
        state = f"{began}, ended after {duration(board.ended - board.began)}"
    else:
        state = f"{began}, was killed; the same command goes on"
    console.print(f"{board.title}: {state}", markup=False, highlight=False, soft_wrap=True)
    console.print(_overall(board), markup=False, highlight=False, soft_wrap=True)
    entries = [
        entry
        for entry in board.entries.values()
        if everything or entry.diverged or entry.state in ("running", "failed", "waiting")
    ]
    if not entries:
        return
    table = Table(box=None, padding=(0, 1), header_style="bold")
    curves = _curves(board, console.encoding)
    for column in ("stage", "state", "rounds", "accuracy", "curve", "time", "left", ""):
        table.add_column(column, no_wrap=column in ("state", "rounds", "curve", "time", "left"), overflow="fold")
    for entry in entries:
        dead = entry.state == "running" and not board.alive
        state = "stopped" if dead else "diverged" if entry.diverged else entry.state
        running = entry.state == "running" and not dead
        table.add_row(
            entry.name,
            Text(state, style=_STYLES.get(state, "magenta")),
            f"{entry.round}/{entry.rounds}" if entry.rounds else "",
            "" if entry.accuracy is None else f"{100 * entry.accuracy:.2f} %",
            curves.get(entry.subject, "") if entry.state == "running" else "",
            "" if dead or not (entry.seconds or running) else duration(entry.elapsed(now)),
            duration(entry.left(now)) if running else "",
            Text(entry.note or (entry.place if running else "")),
        )
    console.print(table)


def summary(board: Board, retry: str) -> list[str]:
    """The lines at the end: counts, then each failure with the last lines of its log, and how to try again."""
    counts = board.counts()
    runs = [entry for entry in board.of_kind("train") if entry.state == "done"]
    diverged = [entry.subject for entry in board.of_kind("train") if entry.diverged]
    words = in_words(
        [(counts["done"], "done"), (counts["cached"], "cached"), (counts["failed"], "failed"),
         (counts["skipped"] + counts["queued"] + counts["waiting"], "not done")]
    )  # fmt: skip
    trained = f", {len(runs)} runs trained" if runs else ""
    lines = [f"{len(board.entries)} stages in {duration(time.time() - board.began)}: {words}{trained}"]
    if diverged:
        lines.append(f"diverged: {', '.join(sorted(diverged))}")
    for entry in board.of_state("failed"):
        lines.append(f"FAILED {entry.name}: {entry.note}")
        last = tail(Path(entry.log), 5) if entry.log else []
        lines += [f"    {line}" for line in last if line != f"pfl: {entry.note}"]  # which has been said
        if entry.log:
            lines.append(f"    all of it: {os.path.relpath(entry.log)}")
    if counts["failed"]:
        lines.append(f"what is done stays done; to try the rest again: {retry}")
    return lines


def _curves(board: Board, encoding: str | None) -> dict[str, str]:
    """The curves of running runs as lines of text; none where they cannot be printed."""
    if not board.path or not (encoding or "").lower().startswith("utf"):
        return {}
    return {run: sparkline([y for _, y in curve]) for run, curve in live_curves(board.path.parent).items()}


def _work(board: Board) -> tuple[float, float]:
    """How much there is to do, in expected seconds, and how much of it is done."""
    now, total, over = time.time(), 0.0, 0.0
    for entry in board.entries.values():
        if entry.state == "cached":
            continue
        cost = max(entry.expected, 0.1)
        total += cost
        if entry.state in ("done", "failed", "skipped"):
            over += cost
        elif entry.state == "running":
            over += cost * (entry.round / entry.rounds if entry.rounds else min(0.9, entry.elapsed(now) / cost))
    return total, over


def _overall(board: Board) -> str:
    counts = board.counts()
    words = in_words((counts[state], state) for state in _STYLES if state != "cached")
    queued = f", {counts['queued']} queued" if counts["queued"] else ""
    cached = f" ({counts['cached']} cached)" if counts["cached"] else ""
    left = f", about {duration(board.left(time.time()))} left" if board.alive else ""
    return f"{words or 'nothing to do'}{queued}{cached}{left}".lstrip(", ")


def _rounds(entry: StageState) -> str:
    if not entry.rounds:
        return ""
    accuracy = "" if entry.accuracy is None else f", {100 * entry.accuracy:.2f} %"
    return f"round {entry.round}/{entry.rounds}{accuracy}"


def _ending(entry: StageState) -> str:
    if entry.state == "failed":
        return f"FAILED {entry.name}: {entry.note}"
    accuracy = "" if entry.accuracy is None else f", {100 * entry.accuracy:.2f} %"
    return f"{entry.name}: {duration(entry.seconds)}{', diverged' if entry.diverged else accuracy}"
