"""The command line: ``pfl``. What takes time to import is imported when it is known to be needed here."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING

from pflcore.errors import UserError, in_words
from pipeline.running import repro

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_failures: dict[int, OSError] = {}  # descriptor → why it did not take something, the first time


def main() -> None:
    """Entry point. A :class:`UserError` or a failing disk becomes one line and exit code 2; an interruption one line
    and 130."""
    _guard_output()
    if sys.argv[1:2] == ["stage"]:
        repro.execute(_call)
        return
    try:
        _call()
    finally:
        sys.stdout.flush()
        error = _failures.get(1)  # a reader that has left, of a pipe or a terminal, is none
        if error and error.errno not in (errno.EPIPE, errno.EIO):
            _refuse(f"standard output: {error.strerror}")


def _call() -> None:
    try:
        from pipeline.cli.commands import app

        app()
    except UserError as error:
        _refuse(str(error))
    except OSError as error:  # a file cannot be written or read, and is left as it was
        _refuse(in_words(error))
    except Exception as error:
        if type(error).__module__ != "sqlite3":
            raise
        _refuse(f"DVC's own database of files: {error}; is the disk full?")
    except SystemExit as end:
        if end.code == 130:  # what Typer makes of a KeyboardInterrupt
            print("pfl: interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        raise


def _refuse(line: str) -> None:
    print(f"pfl: {line}", file=sys.stderr)
    sys.exit(2)


class _Unfailing(io.FileIO):
    """A file that takes everything: what cannot be written is dropped."""

    def write(self, data: ReadableBuffer) -> int:
        size = memoryview(data).nbytes
        try:
            return super().write(data) or size
        except OSError as error:
            _failures.setdefault(self.fileno(), error)
            return size


def _guard_output() -> None:
    """Let printing raise no error from now on: for want of a character, of a reader, of space or of the stream itself.

    Streams that somebody has replaced stay as they are.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue
        if stream is None:  # closed by whoever started this; the next file that is opened would be in its place
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            os.set_inheritable(number, True)
        encoding = stream.encoding if stream else "utf-8"
        by_line = bool(stream and (stream.line_buffering or stream.write_through))
        buffer = io.BufferedWriter(_Unfailing(number, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(buffer, encoding, "replace", line_buffering=by_line))
