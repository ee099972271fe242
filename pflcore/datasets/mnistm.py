"""MNIST-M: its authors' files, or built from MNIST and photographs by the published recipe."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import Bytes, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import FOLDER, Dataset
from pflcore.datasets._bounds import read_image, read_list
from pflcore.datasets._decode import decode_images
from pflcore.datasets._parts import Part
from pflcore.datasets._sources import Source, read_members
from pflcore.datasets.mnist import Mnist
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.seeds import generator

_SPLITS = ("train", "test")
_PHOTOS = "BSR/BSDS500/data/images"
_PHOTO_ARCHIVE = "BSR_bsds500.tgz"
_BERKELEY = "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/resources.html"
_AGAIN = "get the official archive again"
_LARGEST = 10_000_000  # pixels of a photograph; those of BSDS500 have 154,401


@DATASETS.register
class MnistM(Dataset):
    """MNIST-M, handwritten digits blended with patches of colour photographs.

    ``official``: 59,001 + 9,001 images of 32x32 from ``mnist_m.tar.gz``, whose hash is checked, or what it unpacks to.
    ``built``: 60,000 + 10,000 images of 28x28 by the recipe of Ganin et al., JMLR 2016, section 5.2.4: the absolute
    difference, for each colour, of an MNIST image and a random patch of a random photograph of BSDS500. Training digits
    get patches of BSDS500's training photographs, test digits those of its test photographs; the paper does not say
    which it took. It needs MNIST in its own folder beside this one, and here ``BSR_bsds500.tgz`` or what it unpacks to.
    Mean and std are 0.5.
    """

    citation = "Y. Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016"
    licence = "none stated by the authors; MNIST: CC BY-SA 3.0; BSDS500: for non-commercial research"
    homepage = "http://yaroslav.ganin.net/"
    download_size = "about 140 MB; for building it 71 MB of BSDS500"
    access = FOLDER
    files = ("mnist_m.tar.gz", "mnist_m_train_labels.txt", "mnist_m/mnist_m_train_labels.txt")
    original = (3, 32, 32)
    class_names = tuple("0123456789")
    counts = (59_001, 9_001)
    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)
    # The authors publish no hash; independent projects that fetch the file agree on this one.
    archive: ClassVar[Source] = Source(homepage, "md5", "859df31c91afe82e80e5012ba928f279", "mnist_m.tar.gz")
    photos: ClassVar[tuple[int, int]] = (200, 200)
    """Training and test photographs of BSDS500."""

    source: str = option(
        "official",
        help="official: the authors' images; built: made here from MNIST and the photographs of BSDS500.",
        choices=("official", "built"),
    )
    seed: int = option(0, help="Of the random patches of `built`; without meaning for `official`.", ge=0, le=2**31 - 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Colours, and the size of the authors' images or of MNIST's."""
        return (3, *Mnist().shape[1:]) if self.source == "built" else self.original

    @property
    def expected(self) -> tuple[int, int] | None:
        """Training and test samples of the source."""
        return Mnist().expected if self.source == "built" else self.counts

    def found(self, folder: Path) -> bool:
        """Whether there is something to load in its folder, and with `built` also in that of MNIST."""
        if self.source == "official":
            return super().found(folder)
        photos = (folder / _PHOTO_ARCHIVE).is_file() or (folder / _PHOTOS).is_dir()
        return photos and Mnist().found(folder.parent / "mnist")

    def parts(self, folder: Path) -> list[Part]:
        """The authors' archive, or what MNIST-M is built from."""
        if self.source == "official":
            return [Part("official images", folder, self.files, self.archive, "140 MB")]
        photos = Source(_BERKELEY, file=_PHOTO_ARCHIVE)
        return [
            Part("photographs of BSDS500", folder, (_PHOTO_ARCHIVE, f"{_PHOTOS}/"), photos, "71 MB"),
            *(replace(part, what="MNIST") for part in Mnist().parts(folder.parent / "mnist")),
        ]

    def load(self, folder: Path) -> Samples:
        """Read from `folder`; with `built` also from the folder of MNIST beside it."""
        return self._official(folder) if self.source == "official" else self._built(folder)

    # --- the authors' images ---

    def _official(self, folder: Path) -> Samples:
        where, files = self._find(folder)
        images: list[str] = []
        labels: list[Rows] = []
        for split in _SPLITS:
            listing = f"mnist_m_{split}_labels.txt"
            if listing not in files:
                raise UserError(f"{where}: {listing} is missing; {_AGAIN}")
            names, digits = _parse_listing(_content(files[listing], read_list), f"{where}: {listing}")
            images += [f"mnist_m_{split}/{name}" for name in names]
            labels.append(digits)
        if missing := [name for name in images if name not in files]:
            raise UserError(f"{where}: {missing[0]} is missing; {_AGAIN}")
        pixels, _ = decode_images(
            len(images),
            (3, *self.original[1:]),
            lambda n: _content(files[images[n]], read_image),
            lambda n: f"{where}: {images[n]}",
            f"decoding {self.name}",
            formats=("PNG",),
        )
        train = np.arange(len(images)) < len(labels[0])
        return self.complete(pixels, np.concatenate(labels), train, where=str(where), source=where.name)

    def _find(self, folder: Path) -> tuple[Path, dict[str, bytes | Path]]:
        """The archive or folder, and its files by name: the two lists, and ``mnist_m_train/<image>`` and the like."""
        files: dict[str, bytes | Path] = {}
        if (folder / self.archive.name).is_file():
            where = self.archive.check(folder)
            files.update((_inner(name), data) for name, data in read_members(where, lambda name: bool(_inner(name))))
            return where, files
        for root in (folder / "mnist_m", folder):
            if any((root / f"mnist_m_{split}_labels.txt").is_file() for split in _SPLITS):
                paths = [path for pattern in ("mnist_m_*.txt", "mnist_m_*/*.png") for path in root.glob(pattern)]
                files.update((path.relative_to(root).as_posix(), path) for path in paths)
                return root, files
        raise self.absent(folder, f"{self.archive.name}, or what it unpacks to,")

    # --- built ---

    def _built(self, folder: Path) -> Samples:
        photos, name = self._photographs(folder)
        digits = Mnist().load(folder.parent / "mnist")
        pixels = allocate((len(digits), *self.shape))
        advance = track(f"building {self.name}", len(digits))
        for split, pictures, rows in zip(_SPLITS, photos, (digits.train, ~digits.train), strict=True):
            numbers = np.flatnonzero(rows)
            blend(digits.inputs, numbers, pictures, pixels, generator(self.seed, f"mnistm {split}"))
            advance(len(numbers))
        return self.complete(
            pixels,
            digits.labels,
            digits.train,
            where=str(folder),
            source=f"built from {digits.source} and {name} (seed {self.seed})",
        )

    def _photographs(self, folder: Path) -> tuple[list[list[Bytes]], str]:
        """Training and test photographs, and where they came from."""
        path = folder / _PHOTO_ARCHIVE
        if path.is_file():
            encoded = {name.removeprefix("./"): data for name, data in read_members(path, _is_photo)}
        elif (folder / _PHOTOS).is_dir():
            path = folder / _PHOTOS
            images = [image for split in _SPLITS for image in (path / split).glob("*.jpg")]
            encoded = {f"{_PHOTOS}/{image.parent.name}/{image.name}": read_image(image) for image in images}
        else:
            raise UserError(
                f"{folder}: no photographs here; get {_PHOTO_ARCHIVE} from {_BERKELEY} and put it, or what it unpacks "
                "to, there"
            )
        names = [sorted(name for name in encoded if name.startswith(f"{_PHOTOS}/{split}/")) for split in _SPLITS]
        if tuple(map(len, names)) != self.photos:
            raise UserError(
                f"{path}: BSDS500 has {self.photos[0]} training and {self.photos[1]} test photographs, "
                f"found {len(names[0])} and {len(names[1])}; put the complete data there"
            )
        smallest = max(self.shape[1:])
        photos = [[_decode_photo(encoded[name], smallest, f"{path}: {name}") for name in part] for part in names]
        return photos, path.name if path.is_file() else "BSDS500"


