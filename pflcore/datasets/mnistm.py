"""MNIST-M: its authors' files, or built from MNIST and photographs by the published recipe."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import SPLITS, Bytes, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DIGITS, FOLDER, HALF, Dataset
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import Read, open_files, reading
from pflcore.datasets._images import Form, decode_images
from pflcore.datasets.digit_sets import Mnist
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.seeds import generator

_PHOTOS = "BSR/BSDS500/data/images"
_BSDS = Source(
    "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/resources.html", file="BSR_bsds500.tgz"
)


@DATASETS.register
class MnistM(Dataset):
    """MNIST-M, handwritten digits blended with patches of colour photographs.

    ``official``: 59,001 + 9,001 images of 32x32. ``built``: 60,000 + 10,000 images of 28x28 by the recipe of Ganin et
    al., JMLR 2016, section 5.2.4: the absolute difference, for each colour, of an MNIST image, from its own folder, and
    a random patch of a random photograph of BSDS500. Training digits get patches of training photographs, test digits
    those of test photographs; the paper does not say which it took.
    """

    citation = "Y. Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016"
    licence = "none stated by the authors; MNIST: CC BY-SA 3.0; BSDS500: for non-commercial research"
    homepage = "http://yaroslav.ganin.net/"
    download_size = "about 140 MB; for building it 71 MB of BSDS500"
    access = FOLDER
    files = ("mnist_m.tar.gz", "mnist_m/mnist_m_train_labels.txt", "mnist_m_train_labels.txt")
    original = (3, 32, 32)
    class_names = DIGITS
    counts = (59_001, 9_001)
    mean = std = HALF
    # The authors publish no hash; independent projects that fetch the file agree on this one.
    archive: ClassVar[Source] = Source(homepage, "md5", "859df31c91afe82e80e5012ba928f279", "mnist_m.tar.gz")
    photos: ClassVar[tuple[int, int]] = (200, 200)  # training and test photographs of BSDS500

    source: str = option(
        "official", choices=("official", "built"), help="official: the authors' images; built: from MNIST and BSDS500."
    )
    seed: int = option(0, help="Of the random patches of `built`; without meaning for `official`.", ge=0, le=2**31 - 1)

    @property
    def shape(self) -> tuple[int, ...]:
        return (3, *Mnist().shape[1:]) if self.source == "built" else self.original

    @property
    def expected(self) -> tuple[int, int] | None:
        return Mnist().expected if self.source == "built" else self.counts

    def data_files(self, folder: Path) -> list[DataFile]:
        if self.source == "official":
            return [DataFile("official images", folder, self.files, self.archive, "140 MB")]
        mnist = [replace(file, what="MNIST") for file in Mnist().data_files(folder.parent / "mnist")]
        return [DataFile("photographs of BSDS500", folder, (_BSDS.name, f"{_PHOTOS}/"), _BSDS, "71 MB"), *mnist]

    def load(self, folder: Path) -> Samples:
        return self._official(folder) if self.source == "official" else self._built(folder)

    def _official(self, folder: Path) -> Samples:
        if not self.found(folder):
            raise self.absent(folder, f"{self.archive.name}, or what it unpacks to,")
        place = folder / "mnist_m" if (folder / "mnist_m").is_dir() else folder
        place = self.archive.check(folder) if (folder / self.archive.name).is_file() else place
        images: list[tuple[str, Read]] = []
        labels: list[Rows] = []
        with open_files(place, lambda name: "mnist_m_" in name) as found:
            files = {name.removeprefix("mnist_m/"): read for name, read in found.items()}
            for split in SPLITS:
                with reading(f"{place}/mnist_m_{split}_labels.txt", "get the official archive again"):
                    words = files[f"mnist_m_{split}_labels.txt"]().decode().split()
                    names = [f"mnist_m_{split}/{name}" for name in words[::2]]
                    labels.append(np.array(words[1::2], np.int64))
                    images += [(f"{place}: {name}", files[name]) for name in names]
            decoded = decode_images(images, Form(self.original, formats=("PNG",)), f"decoding {self.name}")
        train = np.arange(len(images)) < len(labels[0])
        return self.complete(decoded.pixels, np.concatenate(labels), train, where=str(place), source=place.name)

    def _built(self, folder: Path) -> Samples:
        archive = folder / _BSDS.name
        photos = self._photographs(archive if archive.is_file() else folder)
        digits = Mnist().load(folder.parent / "mnist")
        pixels, advance = allocate((len(digits), *self.shape)), track(f"building {self.name}", len(digits))
        for split, pictures, rows in zip(SPLITS, photos, (digits.train, ~digits.train), strict=True):
            numbers = np.flatnonzero(rows)
            blend(digits.inputs, numbers, pictures, pixels, generator(self.seed, f"mnistm {split}"))
            advance(len(numbers))
        name = archive.name if archive.is_file() else "BSDS500"
        source = f"built from {digits.source} and {name} (seed {self.seed})"
        return self.complete(pixels, digits.labels, digits.train, where=str(folder), source=source)

    def _photographs(self, place: Path) -> list[list[Bytes]]:
        """Return training and test photographs, uint8 [3, height, width], in the archive or the folder."""
        photos: list[list[Bytes]] = [[], []]
        with ExitStack() as stack:
            wanted = open_files(place, lambda name: name.startswith(_PHOTOS) and name.endswith(".jpg"))
            for name, read in sorted(stack.enter_context(wanted).items()) if place.exists() else ():
                if (split := name.split("/")[-2]) in SPLITS:
                    with reading(f"{place}/{name}"), Image.open(io.BytesIO(read()), formats=("JPEG",)) as image:
                        photos[SPLITS.index(split)].append(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
        if (found := tuple(map(len, photos))) != self.photos:
            raise UserError(
                f"{place}: BSDS500 has {self.photos[0]} training and {self.photos[1]} test photographs, found "
                f"{found[0]} and {found[1]}; get {_BSDS.name} from {_BSDS.url} and put it, or what it unpacks to, there"
            )
        return photos


def blend(digits: Bytes, rows: Rows, photos: Sequence[Bytes], out: Bytes, rng: np.random.Generator) -> None:
    """Write the absolute difference, for each colour, of grey digits and random patches of random photographs.

    Of the digits, uint8 [n, 1, H, W], the `rows` count, which are filled in `out` [n, 3, H, W]. Photographs are
    uint8 [3, height, width] each, at least as large as a digit.
    """
    height, width = digits.shape[2:]
    chosen = rng.integers(0, len(photos), len(rows))
    corners = rng.random((len(rows), 2))
    for row, number, (down, right) in zip(rows, chosen, corners, strict=True):
        photo = photos[number]
        top, left = int(down * (photo.shape[1] - height + 1)), int(right * (photo.shape[2] - width + 1))
        patch = photo[:, top : top + height, left : left + width].astype(np.int16)
        out[row] = np.abs(digits[row].astype(np.int16) - patch)
