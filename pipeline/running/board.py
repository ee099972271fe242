"""The state of a ``pfl run``: what is done, running, queued, failed. Kept in a file for ``pfl status``."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.json_text import parse_json
from pflcore.reading import read_file
from pipeline.workspace import Workspace

State = Literal["queued", "waiting", "running", "done", "cached", "failed", "skipped"]
"""`waiting` is held up by another process, `cached` needed no work, `skipped` depends on something that failed."""

OVER = ("done", "cached", "failed", "skipped")
MAX_BYTES = 1 << 26  # the state of 5,000 runs has some two million


@dataclass
class StageState:
    """One stage. Times are seconds, `began` since 1970; `accuracy` is a share of 1."""

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
        """What it is called for a reader: a run by its id alone, anything else by kind and subject."""
        return self.subject if self.kind in ("train", self.subject) else f"{self.kind} {self.subject}"

    def progressed(self, round_: int, rounds: int, accuracy: float | None) -> None:
        if self.resumed is None:
            self.resumed = round_ - 1
        self.round, self.rounds = round_, rounds
        self.accuracy = self.accuracy if accuracy is None else accuracy

    def elapsed(self, now: float) -> float:
        return now - self.began if self.state == "running" else self.seconds

    def left(self, now: float) -> float:
        """Return the expected seconds until it is over, from its own rounds as soon as there are some."""
        if self.state != "running":
            return 0.0 if self.state in OVER else self.expected
        first = self.resumed or 0
        if self.round > first:
            return self.elapsed(now) / (self.round - first) * (self.rounds - self.round)
        return max(0.0, self.expected - self.elapsed(now))


@dataclass
class Board:
    """All stages of a call of ``pfl run``, each after what it depends on.

    `began` and `ended` are seconds since 1970; `ended` is 0 while it runs.
    """

    title: str = ""  # what was typed
    process: int = field(default_factory=os.getpid)
    began: float = field(default_factory=time.time)
    ended: float = 0.0
    places: int = 1  # how many stages run at the same time
    entries: dict[str, StageState] = field(default_factory=dict)
    path: Path | None = None
    _due: float = 0.0

    def counts(self) -> Counter[str]:
        return Counter(entry.state for entry in self.entries.values())

    def of_state(self, *states: State) -> list[StageState]:
        return [entry for entry in self.entries.values() if entry.state in states]

    def of_kind(self, kind: str) -> list[StageState]:
        return [entry for entry in self.entries.values() if entry.kind == kind]

    def left(self, now: float) -> float:
        """Return the expected seconds until all is over: all work shared out evenly, or the longest of what runs."""
        each = [entry.left(now) for entry in self.entries.values()]
        return max(sum(each) / max(self.places, 1), max(each, default=0.0))

    def save(self, now: bool = False) -> None:
        """Write it, unless that happened less than a second ago, or took long, and need not be done `now`."""
        if self.path and (now or time.monotonic() > self._due):
            began = time.monotonic()
            facts = {name: value for name, value in vars(self).items() if name not in ("path", "_due")}
            write_text(self.path, json.dumps(facts, default=vars) + "\n")
            self._due = began + max(1.0, 20 * (time.monotonic() - began))

    def finish(self) -> None:
        """Write that it is over."""
        self.ended = time.time()
        self.save(now=True)

    @classmethod
    def load(cls, path: Path) -> Board | None:
        """Return the last one written, or None. Raise :class:`UserError` for a file that cannot be read."""
        if not path.is_file():
            return None
        try:
            board = cls(**parse_json(read_file(path, MAX_BYTES)), path=path)
            board.entries = {address: StageState(**entry) for address, entry in board.entries.items()}  # type: ignore[arg-type]
            return board
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{path}: cannot be read; the next `pfl run` writes it anew") from None

    @property
    def alive(self) -> bool:
        """Whether the process that wrote it still works on it."""
        try:
            os.kill(self.process, 0)
        except PermissionError:
            pass
        except ProcessLookupError:
            return False
        return not self.ended


def status_path(workspace: Workspace) -> Path:
    """Return where the state of the last `pfl run` is."""
    return workspace.private / "run.json"
