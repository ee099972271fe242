"""Standard output and error on which nothing fails for want of a character, of a reader, or of the stream itself."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_failures: dict[int, OSError] = {}  # descriptor → why it did not take something, the first time


class _Unfailing(io.FileIO):
    """A file that takes everything: what cannot be written is dropped."""

    def write(self, data: ReadableBuffer) -> int:
        size = memoryview(data).nbytes
        try:
            return super().write(data) or size
        except OSError as error:
            _failures.setdefault(self.fileno(), error)
            return size


def guard_output() -> None:
    """Let printing raise no error from now on; streams that somebody has replaced stay as they are."""
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


def check_output() -> None:
    """Flush standard output, and exit with 2 and a line if it has not taken all. A reader that has left is no error."""
    sys.stdout.flush()
    error = _failures.get(1)
    if error and error.errno not in (errno.EPIPE, errno.EIO):  # of a pipe and of a terminal that nobody reads any more
        print(f"pfl: standard output: {error.strerror}", file=sys.stderr)
        sys.exit(2)
