"""OrganAMNIST of MedMNIST from its npz file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pflcore.data.samples import Samples, check_labels
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._sources import Source
from pflcore.errors import UserError
from pflcore.options import option

_SPLITS = ("train", "val", "test")
_KEYS = {f"{split}_{kind}" for split in _SPLITS for kind in ("images", "labels")}


@dataclass(frozen=True)
class Release:
    """One of the releases of MedMNIST, which all call the file the same."""

    source: Source
    counts: tuple[int, int]


@DATASETS.register
class OrganAMnist(Dataset):
    """OrganAMNIST, 41,072 + 17,778 axial CT slices of 11 organs, grey images of 28x28.

    ``organamnist.npz`` is downloaded when it is not there. Its training and validation images are the training images
    here. Mean and std are 0.5. Release v2 (58,850 images) is the one of medmnist 2, v3 (58,830) that of medmnist 3.
    """

    citation = "J. Yang et al., MedMNIST v2, Scientific Data 2023"
    licence = "CC BY 4.0"
    homepage = "https://medmnist.com"
    download_size = "38 MB"
    access = DOWNLOAD
    files = ("organamnist.npz",)
    original = (1, 28, 28)
    class_names = (
        "bladder",
        "femur-left",
        "femur-right",
        "heart",
        "kidney-left",
        "kidney-right",
        "liver",
        "lung-left",
        "lung-right",
        "pancreas",
        "spleen",
    )
    counts = (34_581 + 6_491, 17_778)
    mean = (0.5,)
    std = (0.5,)
    smoke: ClassVar[dict[str, Any]] = {"size": 32}  # a multiple of the ViTs' patches
    releases: ClassVar[dict[str, Release]] = {
        "v2": Release(
            Source(
                "https://zenodo.org/records/6496656/files/organamnist.npz", "md5", "866b832ed4eeba67bfb9edee1d5544e6"
            ),
            counts,
        ),
        "v3": Release(
            Source(
                "https://zenodo.org/records/10519652/files/organamnist.npz", "md5", "68e3f8846a6bd62f0c9bf841c0d9eacc"
            ),
            (34_561 + 6_491, 17_778),
        ),
    }

    release: str = option(
        "v2", help="v2: 58,850 images, as papers before 2024 used; v3: without 20 of them.", choices=("v2", "v3")
    )
    size: int | None = option(
        None,
        help="Height and width in pixels that images are scaled up to when they are used; null leaves them at 28.",
        ge=28,
        le=1024,
    )
    channels: int = option(
        1, help="1: grey; 3: the same values three times, for backbones of colour images.", choices=(1, 3)
    )

    @property
    def expected(self) -> tuple[int, int]:
        """Training and test samples of the release."""
        return self.releases[self.release].counts

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std for each channel."""
        return self.mean * self.channels, self.std * self.channels

    def load(self, folder: Path) -> Samples:
        """Read from `folder`, downloading the file when it is not there."""
        path = self._obtain(folder)
        arrays = _read(path)
        sizes = [_check(arrays, split, self.original, self.classes, path) for split in _SPLITS]
        pixels = np.concatenate([arrays[f"{split}_images"] for split in _SPLITS])[:, None]
        return self.complete(
            np.repeat(pixels, self.channels, axis=1),
            np.concatenate([arrays[f"{split}_labels"][:, 0] for split in _SPLITS]).astype(np.int64),
            np.arange(sum(sizes)) < sum(sizes[:2]),
            where=str(path),
            source=f"{path.name} ({self.release})",
            size=self.size,
        )

    def _obtain(self, folder: Path) -> Path:
        try:
            return self.releases[self.release].source.obtain(folder)
        except UserError:
            # The file may be right and the option wrong.
            for name, release in self.releases.items():
                if name != self.release and _is(release.source, folder):
                    raise UserError(
                        f"{folder / release.source.name}: is release {name}; set release to {name}, or delete it and "
                        f"get {self.release} from {self.releases[self.release].source.url}"
                    ) from None
            raise


def _is(source: Source, folder: Path) -> bool:
    try:
        return (folder / source.name).is_file() and source.check(folder).is_file()
    except UserError:
        return False


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The six arrays. Raises :class:`UserError` for a damaged file, other arrays, or pickled objects in one."""
    try:
        with path.open("rb") as file:  # NumPy leaves a file open that it cannot read
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is no archive")
            if set(archive.files) != _KEYS:
                raise ValueError(f"it holds {', '.join(sorted(archive.files))} instead of {', '.join(sorted(_KEYS))}")
            return {name: archive[name] for name in sorted(_KEYS)}
    except Exception as error:  # damaged zip files and array headers raise almost anything
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not a readable OrganAMNIST file ({reason}); delete it and get it again") from None


def _check(arrays: dict[str, npt.NDArray[Any]], split: str, shape: tuple[int, ...], classes: int, path: Path) -> int:
    """The number of images of a split, after checking its arrays."""
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    if images.dtype != np.uint8 or images.shape[1:] != shape[1:]:
        raise UserError(
            f"{path}: {split}_images must be uint8 of (n, {shape[1]}, {shape[2]}), found {images.dtype} {images.shape}"
        )
    if labels.dtype.kind not in "iu" or labels.shape != (len(images), 1):
        raise UserError(
            f"{path}: {split}_labels must be integers of ({len(images)}, 1), found {labels.dtype} {labels.shape}"
        )
    check_labels(labels[:, 0].astype(np.int64), classes, f"{path}: {split}")
    return len(images)