def blend(digits: Bytes, rows: Rows, photos: Sequence[Bytes], out: Bytes, rng: np.random.Generator) -> None:
    """Absolute difference, for each colour, of grey digits and random patches of random photographs.

    Args:
        digits: uint8 [n, 1, H, W].
        rows: Which of them.
        photos: uint8 [3, height, width] each, at least as large as a digit.
        out: uint8 [n, 3, H, W]; its `rows` are filled.
        rng: Draws a photograph and the patch's corner for each row.
    """
    height, width = digits.shape[2:]
    chosen = rng.integers(0, len(photos), len(rows))
    corners = rng.random((len(rows), 2))
    for row, number, (down, right) in zip(rows, chosen, corners, strict=True):
        photo = photos[number]
        top, left = int(down * (photo.shape[1] - height + 1)), int(right * (photo.shape[2] - width + 1))
        patch = photo[:, top : top + height, left : left + width].astype(np.int16)
        out[row] = np.abs(digits[row].astype(np.int16) - patch)


def _inner(name: str) -> str:
    """What a member is to us: ``mnist_m_train/<image>``, the name of a list, or nothing."""
    path = PurePosixPath(name)
    for split in _SPLITS:
        if path.parent.name == f"mnist_m_{split}":
            return f"{path.parent.name}/{path.name}"
        if path.name == f"mnist_m_{split}_labels.txt":
            return path.name
    return ""


def _content(file: bytes | Path, read: Callable[[Path], bytes]) -> bytes:
    return file if isinstance(file, bytes) else read(file)


def _parse_listing(data: bytes, where: str) -> tuple[list[str], Rows]:
    """Names of images and their labels, of lines ``<image> <label>``."""
    names, labels = [], []
    for number, line in enumerate(data.decode("latin1").splitlines(), 1):
        fields = line.split()
        if len(fields) != 2 or PurePosixPath(fields[0]).name != fields[0] or fields[1] not in tuple("0123456789"):
            raise UserError(f"{where}: line {number}: {line[:40]!r} is not an image's name and a label 0..9")
        names.append(fields[0])
        labels.append(int(fields[1]))
    if len(set(names)) < len(names):
        raise UserError(f"{where}: lists an image twice; use the official data")
    return names, np.array(labels, np.int64)


def _is_photo(name: str) -> bool:
    path = PurePosixPath(name)  # which drops a leading "./"
    return str(path.parent) in {f"{_PHOTOS}/{split}" for split in _SPLITS} and path.suffix == ".jpg"


def _decode_photo(data: bytes, smallest: int, where: str) -> Bytes:
    """uint8 [3, height, width]."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            if min(image.size) < smallest or image.width * image.height > _LARGEST:
                raise ValueError(f"{image.width}x{image.height} pixels are not the size of a photograph")
            pixels: Bytes = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
            return pixels
    except Exception as error:  # decoders of damaged images raise far more than OSError
        reason = "not JPEG" if type(error).__name__ == "UnidentifiedImageError" else str(error)
        raise UserError(f"{where}: not a readable image ({reason})") from None
