"""Showing how long work goes: a bar with time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pflcore.engine import Progress

_INTERVAL = 20.0  # seconds between two lines when there is no terminal

listener: Callable[[Progress], None] | None = None
"""Who is told of each round beside the reader: in a worker of ``pfl run``, the scheduler."""


Show = Callable[..., None]
"""Takes what is done, how many steps of it are done, how many there are, and what else there is to say of it."""


@contextmanager
def show_training(title: str) -> Iterator[Callable[[Progress], None]]:
    """Yield a function to call after each round."""
    tell = listener
    with show_preparation(title) as show:

        def update(progress: Progress) -> None:
            if tell:
                tell(progress)
            accuracy = "" if progress.accuracy is None else f", accuracy {100 * progress.accuracy:.2f} %"
            show(title, progress.round, progress.rounds, f"loss {progress.loss:.3f}{accuracy}")

        yield update


@contextmanager
def show_preparation(first: str = "") -> Iterator[Show]:
    """Yield a function to call after each step; what comes `first` has a bar before its first step."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),  # on a narrow terminal only the bar is shortened
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
    )
    # Nothing is redirected: forked workers that print must not wait for the display of this process.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False) as bar:
        tasks = {first: bar.add_task(first, total=None, state="")} if first else {}

        def update(what: str, done: int, total: int, state: str = "") -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, state="")
            bar.update(tasks[what], completed=done, total=total, state=state)

        yield update


class _Lines:
    """Print a line at intervals, and one at the end of what has a state. What takes less says nothing else."""

    def __init__(self) -> None:
        self.what, self.last = "", time.monotonic()

    def __call__(self, what: str, done: int, total: int, state: str = "") -> None:
        before, self.last = self.last, time.monotonic()
        if what != self.what:  # a resumed run starts in the middle
            self.what, self.start = what, max(done - 1, 0)
            self.began = self.shown = before if done else self.last
        ends = done == total and state != ""
        if not ends and (not done or self.last - self.shown < _INTERVAL):
            return
        self.shown = self.last
        left = (self.last - self.began) / (done - self.start) * (total - done)
        words = [f"{what}: {'round ' if state else ''}{done:,}/{total:,}", state, "" if ends else f"{left:.0f} s left"]
        print(", ".join(filter(None, words)), flush=True)
