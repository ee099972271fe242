"""Atomic writing of files, and reading of files that may be foreign or damaged."""

import csv
import glob
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pflcore.errors import UserError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. It replaces `path` if the block succeeds, and is removed otherwise.
    Temporary files that killed processes left behind are removed too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        if not _runs(stale.name.split(".")[-2]):
            stale.unlink(missing_ok=True)
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
    """Add the file's path to a system error in a block that writes the file; errors of libraries often lack it."""
    try:
        yield
    except Exception as error:
        match = re.search(r"\(os error (\d+)\)", str(error))  # the form in safetensors' messages
        number = error.errno if isinstance(error, OSError) and not error.filename else match and int(match[1])
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


def check_plain(path: Path) -> None:
    """Raise :class:`UserError` if `path` is missing, not a plain file, or the pointer that a clone without git LFS has.
    Reading a pipe or a device may never end."""
    try:
        path.stat()
        if not path.is_file():
            raise UserError(f"{path}: no plain file, but a folder, a pipe or a device; move it away")
        with path.open("rb") as file:
            check_no_pointer(file.read(99), str(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_file(path: Path, limit: int) -> bytes:
    """Return a plain file's content. Raises :class:`UserError` if it has more than `limit` bytes or is not readable."""
    check_plain(path)
    try:
        if (size := path.stat().st_size) > limit:
            raise UserError(f"{path}: {size:,} bytes are more than such a file has ({limit:,}); move it away")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def walk(root: Path, onerror: Callable[[OSError], None] | None = None) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield folders, and the names in them, as ``os.walk`` does. Follow links, unless to a folder that they are in."""
    for path, folders, names in os.walk(root, onerror=onerror, followlinks=True):
        parent = Path(path).resolve()
        folders[:] = [name for name in folders if (parent / name).resolve() not in (parent, *parent.parents)]
        yield Path(path), folders, names


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder by their names, sorted, without hidden files and broken links."""
    paths = []
    for parent, folders, names in walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [parent / name for name in names if not name.startswith(".")]
    return ((path.relative_to(folder).as_posix(), path) for path in sorted(paths) if path.is_file())


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """Return the hash of a file in hexadecimal; of a folder, the hash of the names and hashes of its files."""
    if path.is_dir():
        lines = "\n".join(f"{name} {digest_of(file, algorithm)}" for name, file in files_below(path))
        return hashlib.new(algorithm, lines.encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def find_unchanged(name: str, content: str | None) -> Path:
    """Return the file or folder `name` in the working directory or above it, since a profile may work in a subfolder.
    Raises :class:`UserError` if there is none, or if its hash differs from `content` (``sha256:<64 hex digits>``)."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        path = folder / name
        if path.exists():
            if content and content != f"sha256:{digest_of(path)}":
                raise UserError(f"{name}: was changed after the spec was compiled; run `pfl compile`")
            return path
    raise UserError(f"{name}: no such file or folder; put it there and run `pfl compile`")


def check_no_pointer(content: bytes, where: str) -> None:
    """Raise :class:`UserError` if a file's content is the pointer that a clone without git LFS has in its place."""
    if content.startswith(b"version https://git-lfs"):
        raise UserError(f"{where}: a pointer of git LFS; `git lfs pull` gets the content")


def csv_rows(path: Path, header: str, where: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the place, ``where:2``, and the cells of each line below the header of a CSV file.

    Empty lines, blanks around cells and a byte order mark do not count. Raises :class:`UserError`, also if the first
    line is not `header`, such as ``round,client``.
    """
    check_plain(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            if ",".join(name.strip() for name in next(reader, [])) != header:
                raise UserError(f"{where}:1: must be {header}, with commas between the names")
            for line in reader:
                if line:
                    yield f"{where}:{reader.line_num}", [cell.strip() for cell in line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{where}: not a CSV file in UTF-8 ({error})") from None


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ``ValueError``, and no other error, for any other text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
