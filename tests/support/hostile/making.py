"""How something hostile comes in the place of a good file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

Maker = Callable[[Path], None]
"""Takes a path at which a good file lies, and puts something hostile there, of a few megabytes of the disk at most."""

MEBIBYTE = 2**20
HUGE = 5 * 2**30  # bytes, more than these readers have a use for; as a hole in a file they take no room


def content(make: Callable[[bytes], bytes]) -> Maker:
    """What makes hostile content of the good one."""

    def put(path: Path) -> None:
        original = path.read_bytes()
        path.unlink()
        path.write_bytes(make(original))

    return put


def instead(make: Callable[[Path], object]) -> Maker:
    """What puts something else in the file's place."""

    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


def hole(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(HUGE)


def bomb(pack: Callable[[bytes], bytes]) -> bytes:
    """Parts of a megabyte of nothing, packed, one after the other, as these formats allow: four gigabytes."""
    return pack(bytes(MEBIBYTE)) * 4096


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def inflated(member: str, begin: bytes, times: int) -> bytes:
    """An archive of a member that begins so and then is nothing, a megabyte so many times."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(member, "w") as one:
        one.write(begin)
        for _ in range(times):
            one.write(bytes(MEBIBYTE))
    return file.getvalue()
