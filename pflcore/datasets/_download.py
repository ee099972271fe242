"""Official files of datasets: their addresses, their state on this machine, and downloads checked by hash."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote
from urllib.request import Request, urlopen

from pflcore.data.preparation import track
from pflcore.errors import UserError
from pflcore.files import digest_of

TRIES = 5
PAUSE_SECONDS = 2.0  # times the number of tries so far
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Source:
    """A published file. `url` is its address, or, if `file` is its name, a page that leads to it.

    The hash has the algorithm ``sha256`` or ``md5``; without a hexadecimal `digest` the file is unverified.
    """

    url: str
    algorithm: str = ""
    digest: str = ""
    file: str = ""

    @property
    def direct(self) -> bool:
        """Return whether it can be downloaded: the URL leads to the file itself, and its hash is known."""
        return bool(self.digest) and not self.file

    @property
    def name(self) -> str:
        """Return the file's name."""
        return self.file or unquote(self.url.rpartition("/")[2])

    def obtain(self, folder: Path, alternatives: str = "") -> Path:
        """Return its path in `folder`; download it if it is absent, and check its hash if that is known.

        An interrupted download leaves ``<name>.part``, which the next call continues. `alternatives` are named in the
        :class:`UserError` if the file cannot be obtained.
        """
        path = folder / self.name
        part = folder / f"{self.name}.part"
        others = f", or {alternatives}" if alternatives else ""
        if path.is_file():
            if self.digest and (digest := self.hash_of(path)) != self.digest:
                problem = f"{self.algorithm} is {digest}, expected {self.digest}"
                raise UserError(f"{path}: {problem}; delete it and get it from {self.url}")
            return path
        if not self.direct:
            raise UserError(f"{folder}: no data here; get it from {self.url} and put {self.name}{others} there")
        existed = folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with _locked(folder):
                if not path.is_file():
                    fetch(self.url, part)
                    if self.hash_of(part) != self.digest:
                        part.unlink()
                        raise ValueError
                    part.replace(path)
            return path
        except (OSError, HTTPException, ValueError) as error:
            if not existed:
                with suppress(OSError):  # the folder is not empty: it has a part, or files of another process
                    folder.rmdir()
            reason = "what it sent has a wrong hash" if isinstance(error, ValueError) else type(error).__name__
            retry = f"try again, which goes on at the end of {part.name}, or " if part.is_file() else ""
            problem = f"no data here, and {self.url} could not be downloaded ({reason})"
            raise UserError(f"{folder}: {problem}; {retry}put {self.name} into that folder{others}") from None

    def hash_of(self, path: Path) -> str:
        """Return a file's hexadecimal hash by the algorithm."""
        return digest_of(path, self.algorithm)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from downloading into `folder`, if its file system supports locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def fetch(url: str, part: Path) -> None:
    """Download `url` into `part`. A repeated try, or the next call, continues at the end of the file."""
    for attempt in range(1, TRIES + 1):
        try:
            return _append(url, part)
        except (OSError, HTTPException) as error:
            code = error.code if isinstance(error, HTTPError) else 500
            if code == 416 and part.is_file():  # the file is complete
                return
            if code < 500 or attempt == TRIES:
                raise
            time.sleep(PAUSE_SECONDS * attempt)


def _append(url: str, part: Path) -> None:
    size = part.stat().st_size if part.is_file() else 0
    request = Request(url, headers={"Range": f"bytes={size}-"} if size else {})
    with urlopen(request, timeout=TIMEOUT_SECONDS) as reply, part.open("ab" if reply.status == 206 else "wb") as file:
        expected, start = reply.length, file.tell()
        advance = track(f"downloading {part.stem}, MB", (expected or 0) // 10**6)
        while chunk := reply.read(10**6):
            file.write(chunk)
            advance(len(chunk) // 10**6)
        if expected is not None and file.tell() - start != expected:
            raise ConnectionError("the transfer broke off")


@dataclass(frozen=True)
class DataFile:
    """A file or folder that a dataset reads: the first match of `patterns` in `folder`.

    A pattern of a folder ends with a slash. `size` is in words, and empty if it is stated elsewhere.
    """

    description: str
    folder: Path
    patterns: tuple[str, ...]
    source: Source | None = None
    size: str = ""
    automatic: bool = False  # whether a run downloads it if it is absent

    @property
    def path(self) -> Path | None:
        """Return the path of the first match, without reading it; None if there is no match."""
        return next((path for pattern in self.patterns for path in sorted(self.folder.glob(pattern))), None)

    def status(self) -> str:
        """Return a line with its path and how it is checked, or, if it is missing, how to get it."""
        path, source = self.path, self.source
        if path is not None:
            if path.is_dir():
                return f"here, {path} (a folder says neither hash nor version)"
            if source is None or path.name != source.name:
                return f"here, {path}"
            check = "its hash is checked when it is read" if source.digest else "no hash is known"
            return f"here, {path} ({path.stat().st_size:,} bytes; {check})"
        if source is None:
            how = f"fetched when a run needs it, {self.size}; " if self.automatic else ""
            return f"missing; {how}looked for: {', '.join(self.patterns)} in {self.folder}"
        how = "pfl fetch gets it" if source.direct else "by hand"
        if self.automatic:
            how = "fetched when a run needs it"
        digest = f"{source.algorithm} {source.digest}" if source.digest else "no hash is known: unverified"
        details = ", ".join(filter(None, [source.name, self.size, digest]))
        others = ", ".join(pattern for pattern in self.patterns if pattern != source.name)
        instead = f"; taken instead: {others}" if others else ""
        return f"missing; {how}: {details}, from {source.url} into {self.folder}{instead}"
