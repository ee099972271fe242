"""Reading files that others made: libraries' errors as one line, archives that stay packed, pickles of arrays alone."""

from __future__ import annotations

import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

from pflcore.errors import UserError
from pflcore.reading import check_plain, is_lfs_pointer
from pflcore.reading import read_file as read_bytes

Read = Callable[[], bytes]
"""Return a file's content."""

MAX_FILE_BYTES = 2**28
GET_AGAIN = "delete it and get it again, with `pfl fetch` where it can be downloaded"


@contextmanager
def reading(path: Path | str, advice: str = GET_AGAIN) -> Iterator[None]:
    """Raise whatever a library raises in the block as one :class:`UserError` that names the file."""
    try:
        if Path(path).exists() and not Path(path).is_dir():
            check_plain(Path(path))
        yield
    except UserError:
        raise
    except Exception as error:  # readers of damaged files raise almost anything
        raise UserError(f"{path}: {describe(error, Path(path))}; {advice}") from None


def describe(error: Exception, file: Path | bytes) -> str:
    """Say in a few words why a file, or its content, could not be read."""
    if is_lfs_pointer(file):
        return "a pointer of git LFS; `git lfs pull` gets the content"
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, KeyError):
        return f"has no {error.args[0]}"
    return f"cannot be read ({' '.join(str(error).split())[:200] or type(error).__name__})"


def read_file(path: Path) -> bytes:
    """Return the content of a file of one image, list or batch. Raise :class:`UserError` when it cannot be read."""
    return read_bytes(path, MAX_FILE_BYTES)


@contextmanager
def open_files(place: Path, wanted: Callable[[str], bool]) -> Iterator[dict[str, Read]]:
    """Open a folder, a zip or a tar, and yield a reader for each wanted file, by its name within.

    Nothing is unpacked to the disk. The files of a compressed tar, which can be read only from its start, are kept in
    memory. Readers are for one thread.

    Raises:
        UserError: A damaged archive, or a member whose name leaves it.
    """
    if place.is_dir():
        yield {name: partial(read_file, place / name) for name in _walk(place) if wanted(name)}
        return
    with reading(place):
        archive = (zipfile.ZipFile if place.suffix == ".zip" else tarfile.open)(place)
    with archive:
        with reading(place):
            members = _zipped if isinstance(archive, zipfile.ZipFile) else _tarred
            files: dict[str, Read] = {
                name: partial(_read_member, place, read) for name, read in members(archive, wanted)
            }
        yield files


def _walk(folder: Path) -> Iterator[str]:
    for inside, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        yield from ((Path(inside) / name).relative_to(folder).as_posix() for name in sorted(names))


def _zipped(archive: Any, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Read]]:
    for member in archive.infolist():
        if not member.is_dir() and wanted(_inside(member.filename)):
            yield member.filename, partial(archive.read, member)


def _tarred(archive: Any, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Read]]:
    compressed = not isinstance(archive.fileobj, BufferedReader)
    for member in archive:
        if member.isfile() and wanted(_inside(member.name)):
            read = partial(_extract, archive, member)
            yield member.name, partial(bytes, read()) if compressed else read


def _extract(archive: Any, member: Any) -> bytes:
    data: bytes = archive.extractfile(member).read()
    return data


def _inside(name: str) -> str:
    if name.startswith(("/", "\\")) or ".." in PurePosixPath(name.replace("\\", "/")).parts:
        raise ValueError(f"its member {name!r} points outside of the archive")
    return name


def _read_member(archive: Path, read: Read) -> bytes:
    with reading(archive):
        return read()


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickle containers, texts, numbers and NumPy arrays, and refuse whatever else a pickle asks for."""

    allowed = frozenset(
        {("numpy", "dtype"), ("numpy", "ndarray")}
        | {(f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")}
        | {(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")}
    )

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"refused: the pickle asks for {module}.{name}")
        return super().find_class(module, name)


def load_pickle(data: bytes, where: str) -> Any:
    """Return what a pickle of arrays holds; texts of Python 2 become str. Raise :class:`UserError` for any other."""
    with reading(where):
        return _ArrayUnpickler(BytesIO(data), encoding="latin1").load()
