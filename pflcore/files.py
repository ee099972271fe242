"""Files that are written whole: under a temporary name, and renamed when they are complete."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces it when the block ends well, and is removed when it does not.

    What a process that was killed left behind goes as well.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        if not _runs(left.name.split(".")[-2]):
            left.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with named(path):
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let an error of the system in a block that writes a file say which; those of libraries often do not."""
    try:
        yield
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))  # how safetensors has it
        number = error.errno if isinstance(error, OSError) and not error.filename else found and int(found[1])
        if not number:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _runs(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    return True


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
