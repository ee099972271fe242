"""The command line ``pfl``. Slow imports are inside the functions that need them."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from pflcore.errors import UserError, describe_os_error, is_disk_error
from pipeline.running import repro

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_failures: dict[int, OSError] = {}  # file descriptor → the first error of writing to it


def main() -> None:
    """Run the command line. Turn a :class:`UserError`, a wrong command line or a disk error into one line and exit
    code 2, and an interruption into one line and exit code 130."""
    _guard_output()
    if sys.argv[1:2] == ["stage"]:
        repro.execute(_run_app)
        return
    gc.set_threshold(100_000)  # most objects are records, stages and artists, which stay until the end
    try:
        _run_app()
    finally:
        sys.stdout.flush()
        error = _failures.get(1)  # a pipe or a terminal that its reader has closed is no error
        if error and error.errno not in (errno.EPIPE, errno.EIO):
            _exit_with_error(f"standard output: {error.strerror}")


def _run_app() -> None:
    import typer

    usage_error: Any = typer.BadParameter.__bases__[0]  # not exported; by version a class of Typer or of Click
    try:
        from pipeline.cli.commands import app

        code = app(standalone_mode=False) or 0
    except SystemExit as end:  # raised by a command itself
        code = end.code
    except usage_error as error:
        _exit_with_error(_usage(error))
    except (typer.Abort, KeyboardInterrupt):  # at a prompt, where input can also end; or before the command began
        print("\npfl: interrupted", file=sys.stderr)
        sys.exit(130)
    except UserError as error:
        _exit_with_error(str(error))
    except OSError as error:  # a file cannot be written or read; it is unchanged
        if sys.argv[1:2] == ["stage"] and not is_disk_error(error):  # a mistake in code, such as a missing file
            raise
        _exit_with_error(describe_os_error(error))
    except Exception as error:
        if type(error).__module__ != "sqlite3":
            raise
        _exit_with_error(f"DVC's own database of files: {error}; is the disk full?")
    if code == 130:  # Typer also turns a KeyboardInterrupt into this code
        print("pfl: interrupted; the same command continues from the last checkpoint", file=sys.stderr)
    sys.exit(code)


def _usage(error: Any) -> str:
    """Return the error message for a wrong command line; "" if no command was given, since that has printed help."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if similar := getattr(error, "possibilities", None):
        message = f"{error.message.rstrip('.')}; did you mean {similar[0]!r}?"
    message = message[:1].lower() + message[1:].replace(". Did you mean", "; did you mean")
    if message.startswith("missing argument") and error.param.help:
        message = f"{message}: {error.param.help.rstrip('.')}"
    if not message or message.endswith("?") or not error.ctx:
        return message
    return f"{message}; see `{error.ctx.command_path} --help`"


def _exit_with_error(line: str) -> NoReturn:
    if line:
        print(f"pfl: {line}", file=sys.stderr)
    sys.exit(2)


class _LenientFile(io.FileIO):
    """A file whose writes never fail: data that cannot be written are dropped, and the first error is kept."""

    def write(self, data: ReadableBuffer) -> int:
        size = memoryview(data).nbytes
        try:
            return super().write(data) or size
        except OSError as error:
            _failures.setdefault(self.fileno(), error)
            return size


def _guard_output() -> None:
    """Replace stdout and stderr so that printing never fails, even if a character, reader, space or stream is missing.

    Streams that other code has replaced stay as they are.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue
        if stream is None:  # closed by the parent process; the next opened file would get its descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            os.set_inheritable(number, True)
        encoding = stream.encoding if stream else "utf-8"
        by_line = bool(stream and (stream.line_buffering or stream.write_through))
        buffer = io.BufferedWriter(_LenientFile(number, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(buffer, encoding, "replace", line_buffering=by_line))
