"""Official archives: fetched once, checked by hash, read member by member and never extracted."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pflcore.errors import UserError


@dataclass(frozen=True)
class Archive:
    """A published ``.tar.gz``.

    Args:
        url: Where it is published; the last part is the file's name.
        algorithm: ``"sha256"`` or ``"md5"``.
        digest: Its hash in hexadecimal.
    """

    url: str
    algorithm: str
    digest: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]

    def read(self, folder: Path, members: Sequence[str]) -> dict[str, bytes]:
        """The content of the named members; others are passed over, whatever they are called.

        Raises:
            UserError: A wrong hash, a damaged archive, or a member that is not in it.
        """
        path = folder / self.name
        with path.open("rb") as file:
            found = hashlib.file_digest(file, self.algorithm).hexdigest()
        if found != self.digest:
            raise UserError(
                f"{path}: {self.algorithm} is {found}, expected {self.digest}; delete it and get it from {self.url}"
            )
        contents = {}
        try:
            with tarfile.open(path, "r|gz") as archive:
                for member in archive:
                    if member.name in members and (file_ := archive.extractfile(member)) is not None:
                        contents[member.name] = file_.read()
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise UserError(f"{path}: not a readable archive ({error}); delete it and get it again") from None
        if missing := [name for name in members if name not in contents]:
            raise UserError(f"{path}: has no member {missing[0]}")
        return contents

    def download(self, folder: Path, alternatives: str) -> None:
        """Put the archive into `folder`, which is made if need be.

        Args:
            alternatives: What else may be put into the folder by hand, for the error message.

        Raises:
            UserError: The host cannot be reached, or what it sent has another hash. Nothing is left behind.
        """
        import pooch

        existed = folder.is_dir()
        try:
            pooch.retrieve(self.url, f"{self.algorithm}:{self.digest}", fname=self.name, path=folder)
        except (OSError, ValueError) as error:  # every error of the HTTP client is an OSError
            if not existed and folder.is_dir():
                folder.rmdir()
            reason = "what it sent has a wrong hash" if isinstance(error, ValueError) else type(error).__name__
            raise UserError(
                f"{folder}: no data here, and {self.url} could not be downloaded ({reason}); "
                f"put {self.name} into that folder, or {alternatives}"
            ) from None
