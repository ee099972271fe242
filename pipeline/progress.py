"""Display of the progress of long work: a bar with the time left on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pflcore.engine import Progress

_INTERVAL = 20.0  # seconds between two lines if there is no terminal

listener: Callable[[Progress], None] | None = None
"""Called after each round in addition to the display. A worker of ``pfl run`` uses it to inform the scheduler."""

Show = Callable[..., None]
"""Takes the name of the work, the number of steps done, the number of all steps, and optionally a text to show."""


@contextmanager
def show_training(title: str) -> Iterator[Callable[[Progress], None]]:
    """Yield a function to call after each round."""
    with show_preparation(title) as show:

        def update(progress: Progress) -> None:
            if listener:
                listener(progress)
            accuracy = "" if progress.accuracy is None else f", accuracy {100 * progress.accuracy:.2f} %"
            show(title, progress.round, progress.rounds, f"loss {progress.loss:.3f}{accuracy}")

        yield update


@contextmanager
def show_preparation(first: str = "") -> Iterator[Show]:
    """Yield a function to call after each step. The work named `first` has a bar before its first step."""
    if not sys.stderr.isatty():
        yield _lines()
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
    # No redirection: forked workers that print must not wait for the display of this process.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False) as bar:
        tasks = {first: bar.add_task(first, total=None, state="")} if first else {}

        def update(work: str, done: int, total: int, state: str = "") -> None:
            if work not in tasks:
                tasks[work] = bar.add_task(work, state="")
            bar.update(tasks[work], completed=done, total=total, state=state)

        yield update


def warn(lines: Iterable[str]) -> None:
    """Print lines to standard error."""
    for line in lines:
        print(f"pfl: {line}", file=sys.stderr, flush=True)


def _lines() -> Show:
    """Return a function that prints a line at intervals, and a last line for work that reports a state."""
    task, start, began, printed, last = "", 0, 0.0, 0.0, time.monotonic()

    def update(work: str, done: int, total: int, state: str = "") -> None:
        nonlocal task, start, began, printed, last
        before, last = last, time.monotonic()
        if work != task:  # a resumed run starts in the middle
            task, start = work, max(done - 1, 0)
            began = printed = before if done else last
        is_last = done == total and state != ""
        if is_last or (done and last - printed >= _INTERVAL):
            printed = last
            remaining = "" if is_last else f"{(last - began) / (done - start) * (total - done):.0f} s left"
            parts = (f"{work}: {'round ' if state else ''}{done:,}/{total:,}", state, remaining)
            print(", ".join(filter(None, parts)), flush=True)

    return update
