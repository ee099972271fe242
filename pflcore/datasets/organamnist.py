"""OrganAMNIST of MedMNIST from its npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._download import Source
from pflcore.datasets._files import reading
from pflcore.options import option

_ZENODO, _FILE = "https://zenodo.org/records", "files/organamnist.npz"


@DATASETS.register
class OrganAMnist(Dataset):
    """OrganAMNIST, 41,072 + 17,778 axial CT slices of 11 organs, grey images of 28x28.

    Its training and validation images are the training images here. Release v2 (58,850 images) is the one of medmnist
    2, v3 (58,830) that of medmnist 3.
    """

    citation = "J. Yang et al., MedMNIST v2, Scientific Data 2023"
    licence = "CC BY 4.0"
    homepage = "https://medmnist.com"
    download_size = "38 MB"
    access = DOWNLOAD
    files = ("organamnist.npz",)
    original = (1, 28, 28)
    class_names = (
        *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right"),
        *("liver", "lung-left", "lung-right", "pancreas", "spleen"),
    )
    counts = (34_581 + 6_491, 17_778)
    mean = std = (0.5,)
    smoke: ClassVar[dict[str, Any]] = {"size": 32}  # a multiple of the ViTs' patches
    # The published file, and its numbers of training and test images.
    releases: ClassVar[dict[str, tuple[Source, tuple[int, int]]]] = {
        "v2": (Source(f"{_ZENODO}/6496656/{_FILE}", "md5", "866b832ed4eeba67bfb9edee1d5544e6"), counts),
        "v3": (Source(f"{_ZENODO}/10519652/{_FILE}", "md5", "68e3f8846a6bd62f0c9bf841c0d9eacc"), (41_052, 17_778)),
    }

    release: str = option(
        "v2", help="v2: 58,850 images, as papers before 2024 used; v3: without 20 of them.", choices=("v2", "v3")
    )
    size: int | None = option(
        None, ge=28, le=1024, help="Height and width that images are scaled up to in use; null leaves them at 28."
    )
    channels: int = option(
        1, help="1: grey; 3: the same values three times, for backbones of colour images.", choices=(1, 3)
    )

    @property
    def expected(self) -> tuple[int, int]:
        return self.releases[self.release][1]

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.mean * self.channels, self.std * self.channels

    def load(self, folder: Path) -> Samples:
        path, splits = self.releases[self.release][0].obtain(folder), ("train", "val", "test")
        with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            images, labels = ([arrays[f"{split}_{kind}"] for split in splits] for kind in ("images", "labels"))
            pixels = np.concatenate(images).reshape(-1, 1, *self.original[1:])
            digits = np.concatenate(labels).reshape(len(pixels)).astype(np.int64, casting="safe")
        return self.complete(
            np.repeat(pixels, self.channels, axis=1),
            digits,
            np.arange(len(pixels)) < len(pixels) - len(images[-1]),
            where=str(path),
            source=f"{path.name} ({self.release})",
            size=self.size,
        )
