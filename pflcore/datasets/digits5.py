"""MNIST-M, and FedBN's Digits-Five: one classification task in five domains."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import SPLITS, Attribute, Bytes, Mask, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DIGITS, HALF, Dataset, check_distinct
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import load_pickle, open_files, reading
from pflcore.datasets._images import DecodeOptions, decode_images
from pflcore.datasets.small_images import Mnist, Svhn, SynthDigits, Usps
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

    ``official``: 59,001 + 9,001 images of 32x32. ``built``: 60,000 + 10,000 of 28x28 by the recipe of Ganin et al.,
    section 5.2.4: the absolute difference, for each colour, of an MNIST image and a random patch of a random photograph
    of BSDS500. Training digits get patches of training photographs, test digits patches of test photographs; the paper
    does not say which photographs it used.
    """

    name = "mnistm"
    citation = "Y. Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016"
    licence = "none stated by the authors; MNIST: CC BY-SA 3.0; BSDS500: for non-commercial research"
    homepage = "http://yaroslav.ganin.net/"
    download_size = "about 140 MB; for building it 71 MB of BSDS500"
    files = ("mnist_m.tar.gz", "mnist_m/mnist_m_train_labels.txt", "mnist_m_train_labels.txt")
    original = (3, 32, 32)
    class_names = DIGITS
    counts = (59_001, 9_001)
    mean = std = HALF
    # The authors publish no hash; independent projects that fetch the file agree on this one.
    archive: ClassVar[Source] = Source(homepage, "md5", "859df31c91afe82e80e5012ba928f279", "mnist_m.tar.gz")
    photos: ClassVar[tuple[int, int]] = (200, 200)  # training and test photographs of BSDS500

    source: str = option("official", choices=("official", "built"), help="The authors', or of MNIST and BSDS500.")
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
        files = [DataFile("photographs of BSDS500", folder, (_BSDS.name, f"{_PHOTOS}/"), _BSDS, "71 MB")]
        for file in Mnist().data_files(folder.parent / "mnist"):
            files.append(replace(file, description=f"MNIST, {file.description}"))
        return files

    def load(self, folder: Path) -> Samples:
        if self.source == "built":
            return self._built(folder)
        parts = tuple(f"mnist_m_{split}{end}" for split in SPLITS for end in ("", "_labels.txt"))
        images, labels = [], []
        with self.open(folder, [self.archive], "mnist_m", parts) as (files, source):
            for split in SPLITS:
                with reading(f"{files.where}/mnist_m_{split}_labels.txt"):
                    words = files.read(f"mnist_m_{split}_labels.txt").decode().split()
                    labels.append(np.array(words[1::2], np.int64))
                    images += [files.reader(f"mnist_m_{split}/{name}") for name in words[::2]]
            options = DecodeOptions(self.original, formats=("PNG",))
            pixels = decode_images(images, options, f"decoding {self.name}").pixels
        digits = zip(np.split(pixels, [len(labels[0])]), labels, strict=True)
        return self.join([*digits], Path(files.where), folder.name if source == "." else source)

    def _built(self, folder: Path) -> Samples:
        photos: dict[str, list[Bytes]] = {split: [] for split in SPLITS}
        with self.open(folder, [_BSDS], _PHOTOS, SPLITS) as (files, place):
            for name in sorted(files.readers):
                where, read = files.reader(name)
                if name.endswith(".jpg"):
                    with reading(where), Image.open(io.BytesIO(read()), formats=("JPEG",)) as image:
                        photos[name.split("/")[0]].append(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
        counts = tuple(map(len, photos.values()))
        if counts != self.photos:
            expected = f"{self.photos[0]} training and {self.photos[1]} test photographs"
            problem = f"BSDS500 has {expected}, found {counts[0]} and {counts[1]}"
            advice = f"get {_BSDS.name} from {_BSDS.url} and put it, or what it unpacks to, there"
            raise UserError(f"{files.where}: {problem}; {advice}")
        digits = Mnist().load(folder.parent / "mnist")
        pixels = allocate((len(digits), *self.shape))
        advance = track(f"building {self.name}", len(digits))
        for split, mask in zip(SPLITS, (digits.train, ~digits.train), strict=True):
            rows = np.flatnonzero(mask)
            blend(digits.inputs, rows, photos[split], pixels, generator(self.seed, f"mnistm {split}"))
            advance(len(rows))
        origin = place if place == _BSDS.name else "BSDS500"
        source = f"built from {digits.source} and {origin} (seed {self.seed})"
        return self.complete(pixels, digits.labels, digits.train, where=str(folder), source=source)


def blend(digits: Bytes, rows: Rows, photos: Sequence[Bytes], out: Bytes, rng: np.random.Generator) -> None:
    """Write the absolute difference, for each colour, of grey digits and random patches of random photographs.

    Only `rows` of the digits, uint8 [n, 1, H, W], are blended, into the same rows of `out` [n, 3, H, W]. Each
    photograph is uint8 [3, height, width], at least as large as a digit.
    """
    height, width = digits.shape[2:]
    indices = rng.integers(0, len(photos), len(rows))
    corners = rng.random((len(rows), 2))
    for row, index, (down, right) in zip(rows, indices, corners, strict=True):
        photo = photos[index]
        y, x = int(down * (photo.shape[1] - height + 1)), int(right * (photo.shape[2] - width + 1))
        patch = photo[:, y : y + height, x : x + width].astype(np.int16)
        out[row] = np.abs(digits[row].astype(np.int16) - patch)


# FedBN's repository links to this file. The hash is the one that its host shows for this revision, according to a
# public project that checked it.
ARCHIVE = Source(
    "https://huggingface.co/datasets/Jemary/FedBN_Dataset/resolve/0b6cd64d780662b683a373ddb23aa25d1d968cf8"
    "/digit_dataset.zip",
    "sha256",
    "6c006e41ce16404aab520895a5c510166453c8b58ed2e7eb7e23e133e1fa4221",
)
PART_SIZE = 743.8  # images in each of FedBN's ten training files of a domain, before rounding: a tenth of USPS
# For each domain its folder in FedBN's archive, the shape of an image there, and the number of test images.
PUBLISHED: dict[str, tuple[str, tuple[int, ...], int]] = {
    "MNIST": ("MNIST", (28, 28, 1), 14_000),
    "SVHN": ("SVHN", (32, 32, 3), 19_858),
    "USPS": ("USPS", (16, 16, 1), 1_860),
    "SynthDigits": ("SynthDigits", (32, 32, 3), 97_791),
    "MNIST-M": ("MNIST_M", (28, 28, 3), 14_000),
}
_DOMAINS = tuple(PUBLISHED)

Part = tuple[str, Bytes, Rows, Mask, str]
"""The name of a domain, some images [n, 1 or 3, H, W], their labels, the mask of training samples, their source."""


@DATASETS.register
class Digits5(Dataset):
    """Digits of five domains: MNIST, SVHN, USPS, SynthDigits and MNIST-M, in colour.

    The five datasets are read from their own folders and scaled to 28x28 (bilinear) in three channels, as in FedBN's
    code. With `pooled`, a fifth of all images of a domain is drawn by class as the test set; the images are always the
    same. The domain is the attribute ``domain``. With ``source: fedbn``, images and splits are those that FedBN's
    authors publish: the test sets have the sizes of `pooled` but other images, and MNIST-M is the authors' own.
    """

    name = "digits5"
    citation = "X. Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021"
    licence = "see the five datasets"
    homepage = "https://github.com/med-air/FedBN"
    download_size = "see the five datasets; FedBN's own files 278 MB"
    original = (3, 28, 28)
    class_names = DIGITS
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"domain": _DOMAINS}
    counts = (56_000 + 79_431 + 7_438 + 391_162 + 56_000, 14_000 + 19_858 + 1_860 + 97_791 + 14_000)
    mean = std = HALF
    smoke: ClassVar[dict[str, Any]] = {"size": 28}

    source: str = option("datasets", choices=("datasets", "fedbn"), later=True, help="Each domain's files, or FedBN's.")
    parts_used: int = option(1, ge=1, le=10, later=True, help="FedBN's training files of a domain, of 743 images each.")
    domain_list: tuple[str, ...] = option(
        _DOMAINS, choices=_DOMAINS, later=True, help="Which domains, in the order in which clients get them."
    )
    size: int = option(28, help="Height and width in pixels that every image is scaled to.", ge=8, le=224)
    split: str = option("pooled", choices=("pooled", "official"), help="A fifth of each domain, or its own test set.")
    mnistm: str = option("built", choices=("built", "official"), help="The 70,000 of MNIST and BSDS500, or the 68,002.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct(self, "domain_list")
        object.__setattr__(self, "attributes", {"domain": self.domain_list})

    @property
    def domains(self) -> dict[str, Dataset]:
        """Return the dataset of each domain in `domain_list`."""
        datasets = Mnist(), Svhn(), Usps(), SynthDigits(), MnistM(source=self.mnistm)
        return {domain: datasets[_DOMAINS.index(domain)] for domain in self.domain_list}

    @property
    def expected(self) -> tuple[int, int]:
        if self.source == "fedbn":
            train = int(PART_SIZE * self.parts_used) * len(self.domain_list)
            return train, sum(PUBLISHED[domain][2] for domain in self.domain_list)
        sizes = [part.expected or (0, 0) for part in self.domains.values()]
        if self.split == "pooled":
            sizes = [(train + test - _fifth(train + test), _fifth(train + test)) for train, test in sizes]
        return sum(train for train, _ in sizes), sum(test for _, test in sizes)

    def data_files(self, folder: Path) -> list[DataFile]:
        if self.source == "fedbn":
            return [DataFile("FedBN's files", folder, (ARCHIVE.name,), ARCHIVE, "278 MB", automatic=True)]
        return [
            replace(file, description=domain if file.description == dataset.name else f"{domain}, {file.description}")
            for domain, dataset in self.domains.items()
            for file in dataset.data_files(folder.parent / dataset.name)
        ]

    def load(self, folder: Path) -> Samples:
        fedbn = self.source == "fedbn"
        parts = self._published(ARCHIVE.obtain(folder)) if fedbn else self._composed(folder.parent)
        inputs = allocate((sum(self.expected), *self.shape))
        start = 0
        labels, train, domains = [], [], []
        sources: dict[str, str] = {}
        for domain, images, digits, is_train, source in parts:
            sources[domain] = source
            _resize(images, inputs[start : start + len(images)], domain)
            start += len(images)
            labels.append(digits)
            train.append(is_train)
            domains.append(np.full(len(digits), self.domain_list.index(domain), np.int64))
        where, source = folder.parent, "; ".join(f"{domain}: {source}" for domain, source in sources.items())
        if fedbn:
            where, source = folder, f"FedBN's files, {self.parts_used} of 10 for training"
        digits, mask = np.concatenate(labels), np.concatenate(train)
        attributes = {"domain": Attribute(np.concatenate(domains), self.domain_list)}
        return self.complete(inputs, digits, mask, where=str(where), source=source, attributes=attributes)

    def _composed(self, root: Path) -> Iterator[Part]:
        for part in self.domains.values():  # before any download, require the files that a person has to get
            if not all(file.path or file.automatic for file in part.data_files(root / part.name)):
                part.load(root / part.name)  # raises the error that says so
        for domain, part in self.domains.items():
            samples = part.load(root / part.name)
            train = samples.train if self.split == "official" else draw_train(samples.labels, domain)
            yield domain, samples.inputs, samples.labels, train, samples.source

    def _published(self, archive: Path) -> Iterator[Part]:
        """Yield the parts of FedBN's archive, which has pickled pairs of images and labels."""
        with open_files(archive) as files:
            for domain in self.domain_list:
                inside, shape, _ = PUBLISHED[domain]
                for pickled in (*(f"partitions/train_part{part}.pkl" for part in range(self.parts_used)), "test.pkl"):
                    path = f"{inside}/{pickled}"  # in any folder of the archive
                    where, read = files.reader(next((n for n in files.readers if f"/{n}".endswith(f"/{path}")), path))
                    with reading(where):
                        images, labels = load_pickle(read(), where)
                        if images.dtype != np.uint8:
                            raise ValueError(f"images of {images.dtype}")
                        images = images.reshape(len(labels), *shape).transpose(0, 3, 1, 2)
                        labels = labels.reshape(len(images)).astype(np.int64)
                    yield domain, images, labels, np.full(len(labels), pickled != "test.pkl"), ""


def _fifth(count: int) -> int:
    """Return a fifth, rounded up as in FedBN's sizes."""
    return -(-count // 5)


def draw_train(labels: Rows, domain: str) -> Mask:
    """Return the mask of training samples: all but a fifth, drawn by class in proportion to the classes' sizes."""
    rng = generator(0, f"digits5 {domain} test set")
    sizes = np.bincount(labels, minlength=len(DIGITS))
    quotas, rests = sizes // 5, sizes % 5
    quotas[np.argsort(-rests, kind="stable")[: _fifth(len(labels)) - quotas.sum()]] += 1
    train = np.ones(len(labels), bool)
    for label, quota in enumerate(quotas):
        train[rng.permutation(np.flatnonzero(labels == label))[:quota]] = False
    return train


def _resize(images: Bytes, out: Bytes, domain: str) -> None:
    """Fill `out` [n, 3, H, W] with `images` [n, 1 or 3, H, W], scaled with Pillow as torchvision does."""
    if images.shape[2:] == out.shape[2:]:
        out[:] = images  # one channel becomes three
        return
    advance = track(f"scaling {domain}", len(images))
    for row, pixels in enumerate(images):
        picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy())
        scaled = np.asarray(picture.resize(out.shape[:1:-1], Image.Resampling.BILINEAR))
        out[row] = scaled if scaled.ndim == 2 else scaled.transpose(2, 0, 1)
        advance(1)
