"""The exception for errors of a user, and error messages in one line."""

import errno
import re

_MAX_LENGTH = 4000
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENAMETOOLONG)
_LOCK_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # by file system: NFS, Lustre, FUSE
_LONG_WORD = re.compile(r"(\S{100})\S{160,}(\S{40})")


class UserError(Exception):
    """Invalid input; one line says where and what to do. The command line prints the line and exits with code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(bounded(message))


def is_disk_error(error: OSError) -> bool:
    """Return whether an error is caused by the disk (for example a full disk) and not by the code that raised it."""
    return error.errno in _DISK_ERRORS


def describe_os_error(error: OSError) -> str:
    """Return the file and the system's message about it, for example that the disk is full or read-only."""
    remedy = "; file locks are needed, so work on a local disk" if error.errno in _LOCK_ERRORS else ""
    return bounded(f"{error.filename2 or error.filename or 'system'}: {error.strerror or error}{remedy}")


def bounded(message: str) -> str:
    """Return the message as one line of at most 4,000 characters; words of 300 or more are cut in the middle."""
    line = _LONG_WORD.sub(r"\1...\2", " ".join(message[: 100 * _MAX_LENGTH].split()))
    return line if len(line) <= _MAX_LENGTH else f"{line[: _MAX_LENGTH - 1000]} ... {line[-900:]}"
