"""Where spec files lie, and how they are called in messages."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from pipeline.spec.yamlfile import Address, Document, show


def inside(specs_dir: Path, document: Document, address: Address, name: str) -> Path:
    """A file named in a spec, relative to the file that names it.

    Raises:
        UserError: It leaves the specs folder, by its path or by a link, or does not exist.
    """
    if PurePosixPath(name).is_absolute() or "\\" in name or "\0" in name:
        raise document.error(address, f"{show(name)} must be a relative path with forward slashes")
    origin = specs_dir.parent / document.mark(address).file
    path = absolute(origin.parent / name)
    try:
        stays = path.is_relative_to(specs_dir) and path.resolve().is_relative_to(specs_dir.resolve())
        exists = path.is_file()
    except OSError as error:  # such as a name that is too long
        raise document.error(address, f"{show(name)} cannot be read: {error.strerror}") from None
    if not stays:
        raise document.error(address, f"{show(name)} leads out of {specs_dir.name}/")
    if not exists:
        raise document.error(address, f"{show(name)} does not exist ({shown(path, specs_dir)})")
    return path


def absolute(path: Path) -> Path:
    """Without `..`, and without following links: as the user wrote it."""
    return Path(os.path.normpath(path.absolute()))


def relative(path: Path, specs_dir: Path) -> Path:
    """From the folder of specs."""
    return Path(os.path.relpath(absolute(path), absolute(specs_dir)))


def shown(path: Path, specs_dir: Path) -> str:
    """As messages name it: ``specs/fedtp/table2.yaml``."""
    return (Path(specs_dir.name) / relative(path, specs_dir)).as_posix()
