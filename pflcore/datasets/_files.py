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
    """Raise an exception of the block as one :class:`UserError` with the path and `advice`."""
    try:
        if Path(path).exists() and not Path(path).is_dir():
            check_plain(Path(path))
        yield
    except UserError:
        raise
    except Exception as error:  # libraries raise many kinds of exceptions for damaged files
        raise UserError(f"{path}: {describe(error)}; {advice}") from None


def describe(error: Exception) -> str:
    """Return in a few words why a file cannot be read."""
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

    def reader(self, name: str) -> tuple[str, Read]:
        """Return the path of a file for messages, and a function that reads it."""
        return f"{self.where}/{name}", partial(self.read, name)


@contextmanager
def open_files(path: Path, prefixes: str | tuple[str, ...] = "", inside: str = "") -> Iterator[Files]:
    """Open the files of a folder, a zip or a tar whose names start with `prefixes`, for use by one thread.

    Names are relative to the folder, or to the folder `inside` of an archive. Nothing is unpacked to disk. An archive
    with a member name that points outside of it is refused. The files of a compressed tar stay in memory, because it
    can be read only from its start.
    """
    if path.is_dir():
        names = sorted((root / name).relative_to(path).as_posix() for root, _, files in walk(path) for name in files)
        yield Files(str(path), {name: partial(read_file, path / name) for name in names if name.startswith(prefixes)})
        return
    readers: dict[str, Read] = {}
    is_zip = path.suffix == ".zip"
    with reading(path):
        archive: Any = (zipfile.ZipFile if is_zip else tarfile.open)(path)
    with archive:
        with reading(path):
            compressed_tar = not is_zip and not isinstance(archive.fileobj, BufferedReader)
            for member in archive.infolist() if is_zip else archive:
                name = member.filename if is_zip else member.name
                if name.startswith(("/", "\\")) or ".." in PurePosixPath(name.replace("\\", "/")).parts:
                    raise ValueError(f"its member {name!r} points outside of the archive")
                is_file = not member.is_dir() if is_zip else member.isfile()
                relative = name.removeprefix(inside)
                if is_file and name.startswith(inside) and relative.startswith(prefixes):
                    read = partial(_read_member, path, archive.open if is_zip else archive.extractfile, member)
                    readers[relative] = partial(bytes, read()) if compressed_tar else read
        yield Files(str(path), readers)


def _read_member(path: Path, opener: Any, member: Any) -> bytes:
    with reading(path), opener(member) as file:
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
