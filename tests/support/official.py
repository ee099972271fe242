"""Official files of datasets in miniature: archives, their hashes, images, and what a failed reading leaves behind."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from PIL import Image

from pflcore.datasets import Dataset
from pflcore.datasets._domains import DomainImages
from pflcore.datasets._download import Source
from pflcore.errors import UserError

Files = dict[str, bytes]
Trust = Callable[[Path], None]

SIZE = 8  # to which images are scaled
EACH = 2  # images of each class in each domain


def failure(dataset: Dataset, folder: Path) -> str:
    """The one line of the error, after which everything in the folder and beside it is as it was."""
    before = state_of(folder.parent)
    with pytest.raises(UserError) as error:
        dataset.load(folder)
    assert state_of(folder.parent) == before
    assert "\n" not in str(error.value)
    return str(error.value)


def state_of(folder: Path) -> dict[Path, bytes | None]:
    """Everything below a folder, with the bytes of files."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# --- hashes and downloads ------------------------------------------------------------------------------------------


def trusting(monkeypatch: pytest.MonkeyPatch, *classes: type[Dataset]) -> Trust:
    """Makes the hash of a file, or of every file in a folder, the one that the classes expect."""

    def changed(value: Any, files: dict[str, Path]) -> Any:
        if isinstance(value, Source):
            if value.name not in files:
                return value
            digest = hashlib.new(value.algorithm, files[value.name].read_bytes()).hexdigest()
            return dataclasses.replace(value, digest=digest)
        if isinstance(value, tuple):
            items = [changed(item, files) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, dict):
            return {name: changed(item, files) for name, item in value.items()}
        return value

    def accept(path: Path) -> None:
        files = {file.name: file for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file()}
        for cls in classes:
            for name in ("archive", "archives", "releases", "sources"):
                if hasattr(cls, name):
                    monkeypatch.setattr(cls, name, changed(getattr(cls, name), files))

    return accept


def no_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooch, "retrieve", lambda *_, **__: pytest.fail("tried to download"))


def unreachable(*_: Any, path: Path, **__: Any) -> None:
    """In place of :func:`pooch.retrieve`: it makes the folder before it tries."""
    path.mkdir(exist_ok=True)
    raise OSError("no route")


# --- writing -------------------------------------------------------------------------------------------------------


def write_tar(path: Path, files: Files, mode: str = "w:gz") -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_zip(path: Path, files: Mapping[str, str | bytes]) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_files(root: Path, files: Files) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


class Hostile:
    """A pickle of it runs a command wherever it is loaded without care."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


# --- images --------------------------------------------------------------------------------------------------------


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """Pixels [3, height, width] as a file."""
    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, kind, quality=100)
    return file.getvalue()


def plain(colour: tuple[int, int, int], kind: str = "JPEG", size: tuple[int, int] = (14, 11)) -> bytes:
    """An image of one colour that is not square."""
    return encoded(np.broadcast_to(np.array(colour, np.uint8)[:, None, None], (3, size[1], size[0])), kind)


def colour(domain: int, label: int, number: int) -> tuple[int, int, int]:
    """By which an image of a set of domains is recognised."""
    return 40 * domain, 3 * label, 100 * number


def assert_every_image(dataset: DomainImages, folder: Path, source: str) -> None:
    """Every image is at its place: colours, label, domain and shape."""
    samples = dataset.load(folder)
    domains, classes = len(dataset.domains), len(dataset.class_names)
    domain, label, number = (axis.ravel() for axis in np.indices((domains, classes, EACH)))
    assert samples.labels.tolist() == label.tolist()
    assert samples.attributes["domain"].values.tolist() == domain.tolist()
    assert samples.attributes["domain"].names == dataset.domains
    assert samples.train.all() and samples.shape == dataset.shape == (3, SIZE, SIZE)
    expected = np.stack(colour(domain, label, number), 1)
    np.testing.assert_allclose(samples.inputs.mean((2, 3)), expected, atol=4)
    assert samples.source == source and samples.class_names == dataset.class_names
    assert samples.inputs.tobytes() == dataset.load(folder).inputs.tobytes()
