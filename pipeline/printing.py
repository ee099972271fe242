"""Printing without waiting for the reader: a stopped terminal or a full pipe stalls a thread, and not the work."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import RenderableType
    from rich.live import Live

MOMENT = 2.0  # seconds that a reader has at the end, where nobody waits for him
_MOST = 100_000  # lines that wait for a reader; what is printed beyond them is lost


class Printer:
    """For the time of a block, a thread alone writes what goes to standard output and error, in order.

    Args:
        complete: Whether the end of the block waits until everything has been written, and raises what went wrong
            with that. Otherwise, and after an exception, a reader has a moment; what is not written by then is written
            if he reads before the process ends.
    """

    def __init__(self, complete: bool = False) -> None:
        self.complete = complete
        self._acts: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._live: Live | None = None  # the thread's own: rich holds its locks while it writes
        self._error: Exception | None = None
        self._process = 0  # which has the thread: a forked one, and who prints after the end, write for themselves

    def __enter__(self) -> Self:
        self._before = before = sys.stdout, sys.stderr
        for stream in before:
            stream.flush()
        sys.stdout, sys.stderr = (_text(stream, partial(self._put, stream)) for stream in before)
        self._process = os.getpid()
        threading.Thread(target=self._work, name="printer", daemon=True).start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        complete, written = self.complete and kind is None, threading.Event()
        self._acts.put(written.set)
        if written.wait(None if complete else MOMENT):
            self._acts.put(None)
            self._process = 0
            sys.stdout, sys.stderr = self._before
        if complete and self._error:
            raise self._error

    @contextmanager
    def live(self, view: Callable[[], RenderableType], per_second: float, transient: bool = False) -> Iterator[None]:
        """For the time of a block, show what `view` returns below the lines on standard error, a terminal."""
        from rich.console import Console
        from rich.live import Live

        stream = self._before[1]
        live = Live(
            console=Console(file=_text(stream, partial(_write, stream))),
            get_renderable=view,
            refresh_per_second=per_second,
            transient=transient,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._acts.put(partial(self._begin, live))
        try:
            yield
        finally:
            self._acts.put(partial(self._end, live))

    def _put(self, stream: TextIO, data: bytes) -> None:
        if os.getpid() != self._process:
            _write(stream, data)
        elif self._acts.qsize() < _MOST:
            self._acts.put(partial(self._print, stream, data))

    def _work(self) -> None:
        while act := self._next():
            try:
                act()
            except Exception as error:  # nobody reads any more, which does not end the work
                self._error = self._error or error

    def _next(self) -> Callable[[], object] | None:
        live = self._live
        try:
            return self._acts.get(timeout=1 / live.refresh_per_second if live else None)
        except Empty:
            return live.refresh if live else None

    def _begin(self, live: Live) -> None:
        self._live = live
        live.start()

    def _end(self, live: Live) -> None:
        self._live = None
        live.stop()

    def _print(self, stream: TextIO, data: bytes) -> None:
        if self._live and stream.isatty():
            from rich.text import Text

            line = data.decode(stream.encoding or "utf-8", "replace").removesuffix("\n")
            self._live.console.print(Text(line), soft_wrap=True)
        else:
            _write(stream, data)


class _End(io.RawIOBase):
    """The end of a text stream, which hands over what is written and is otherwise like another stream."""

    name = "<printer>"

    def __init__(self, stream: TextIO, put: Callable[[bytes], None]) -> None:
        self.stream, self.put = stream, put

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return not self.stream.closed and self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def write(self, data: ReadableBuffer) -> int:
        content = bytes(data)
        self.put(content)
        return len(content)


def _text(stream: TextIO, put: Callable[[bytes], None]) -> TextIO:
    """A stream like another one, whose lines go to a function."""
    end = _End(stream, put)
    return io.TextIOWrapper(end, encoding=stream.encoding or "utf-8", errors=stream.errors, line_buffering=True)


def _write(stream: TextIO, data: bytes) -> None:
    """Write all of it, past the stream's own buffer: a thread that holds its lock would hold up the process's end."""
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:  # it lies in memory
        stream.write(data.decode(stream.encoding or "utf-8"))
        return
    while data:
        data = data[os.write(descriptor, data) :]
