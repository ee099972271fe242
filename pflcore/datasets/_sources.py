"""Official files: fetched once, checked by hash, and archives read member by member, never extracted."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pflcore.errors import UserError

# Bytes of a member that is worth reading; more is an attack or a mistake.
_LARGEST = 4 * 2**30
# What a damaged archive or compressed file raises.
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class Source:
    """A published file.

    Args:
        url: Where it is published: the file itself, or the page that leads to it.
        algorithm: ``"sha256"`` or ``"md5"``; empty when no hash is known, so that the file is unverified.
        digest: Its hash in hexadecimal.
        file: The file's name, where it is not the last part of the URL.
        size: Its bytes, where they are known; they are checked where no hash is known.
    """

    url: str
    algorithm: str = ""
    digest: str = ""
    file: str = ""
    size: int | None = None

    @property
    def direct(self) -> bool:
        """Whether it can be downloaded: the URL is that of the file itself, and its hash is known."""
        return bool(self.digest) and not self.file

    @property
    def name(self) -> str:
        """The file's name."""
        return self.file or self.url.rpartition("/")[2]

    def check(self, folder: Path) -> Path:
        """Its path in `folder`. Raises :class:`UserError` when it is there with another hash, or another size."""
        path = folder / self.name
        if not self.digest:
            if self.size not in (None, size := path.stat().st_size):
                raise UserError(
                    f"{path}: has {size:,} bytes, expected {self.size:,}; delete it and get it from {self.url}"
                )
            return path
        with path.open("rb") as file:
            found = hashlib.file_digest(file, self.algorithm).hexdigest()
        if found != self.digest:
            raise UserError(
                f"{path}: {self.algorithm} is {found}, expected {self.digest}; delete it and get it from {self.url}"
            )
        return path

    def obtain(self, folder: Path, alternatives: str = "") -> Path:
        """Its path in `folder`, downloaded when it is not there, and checked. Raises :class:`UserError`."""
        if not (folder / self.name).is_file():
            self.download(folder, alternatives)
        return self.check(folder)

    def read(self, folder: Path, members: Sequence[str]) -> dict[str, bytes]:
        """The content of the named members of an archive; others are passed over, whatever they are called.

        Raises:
            UserError: A wrong hash, a damaged archive, or a member that is not in it.
        """
        path = self.check(folder)
        contents = dict(read_members(path, lambda name: name in members))
        if missing := [name for name in members if name not in contents]:
            raise UserError(f"{path}: has no member {missing[0]}")
        return contents

    def download(self, folder: Path, alternatives: str = "") -> None:
        """Put the file into `folder`, which is made if need be.

        Args:
            alternatives: What else may be put into the folder by hand, for the error message.

        Raises:
            UserError: The host cannot be reached, which leaves what has come in ``<name>.part`` for the next call, or
                what it sent has another hash, which leaves nothing behind.
        """
        import pooch

        from pflcore.datasets._resuming import alone, partial, resuming  # with the HTTP client

        existed = folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.name
        try:
            with alone(folder):
                known = f"{self.algorithm}:{self.digest}"
                pooch.retrieve(self.url, known, fname=self.name, path=folder, downloader=resuming(path))
        except (OSError, ValueError) as error:  # every error of the HTTP client is an OSError
            kept = partial(path).is_file()
            if not existed and not kept and folder.is_dir():
                folder.rmdir()
            reason = "what it sent has a wrong hash" if isinstance(error, ValueError) else type(error).__name__
            raise UserError(
                f"{folder}: no data here, and {self.url} could not be downloaded ({reason}); "
                + (f"try again, which goes on at the end of {partial(path).name}, or " if kept else "")
                + f"put {self.name} into that folder"
                + (f", or {alternatives}" if alternatives else "")
            ) from None


def read_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the wanted files of a ``.zip``, ``.tar`` or ``.tar.gz``, in the archive's order.

    Nothing is written, so that a member's name can do no harm; but one that would leave the archive's folder, or the
    root of the file system, says that something is wrong.

    Raises:
        UserError: A damaged archive, or such a name.
    """
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as zipped:
                for entry in zipped.infolist():
                    check_name(path, entry.filename)
                    if not entry.is_dir() and wanted(entry.filename):
                        check_size(path, entry.filename, entry.file_size)
                        yield entry.filename, zipped.read(entry)
        else:
            with tarfile.open(path, "r|*") as archive:
                for member in archive:
                    check_name(path, member.name)
                    if wanted(member.name) and (file := archive.extractfile(member)):
                        check_size(path, member.name, member.size)
                        yield member.name, file.read()
    except DAMAGED as error:
        raise UserError(f"{path}: not a readable archive ({error}); delete it and get it again") from None


def check_name(path: Path, name: str) -> None:
    """Raises :class:`UserError` for a member's name that points outside of its archive `path`."""
    if name.startswith(("/", "\\")) or ".." in PurePosixPath(name.replace("\\", "/")).parts:
        raise UserError(f"{path}: its member {name!r} points outside of the archive; get it from its official source")


def check_size(path: Path, name: str, size: int, largest: int = _LARGEST) -> None:
    """Raises :class:`UserError` for a member that unpacks to more bytes than any file of a dataset has."""
    if size > largest:
        raise UserError(f"{path}: its member {name!r} claims {size:,} bytes; get it from its official source")
