"""Reading files that somebody else may have made: plain ones, and not more than there is use for."""

from __future__ import annotations

from pathlib import Path

from pflcore.errors import UserError


def check_plain(path: Path) -> None:
    """Raise :class:`UserError` for what is no plain file, whose reading may never end, and where there is nothing."""
    try:
        path.stat()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not path.is_file():
        raise UserError(f"{path}: no plain file, but a folder, a pipe or a device; move it away")


def read_file(path: Path, most: int, than: str = "such a file has") -> bytes:
    """Return the content of a plain file of at most `most` bytes, as much as `than`; else raise :class:`UserError`."""
    check_plain(path)
    try:
        if (size := path.stat().st_size) > most:
            raise UserError(f"{path}: {size:,} bytes are more than {than} ({most:,}); move it away")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def is_lfs_pointer(file: Path | bytes) -> bool:
    """Return whether a file, or its content, is what a clone without git LFS has in place of a large file."""
    if isinstance(file, Path):
        try:
            with file.open("rb") as opened:
                file = opened.read(99) if file.is_file() else b""
        except OSError:
            return False
    return file.startswith(b"version https://git-lfs")
