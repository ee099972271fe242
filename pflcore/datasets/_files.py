"""Readers of untrusted files: one-line errors, one interface to folders and archives, pickles of arrays only."""

import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

from pflcore.errors import UserError
from pflcore.files import check_plain, walk
from pflcore.files import read_file as read_bytes

Read = Callable[[], bytes]
"""Return a file's content."""

MAX_FILE_BYTES = 2**28
GET_AGAIN = "delete it and get it again, with `pfl fetch` where it can be downloaded"


@contextmanager
def reading(path: Path | str, advice: str = GET_AGAIN) -> Iterator[None]:
    """Raise any exception of the block as one :class:`UserError` that names the file; `advice` says what to do."""
    try:
        if Path(path).exists() and not Path(path).is_dir():
            check_plain(Path(path))
        yield
    except UserError:
        raise
    except Exception as error:  # libraries raise many kinds of exceptions for damaged files
        raise UserError(f"{path}: {describe(error)}; {advice}") from None


def describe(error: Exception) -> str:
    """Return in a few words why a file could not be read."""
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, KeyError):
        return f"has no {error.args[0]}"
    return f"cannot be read ({' '.join(str(error).split())[:200] or type(error).__name__})"


def read_file(path: Path) -> bytes:
    """Return the content of a file of at most :data:`MAX_FILE_BYTES`, such as an image, a list or a batch."""
    return read_bytes(path, MAX_FILE_BYTES)


@dataclass(frozen=True)
class Files:
    """The files of a folder or an archive by name, and the path of the folder or archive for messages."""

    where: str
    readers: dict[str, Read]

    def read(self, name: str) -> bytes:
        if name not in self.readers:
            raise UserError(f"{self.where}: {name} is missing; put the complete data there")
        return self.readers[name]()

    def named(self, name: str) -> tuple[str, Read]:
        """Return the path of a file for messages, and a function that reads it."""
        return f"{self.where}/{name}", partial(self.read, name)


@contextmanager
def open_files(place: Path, wanted: str | tuple[str, ...] = "", inside: str = "") -> Iterator[Files]:
    """Open the files of a folder, a zip or a tar whose names start with `wanted`, for use by one thread.

    Names are relative to the folder, or to the folder `inside` of an archive. Nothing is unpacked to disk. An archive
    with a member name that points outside of it is refused. The files of a compressed tar stay in memory, because it
    can be read only from its start.
    """
    if place.is_dir():
        names = sorted((root / name).relative_to(place).as_posix() for root, _, here in walk(place) for name in here)
        yield Files(str(place), {name: partial(read_file, place / name) for name in names if name.startswith(wanted)})
        return
    readers: dict[str, Read] = {}
    zipped = place.suffix == ".zip"
    with reading(place):
        archive: Any = (zipfile.ZipFile if zipped else tarfile.open)(place)
    with archive:
        with reading(place):
            packed = not zipped and not isinstance(archive.fileobj, BufferedReader)
            for member in archive.infolist() if zipped else archive:
                name = member.filename if zipped else member.name
                if name.startswith(("/", "\\")) or ".." in PurePosixPath(name.replace("\\", "/")).parts:
                    raise ValueError(f"its member {name!r} points outside of the archive")
                short = name.removeprefix(inside)
                plain = not member.is_dir() if zipped else member.isfile()
                if plain and name.startswith(inside) and short.startswith(wanted):
                    read = partial(_read_member, place, archive.open if zipped else archive.extractfile, member)
                    readers[short] = partial(bytes, read()) if packed else read
        yield Files(str(place), readers)


def _read_member(place: Path, opener: Any, member: Any) -> bytes:
    with reading(place), opener(member) as file:
        data: bytes = file.read()
        return data


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler of containers, texts, numbers and NumPy arrays that refuses all other classes and functions."""

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
    """Return the content of a pickle of arrays; texts of Python 2 become str. `where` is the path for messages."""
    with reading(where):
        return _ArrayUnpickler(BytesIO(data), encoding="latin1").load()
