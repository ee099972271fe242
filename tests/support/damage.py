"""What happens to files: a bit turns over, the end is lost, nothing is left. A file that is a link becomes its own."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path) -> None:
    """Turn a bit in the middle over."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    _replace(path, bytes(content))


def cut(path: Path) -> None:
    content = path.read_bytes()
    _replace(path, content[: len(content) // 2])


def shorten(path: Path) -> None:
    """Cut the last bytes off."""
    _replace(path, path.read_bytes()[:-7])


def empty(path: Path) -> None:
    _replace(path, b"")


def _replace(path: Path, content: bytes) -> None:
    path.unlink()  # DVC may have made a link of it
    path.write_bytes(content)
