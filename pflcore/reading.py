"""Reading files that somebody else may have made: plain ones, and not more than there is use or room for."""

from __future__ import annotations

import stat
from pathlib import Path

from pflcore.errors import UserError


def check_plain(path: Path) -> None:
    """Raises :class:`UserError` for what is no plain file, whose reading may never end, and where there is nothing."""
    try:
        plain = stat.S_ISREG(path.stat().st_mode)  # of what a link leads to
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not plain:
        raise UserError(f"{path}: no plain file, but a folder, a pipe or a device; move it away")


def read_file(path: Path, most: int, than: str = "such a file has") -> bytes:
    """The content of a file of at most so many bytes.

    Args:
        than: What has or allows `most` bytes, for the message.

    Raises:
        UserError: It cannot be read, is larger, or is no plain file.
    """
    check_plain(path)
    try:
        size = path.stat().st_size
        if size > most:
            raise UserError(f"{path}: {size:,} bytes are more than {than} ({most:,}); move it away")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def is_lfs_pointer(file: Path | bytes) -> bool:
    """Return whether a file, or its content, is what a clone without git LFS has in place of a large file."""
    start = b"version https://git-lfs"
    if isinstance(file, bytes):
        return file.startswith(start)
    try:
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(len(start)) == start
    except OSError:
        return False
