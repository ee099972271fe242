"""Showing how training goes: a bar with accuracy and time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pflcore.engine import Progress

# Seconds between two lines when there is no terminal.
_INTERVAL = 20.0


@contextmanager
def show_training(title: str) -> Iterator[Callable[[Progress], None]]:
    """A function to call after each round, for the time of the block."""
    if sys.stderr.isatty():
        with _bar(title) as update:
            yield update
    else:
        yield _Lines(title)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, state="")
        begun: list[int] = []

        def update(progress: Progress) -> None:
            if not begun:  # a resumed run starts in the middle
                begun.append(progress.round - 1)
            state = f"loss {progress.loss:.3f}" + (
                "" if progress.accuracy is None else f"  accuracy {100 * progress.accuracy:.2f} %"
            )
            bar.update(task, total=progress.rounds - begun[0], completed=progress.round - begun[0], state=state)

        yield update


class _Lines:
    def __init__(self, title: str) -> None:
        self.title = title
        self.started = self.shown = time.monotonic()
        self.first: int | None = None

    def __call__(self, progress: Progress) -> None:
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
