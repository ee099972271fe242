"""The command line: ``pfl``. What takes time to import is imported when it is known to be needed here."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from pflcore.errors import UserError, in_words, is_of_disk
from pipeline.running import repro

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_failures: dict[int, OSError] = {}  # descriptor → why it did not take something, the first time


def main() -> None:
    """Entry point. A :class:`UserError`, a wrong command line or a failing disk becomes one line and exit code 2; an
    interruption one line and 130."""
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
    import typer

    usage_error: Any = typer.BadParameter.__bases__[0]  # not exported; Typer's own or Click's, by its version
    try:
        from pipeline.cli.commands import app

        code = app(standalone_mode=False) or 0
    except SystemExit as end:  # raised by a command itself
        code = end.code
    except usage_error as error:
        _refuse(_usage(error))
    except typer.Abort:  # Ctrl-C, or the end of the input, where something is asked
        print("\npfl: interrupted", file=sys.stderr)
        sys.exit(130)
    except UserError as error:
        _refuse(str(error))
    except OSError as error:  # a file cannot be written or read, and is left as it was
        if sys.argv[1:2] == ["stage"] and not is_of_disk(error):  # a fault in code, also a file that it does not find
            raise
        _refuse(in_words(error))
    except Exception as error:
        if type(error).__module__ != "sqlite3":
            raise
        _refuse(f"DVC's own database of files: {error}; is the disk full?")
    if code == 130:  # also what Typer makes of a KeyboardInterrupt
        print("pfl: interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
    sys.exit(code)


def _usage(error: Any) -> str:
    """Return what is wrong with a command line; empty where no command was given, which has printed help."""
    said = " ".join(error.format_message().split()).rstrip(".")
    if near := getattr(error, "possibilities", None):
        said = f"{error.message.rstrip('.')}; did you mean {near[0]!r}?"
    said = said[:1].lower() + said[1:].replace(". Did you mean", "; did you mean")
    if not said or said.endswith("?") or not error.ctx:
        return said
    return f"{said}; see `{error.ctx.command_path} --help`"


def _refuse(line: str) -> NoReturn:
    if line:
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
