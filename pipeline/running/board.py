"""The state of a ``pfl run``: written to a file for ``pfl status``, shown as bars on a terminal and lines elsewhere."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from pflcore.errors import UserError
from pflcore.files import parse_json, read_file, write_text
from pipeline.timing import duration
from pipeline.workspace import Workspace

State = Literal["queued", "waiting", "running", "done", "cached", "failed", "skipped"]
"""`waiting`: another process holds it. `cached`: it needed no work. `skipped`: it depends on a stage that failed."""

FINISHED = ("done", "cached", "failed", "skipped")
MAX_BYTES = 1 << 26  # the state of 5,000 runs has about two million
ANNOUNCED = ("data", "features", "partition", "train", "report")  # kinds of stages that get a line when they end
LINE_EVERY = 30.0  # seconds between two lines about the run, without a terminal
MAX_BARS = 24
ATTEMPT = re.compile(r"--- (on |[-0-9]+ [:0-9]+  pfl stage )")  # the first line of an attempt in a log
_STYLES = {"done": "green", "cached": "dim", "running": "cyan", "failed": "red", "waiting": "yellow", "skipped": "dim"}


@dataclass
class StageState:
    """The state of one stage. Times are in seconds, `began` since 1970; `accuracy` is between 0 and 1."""

    address: str
    kind: str
    subject: str
    state: State = "queued"
    expected: float = 0.0
    attempts: int = 0
    place: str = ""
    began: float = 0.0
    seconds: float = 0.0
    round: int = 0
    rounds: int = 0
    accuracy: float | None = None
    diverged: bool = False
    note: str = ""
    log: str = ""
    resumed: int | None = None

    @property
    def name(self) -> str:
        """The name to show: the id for a run, kind and subject for any other stage."""
        return self.subject if self.kind in ("train", self.subject) else f"{self.kind} {self.subject}"

    def record_round(self, round_: int, rounds: int, accuracy: float | None) -> None:
        if self.resumed is None:
            self.resumed = round_ - 1
        self.round, self.rounds = round_, rounds
        self.accuracy = self.accuracy if accuracy is None else accuracy

    def elapsed(self, timestamp: float) -> float:
        return timestamp - self.began if self.state == "running" else self.seconds

    def remaining(self, timestamp: float) -> float:
        """Return the expected seconds until the stage ends, estimated from its own rounds as soon as one is done."""
        if self.state != "running":
            return 0.0 if self.state in FINISHED else self.expected
        first = self.resumed or 0
        if self.round > first:
            return self.elapsed(timestamp) / (self.round - first) * (self.rounds - self.round)
        return max(0.0, self.expected - self.elapsed(timestamp))


@dataclass
class Board:
    """The stages of a call of ``pfl run``, each after the stages that it depends on.

    `began` and `ended` are seconds since 1970; `ended` is 0 during the run.
    """

    title: str = ""  # the command as typed
    process: int = field(default_factory=os.getpid)
    began: float = field(default_factory=time.time)
    ended: float = 0.0
    places: int = 1  # how many stages run at the same time
    entries: dict[str, StageState] = field(default_factory=dict)
    path: Path | None = None
    _next_save: float = 0.0

    def counts(self) -> Counter[str]:
        return Counter(entry.state for entry in self.entries.values())

    def of_state(self, *states: State) -> list[StageState]:
        return [entry for entry in self.entries.values() if entry.state in states]

    def remaining(self, timestamp: float) -> float:
        """Return the expected seconds until the end: the work per place or the longest stage, whichever is more."""
        seconds = [entry.remaining(timestamp) for entry in self.entries.values()]
        return max(sum(seconds) / max(self.places, 1), max(seconds, default=0.0))

    def save(self, force: bool = False) -> None:
        """Write the board; unless `force`, at most once a second and for at most a twentieth of the time."""
        if self.path and (force or time.monotonic() > self._next_save):
            began = time.monotonic()
            facts = {name: value for name, value in vars(self).items() if name not in ("path", "_next_save")}
            write_text(self.path, json.dumps(facts, default=vars) + "\n")
            self._next_save = began + max(1.0, 20 * (time.monotonic() - began))

    def finish(self) -> None:
        """Write the board with the time of its end."""
        self.ended = time.time()
        self.save(force=True)

    @classmethod
    def load(cls, path: Path) -> Board | None:
        """Return the board in a file; None if there is no file. Raises :class:`UserError` if it cannot be read."""
        if not path.is_file():
            return None
        try:
            board = cls(**parse_json(read_file(path, MAX_BYTES)), path=path)
            board.entries = {address: StageState(**entry) for address, entry in board.entries.items()}  # type: ignore[arg-type]
            return board
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{path}: cannot be read; the next `pfl run` writes it again") from None

    @property
    def alive(self) -> bool:
        """Whether the process that wrote the board still works on it."""
        try:
            os.kill(self.process, 0)
        except PermissionError:
            pass
        except ProcessLookupError:
            return False
        return not self.ended


def status_path(workspace: Workspace) -> Path:
    """Return the file with the state of the last `pfl run`."""
    return workspace.private / "run.json"


class Display:
    """The display on standard error during a run, within its `bars` as a context."""

    def __init__(self, board: Board) -> None:
        self.board, self.next_line = board, time.monotonic() + LINE_EVERY
        self.bars = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(16),
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True)),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # a file must not contain parts of the display
            disable=not sys.stderr.isatty(),
        )
        self.tasks: dict[str, TaskID] = {}

    def print_line(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def print_end(self, entry: StageState) -> None:
        """Print how a stage ended."""
        if entry.state == "failed":
            self.print_line(f"FAILED {entry.name}: {entry.note}")
        elif entry.kind in ANNOUNCED:
            result = ", diverged" if entry.diverged else _accuracy(entry)
            self.print_line(f"{entry.name}: {duration(entry.seconds)}{result}")

    def update(self) -> None:
        """Show the present state."""
        running = self.board.of_state("running")
        if not self.bars.disable:
            visible = {entry.address: entry for entry in running[:MAX_BARS]}
            for address in self.tasks.keys() - visible.keys() - {""}:
                self.bars.remove_task(self.tasks.pop(address))
            active = [entry for entry in self.board.entries.values() if entry.state != "cached"]
            finished = sum(entry.state in FINISHED or entry.round / max(entry.rounds, 1) for entry in active)
            self._bar("", "", finished, len(active), progress_line(self.board))
            for address, entry in visible.items():
                self._bar(address, entry.name, entry.round, entry.rounds or None, _text(entry))
        elif time.monotonic() > self.next_line:
            self.next_line = time.monotonic() + LINE_EVERY
            names = "; ".join(f"{entry.name} {_rounds(entry)}".rstrip() for entry in running[:4])
            self.print_line(f"{progress_line(self.board)}{': ' + names if names else ''}")

    def _bar(self, key: str, name: str, done: float, total: float | None, text: str) -> None:
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(name, text="")
        self.bars.update(self.tasks[key], completed=done, total=total, text=text)


def show_status(board: Board, console: Console, all_stages: bool) -> None:
    """Print the output of `pfl status`: a summary and the stages that run, wait, failed or diverged, or every stage."""
    alive = board.alive
    since = datetime.fromtimestamp(board.began).strftime("%Y-%m-%d %H:%M:%S")
    outcome = f"since {since}, process {board.process}"
    if board.ended:
        outcome = f"{since}, ended after {duration(board.ended - board.began)}"
    elif not alive:
        outcome = f"was stopped (it began {since}); type it again to continue"
    for line in (f"{board.title}: {outcome}", progress_line(board)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    table = Table("stage", "state", "", box=None, padding=(0, 1), header_style="bold")
    for entry in board.entries.values():
        if all_stages or entry.diverged or entry.state in ("running", "failed", "waiting"):
            stopped = entry.state == "running" and not alive
            state = "stopped" if stopped else "diverged" if entry.diverged else entry.state
            text = _rounds(entry) if stopped else _text(entry)
            table.add_row(entry.name, Text(state, _STYLES.get(state, "magenta")), Text(text))
    if table.row_count:
        console.print(table)


def summary(board: Board) -> list[str]:
    """Return the last lines of a run: counts, each failure with the end of its log, and the command to try again."""
    counts, trains = board.counts(), [entry for entry in board.entries.values() if entry.kind == "train"]
    labelled = {state: counts[state] for state in ("done", "cached", "failed")}
    labelled["not done"] = counts["skipped"] + counts["queued"] + counts["waiting"]
    trained = sum(entry.state == "done" for entry in trains)
    labelled["run trained" if trained == 1 else "runs trained"] = trained
    lines = [f"{len(board.entries)} stages in {duration(time.time() - board.began)}: {_join_counts(labelled)}"]
    if diverged := sorted(entry.subject for entry in trains if entry.diverged):
        lines.append(f"diverged: {', '.join(diverged)}")
    for entry in board.of_state("failed"):
        lines.append(f"FAILED {entry.name}: {entry.note}")
        if entry.log and Path(entry.log).is_file():
            log = Path(entry.log).read_text(encoding="utf-8", errors="replace").splitlines()
            begin = max((number for number, line in enumerate(log) if ATTEMPT.match(line)), default=0)
            last = [line for line in log[begin:] if line.strip() and not line.startswith("---")][-5:]
            lines += [f"    {line}" for line in last if line != f"pfl: {entry.note}"]  # the note is shown above
            lines.append(f"    all of it: {os.path.relpath(entry.log)}")
    if counts["failed"]:
        lines.append(f"what is done stays done; to try the rest again: {board.title}")
    return lines


def progress_line(board: Board) -> str:
    """Return a line about the progress of a run."""
    counts, alive = board.counts(), board.alive
    running = "running" if alive else "stopped"
    words = {"done": counts["done"], running: counts["running"]}
    words |= {state: counts[state] for state in ("failed", "waiting", "skipped", "queued")}
    cached = f" ({counts['cached']} cached)" if counts["cached"] else ""
    remaining = f", about {duration(board.remaining(time.time()))} left" if alive else ""
    return f"{_join_counts(words) or 'nothing to do'}{cached}{remaining}"


def _join_counts(counts: dict[str, int]) -> str:
    """Return ``3 done, 1 failed``, without counts of zero."""
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def _text(entry: StageState) -> str:
    """Return the text about a stage that is shown beside its name and state."""
    timestamp = time.time()
    elapsed = duration(entry.elapsed(timestamp)) if entry.began else ""
    if entry.state != "running":
        return "  ".join(filter(None, (_rounds(entry), elapsed, entry.note)))
    remaining = f"{duration(entry.remaining(timestamp))} left" if entry.rounds else ""
    return "  ".join(filter(None, (entry.place, _rounds(entry), elapsed, remaining)))


def _rounds(entry: StageState) -> str:
    return f"round {entry.round}/{entry.rounds}{_accuracy(entry)}" if entry.rounds else ""


def _accuracy(entry: StageState) -> str:
    return "" if entry.accuracy is None else f", {100 * entry.accuracy:.2f} %"
