"""Files through the workspace's default DVC remote, for machines that share no other place.

What stages read and write lies there as ``dvc push`` would put it, so a later one finds it and uploads nothing twice.
The rest lies below ``pfl/``: what became of a stage, and the checkpoints of runs under way. Every kind of remote that
DVC has a filesystem for will do. Whoever reads sees a file complete or not at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from pydantic import Field, TypeAdapter, ValidationError

from pflcore.errors import UserError
from pflcore.files import atomic_path

_CHECKPOINT = re.compile(r"[\w.-]+/round-\d+-[0-9a-f]{16}\.safetensors")
_SECRET = re.compile(r"secret|token|pass|account_key|access_key|connection_string|credential")
_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]*@")
_HOW = "set one that all machines reach: `dvc remote add -d NAME URL`"


@dataclass(frozen=True)
class Content:
    """What a file contains: DVC's hash of it, and its size in bytes."""

    md5: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    size: Annotated[int, Field(ge=0)]

    @classmethod
    def of(cls, path: Path) -> Content:
        """Raises ``OSError`` when the file cannot be read."""
        with path.open("rb") as file:
            return cls(hashlib.file_digest(file, "md5").hexdigest(), path.stat().st_size)


@dataclass(frozen=True)
class StoredResult:
    """What a stage made.

    Attributes:
        outs: Path relative to the workspace → content.
        diverged: That a run did.
        timing: How long it took, as the train stage notes it.
    """

    outs: dict[str, Content]
    diverged: bool = False
    timing: str = ""


_RESULT = TypeAdapter(StoredResult)


