"""Official files of datasets: where they are published, whether they are here, and downloads checked by hash."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pflcore.data.preparation import track
from pflcore.errors import UserError

TRIES = 5
PAUSE_SECONDS = 2.0  # longer after every try
TIMEOUT_SECONDS = 60
_MEGABYTE = 10**6
_NOTHING_LEFT = 416  # the answer to a request for what lies behind the end of a file


@dataclass(frozen=True)
class Source:
    """A published file.

    Args:
        url: Where it is published: the file itself, or the page that leads to it.
        algorithm: ``"sha256"`` or ``"md5"``; empty when no hash is known, so that the file is unverified.
        digest: Its hash in hexadecimal.
        file: The file's name, where it is not the last part of the URL.
    """

    url: str
    algorithm: str = ""
    digest: str = ""
    file: str = ""

    @property
    def direct(self) -> bool:
        """Return whether it can be downloaded: the URL is that of the file itself, and its hash is known."""
        return bool(self.digest) and not self.file

    @property
    def name(self) -> str:
        """Return the file's name."""
        return self.file or self.url.rpartition("/")[2]

    def check(self, folder: Path) -> Path:
        """Return its path in `folder`. Raise :class:`UserError` when it has another hash."""
        path = folder / self.name
        if self.digest:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, self.algorithm).hexdigest()
            if found != self.digest:
                raise UserError(
                    f"{path}: {self.algorithm} is {found}, expected {self.digest}; delete it and get it from {self.url}"
                )
        return path

    def obtain(self, folder: Path, alternatives: str = "") -> Path:
        """Return its path in `folder`, downloaded when it is not there, and checked.

        Args:
            folder: Created if need be.
            alternatives: What else may be put into the folder by hand, for the error message.

        Raises:
            UserError: A wrong hash, or a host that cannot be reached, which leaves ``<name>.part`` for the next call.
        """
        if not (folder / self.name).is_file():
            self._download(folder, alternatives)
        return self.check(folder)

    def _download(self, folder: Path, alternatives: str) -> None:
        import pooch

        existed, part = folder.is_dir(), folder / f"{self.name}.part"
        folder.mkdir(parents=True, exist_ok=True)

        def resume(url: str, output: str, _: object) -> None:
            _fetch(url, part)
            part.replace(output)

        try:
            with _locked(folder):
                known = f"{self.algorithm}:{self.digest}"
                pooch.retrieve(self.url, known, fname=self.name, path=folder, downloader=resume)
        except (OSError, HTTPException, ValueError) as error:  # ValueError: pooch's, of a wrong hash
            if not existed:
                with suppress(OSError):  # of a folder that holds a part
                    folder.rmdir()
            reason = "what it sent has a wrong hash" if isinstance(error, ValueError) else type(error).__name__
            raise UserError(
                f"{folder}: no data here, and {self.url} could not be downloaded ({reason}); "
                + (f"try again, which goes on at the end of {part.name}, or " if part.is_file() else "")
                + f"put {self.name} into that folder"
                + (f", or {alternatives}" if alternatives else "")
            ) from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from downloading into `folder`, as far as its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _fetch(url: str, part: Path) -> None:
    """Append to `part`, in this call or the next one, until it is complete."""
    for attempt in range(1, TRIES + 1):
        try:
            return _append(url, part)
        except (OSError, HTTPException) as error:
            if attempt == TRIES or (isinstance(error, HTTPError) and error.code < 500):
                raise
            time.sleep(PAUSE_SECONDS * attempt)


def _append(url: str, part: Path) -> None:
    have = part.stat().st_size if part.is_file() else 0
    try:
        answer = urlopen(Request(url, headers={"Range": f"bytes={have}-"} if have else {}), timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        if error.code == _NOTHING_LEFT and have:
            return
        raise
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        expected, start = answer.length, file.tell()
        advance = track(f"downloading {part.stem}, MB", (expected or 0) // _MEGABYTE)
        while piece := answer.read(_MEGABYTE):
            file.write(piece)
            advance(len(piece) // _MEGABYTE)
        if expected is not None and file.tell() - start != expected:
            raise ConnectionError("the transfer broke off")


@dataclass(frozen=True)
class DataFile:
    """Something that a dataset is read from.

    Args:
        what: What to call it, with its version where there are several.
        folder: Where it is looked for.
        patterns: Files and, with a slash at the end, folders below `folder`; any of them will do.
        source: The published file, or the page that leads to it.
        size: In words; empty when it is said elsewhere.
        needed: Whether a run downloads it when it is not here.
    """

    what: str
    folder: Path
    patterns: tuple[str, ...]
    source: Source | None = None
    size: str = ""
    needed: bool = False

    @property
    def here(self) -> Path | None:
        """Return the first match of its patterns, without looking into it."""
        found = ((pattern, path) for pattern in self.patterns for path in sorted(self.folder.glob(pattern)))
        return next((path for pattern, path in found if path.is_dir() or not pattern.endswith("/")), None)

    def state(self) -> str:
        """Say in a line where it is and how far it is checked, or what to do to have it."""
        path, source = self.here, self.source
        if path is not None:
            if source is None or path.name != source.name:
                return f"here, {path}" + (" (a folder says neither hash nor version)" if path.is_dir() else "")
            checked = "its hash is checked when it is read" if source.digest else "no hash is known"
            return f"here, {path} ({path.stat().st_size:,} bytes; {checked})"
        if source is None:
            how = f"fetched when a run needs it, {self.size}; " if self.needed else ""
            return f"missing; {how}looked for: {', '.join(self.patterns)} in {self.folder}"
        proof = f"{source.algorithm} {source.digest}" if source.digest else "no hash is known: unverified"
        how = "fetched when a run needs it" if self.needed else "pfl fetch gets it" if source.direct else "by hand"
        what = ", ".join(filter(None, [source.name, self.size, proof]))
        also = ", ".join(pattern for pattern in self.patterns if pattern != source.name)
        taken = f"; taken instead: {also}" if also else ""
        return f"missing; {how}: {what}, from {source.url} into {self.folder}{taken}"
