"""Showing how long work goes: a bar with time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.printing import Printer

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from pflcore.engine import Progress

# Seconds between two lines when there is no terminal.
_INTERVAL = 20.0

listener: Callable[[Progress], None] | None = None
"""Who is told of each round beside the reader: in a worker of ``pfl run``, the scheduler."""


@contextmanager
def show_training(title: str) -> Iterator[Callable[[Progress], None]]:
    """A function to call after each round, for the time of the block."""
    if listener:  # what is printed goes to a file, which never stalls
        yield _TrainingLines(title)
        return
    with Printer() as printer:
        if sys.stderr.isatty():
            with _bar(printer) as bar:
                yield _TrainingBar(bar, title)
        else:
            yield _TrainingLines(title)


@contextmanager
def show_preparation() -> Iterator[Callable[[str, int, int], None]]:
    """A function to call with what is done, how many steps of it are done, and how many there are."""
    with Printer() as printer:
        if sys.stderr.isatty():
            with _bar(printer) as bar:
                tasks: dict[str, TaskID] = {}

                def update(what: str, done: int, total: int) -> None:
                    if what not in tasks:
                        tasks[what] = bar.add_task(what, total=total, state="")
                    bar.update(tasks[what], completed=done)

                yield update
        else:
            yield _PreparationLines()


@contextmanager
def _bar(printer: Printer) -> Iterator[Bar]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),  # on a narrow terminal only the bar is shortened
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
    )
    bar = Progress(*columns)  # shown by the printer, so that it never waits for the terminal itself
    with printer.live(lambda: bar, per_second=10):
        yield bar


class _TrainingBar:
    def __init__(self, bar: Bar, title: str) -> None:
        self.bar = bar
        self.task = bar.add_task(title, total=None, state="")
        self.first: int | None = None

    def __call__(self, progress: Progress) -> None:
        if self.first is None:  # a resumed run starts in the middle
            self.first = progress.round - 1
        accuracy = "" if progress.accuracy is None else f"  accuracy {100 * progress.accuracy:.2f} %"
        self.bar.update(
            self.task,
            total=progress.rounds - self.first,
            completed=progress.round - self.first,
            state=f"loss {progress.loss:.3f}{accuracy}",
        )


class _TrainingLines:
    """Passes on to the :data:`listener` too."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.started = self.shown = time.monotonic()
        self.first: int | None = None

    def __call__(self, progress: Progress) -> None:
        if listener:
            listener(progress)
        now = time.monotonic()
        if self.first is None:
            self.first = progress.round - 1
        last = progress.round == progress.rounds
        if now - self.shown < _INTERVAL and not last:
            return
        self.shown = now
        left = (now - self.started) / (progress.round - self.first) * (progress.rounds - progress.round)
        accuracy = "" if progress.accuracy is None else f", accuracy {100 * progress.accuracy:.2f} %"
        state = f"loss {progress.loss:.3f}{accuracy}" + ("" if last else f", {left:.0f} s left")
        print(f"{self.title}: round {progress.round}/{progress.rounds}, {state}", flush=True)


class _PreparationLines:
    """Work of less than an interval says nothing."""

    def __init__(self) -> None:
        self.what = ""
        self.started = self.shown = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self.what:
            self.what, self.started, self.shown = what, now, now
        if now - self.shown < _INTERVAL or not done:
            return
        self.shown = now
        left = (now - self.started) / done * (total - done)
        print(f"{what}: {done:,}/{total:,}, {left:.0f} s left", flush=True)