class Remote:
    """A DVC remote.

    Args:
        settings: As in DVC's configuration, with ``url``; may contain secrets, which no message and no node gets.

    Raises:
        UserError: They cannot be used here.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from dvc.exceptions import DvcException
        from dvc.fs import RemoteMissingDepsError, get_cloud_fs
        from dvc_objects.fs.base import ObjectFileSystem

        self.settings = dict(settings)
        self.url = _PASSWORD.sub(r"\1@", str(settings["url"]))
        self.withheld = sorted(name for name, value in settings.items() if _SECRET.search(name) and value)
        if self.url != str(settings["url"]):
            self.withheld.append("the password in its url")
        try:
            kind, config, self.root = get_cloud_fs({}, **self.settings)
            self.fs: Any = kind(**config)
        except (RemoteMissingDepsError, ImportError) as error:
            raise UserError(f"remote {self.url}: {self._veiled(str(error).partition('. ')[0])}") from None
        except DvcException as error:
            raise UserError(f"remote {self.url}: {self._veiled(str(error))}") from None
        # Others put a file in place with its first byte, except for DVC's local one, which renames it itself.
        self._renames = not isinstance(self.fs, ObjectFileSystem) and self.fs.protocol != "local"

    @property
    def public(self) -> dict[str, Any]:
        """The settings without secrets, which are for the machine alone that has them."""
        return {name: value for name, value in self.settings.items() if name not in self.withheld} | {"url": self.url}

    def object(self, md5: str) -> str:
        """Where DVC keeps a file with this content."""
        return self._path(f"files/md5/{md5[:2]}/{md5[2:]}")

    def give(self, path: Path, content: Content) -> bool:
        """Upload a file, unless it is there already; whether that was necessary."""
        with self._explained(all_of_it=True):
            if self._size(self.object(content.md5)) == content.size:
                return False
            self._put(path, self.object(content.md5))
        return True

    def take(self, content: Content, path: Path) -> None:
        """Download a file, unless it is there already.

        Raises:
            UserError: It is not in the remote, or damaged there; nothing is written then.
        """
        with suppress(OSError):
            if path.stat().st_size == content.size and Content.of(path) == content:
                return
        place = self.object(content.md5)
        with atomic_path(path) as temporary:
            try:
                with self._explained():
                    self.fs.get_file(place, str(temporary))
            except FileNotFoundError:
                raise Missing(f"{path}: {place} is not in the remote {self.url}") from None
            if Content.of(temporary) != content:
                raise UserError(f"{path}: {place} in the remote {self.url} is damaged; delete it there")

    def result(self, key: str, outs: tuple[str, ...]) -> StoredResult | None:
        """What became of the stage with this key, or None when nobody has executed it.

        Args:
            outs: What the stage writes; a result of anything else is refused.

        Raises:
            UserError: It is no result of this stage.
        """
        place = self._path(f"pfl/results/{key}.json")
        try:
            with self._explained():
                text = bytes(self.fs.cat_file(place))
        except FileNotFoundError:
            return None
        try:
            result = _RESULT.validate_json(text)
        except ValidationError:
            result = None
        if result is None or set(result.outs) != set(outs):
            raise UserError(f"{place} in the remote {self.url}: no result of this stage; delete it")
        return result

    def report(self, key: str, result: StoredResult) -> None:
        """Write what became of a stage; what it made must be in the remote already."""
        text, place = _RESULT.dump_json(result, indent=1) + b"\n", self._path(f"pfl/results/{key}.json")
        with self._explained(all_of_it=True):
            self._upload(lambda target: self.fs.pipe_file(target, text), place, small=True)

    def checkpoints(self, key: str) -> list[str]:
        """The checkpoints of the stage with this key, each as ``<folder>/<file>``."""
        folder = self._path(f"pfl/checkpoints/{key}")
        with self._explained():
            self.fs.fs.invalidate_cache()
            try:
                found = sorted(str(path) for path in self.fs.find(folder))
            except FileNotFoundError:
                return []
        names = (path.rpartition(f"/{key}/")[2] for path in found)
        return list(filter(_CHECKPOINT.fullmatch, names))

    def give_checkpoint(self, key: str, name: str, path: Path) -> None:
        """Upload a checkpoint. Raises ``FileNotFoundError`` when it has gone meanwhile."""
        with self._explained():
            self._put(path, self._path(f"pfl/checkpoints/{key}/{name}"))

    def take_checkpoint(self, key: str, name: str, path: Path) -> None:
        """Download a checkpoint; who reads it checks it. Raises ``FileNotFoundError`` when it has gone meanwhile."""
        with self._explained(), atomic_path(path) as temporary:
            self.fs.get_file(self._path(f"pfl/checkpoints/{key}/{name}"), str(temporary))

    def drop_checkpoint(self, key: str, name: str) -> None:
        """Delete one."""
        with self._explained(), suppress(FileNotFoundError):
            self.fs.rm_file(self._path(f"pfl/checkpoints/{key}/{name}"))

    def drop_checkpoints(self, key: str) -> None:
        """Delete all of a stage, since it is over."""
        if self.checkpoints(key):
            with self._explained(), suppress(FileNotFoundError):
                self.fs.rm(self._path(f"pfl/checkpoints/{key}"), recursive=True)

    def _path(self, name: str) -> str:
        return str(self.fs.join(self.root, *name.split("/")))

    def _size(self, place: str) -> int | None:
        self.fs.fs.invalidate_cache()
        try:
            return int(self.fs.info(place)["size"])
        except FileNotFoundError:
            return None

    def _put(self, path: Path, place: str) -> None:
        self._upload(lambda target: self.fs.put_file(str(path), target), place)

    def _upload(self, put: Callable[[str], None], place: str, small: bool = False) -> None:
        self.fs.makedirs(self.fs.parent(place), exist_ok=True)
        if not self._renames and not (small and self.fs.protocol == "local"):
            put(place)
            return
        temporary = f"{place}.{uuid4().hex[:8]}.part"
        put(temporary)
        self.fs.mv(temporary, place)

    @contextmanager
    def _explained(self, all_of_it: bool = False) -> Iterator[None]:
        """Whatever goes wrong with the remote as one line; that a file is not there often has another meaning."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # each filesystem has classes of its own
            if isinstance(error, FileNotFoundError) and not all_of_it:
                raise
            text = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise UserError(f"remote {self.url}: {self._veiled(text)}") from None

    def _veiled(self, text: str) -> str:
        """What a filesystem says, which may repeat what it was given, without secrets."""
        for name in self.withheld:
            if isinstance(value := self.settings.get(name), str):
                text = text.replace(value, "***")
        return _PASSWORD.sub(r"\1@", text)


class Missing(UserError):
    """A file that was to be in the remote is not."""


def default_remote(config: Mapping[str, Any]) -> Remote:
    """The default remote of a DVC repository with this configuration.

    Raises:
        UserError: There is none, or it keeps files in another way than by their content.
    """
    from dvc.exceptions import DvcException
    from dvc.fs import get_fs_config

    name = config.get("core", {}).get("remote")
    if not name:
        raise UserError(f"a cluster's machines exchange files through a DVC remote, and none is the default; {_HOW}")
    try:
        settings = get_fs_config(config, name=name)
    except DvcException as error:
        raise UserError(f"remote {name}: {error}; {_HOW}") from None
    if settings.get("worktree") or settings.get("version_aware"):
        raise UserError(f"remote {name}: a cluster cannot use one with `worktree` or `version_aware`; {_HOW}")
    return Remote(settings)
