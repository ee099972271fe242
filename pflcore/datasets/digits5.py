"""Digits-Five: one classification task in five domains, as FedBN put it together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import Attribute, Bytes, Mask, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import FOLDER, Dataset
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import load_pickle, open_files, reading
from pflcore.datasets.mnist import Mnist
from pflcore.datasets.mnistm import MnistM
from pflcore.datasets.svhn import Svhn
from pflcore.datasets.synthdigits import SynthDigits
from pflcore.datasets.usps import Usps
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.seeds import generator

# FedBN's repository links to this file; the hash is the one that its host shows for this revision, as a public project
# that checked it says.
ARCHIVE = Source(
    "https://huggingface.co/datasets/Jemary/FedBN_Dataset/resolve/0b6cd64d780662b683a373ddb23aa25d1d968cf8"
    "/digit_dataset.zip",
    "sha256",
    "6c006e41ce16404aab520895a5c510166453c8b58ed2e7eb7e23e133e1fa4221",
)
PARTS = 10
"""FedBN's training files of each domain."""
PART_SIZE = 743.8
"""Images of such a file before rounding: a tenth of USPS, the smallest domain."""
_CHUNK = 1000  # images between two signs of progress


class _Published(NamedTuple):
    """A domain in FedBN's archive: its folder, the shape of an image, and the images of its test set."""

    folder: str
    shape: tuple[int, ...]
    tests: int


_PUBLISHED = {
    "MNIST": _Published("MNIST", (28, 28, 1), 14_000),
    "SVHN": _Published("SVHN", (32, 32, 3), 19_858),
    "USPS": _Published("USPS", (16, 16, 1), 1_860),
    "SynthDigits": _Published("SynthDigits", (32, 32, 3), 97_791),
    "MNIST-M": _Published("MNIST_M", (28, 28, 3), 14_000),
}
_DOMAINS = tuple(_PUBLISHED)


@DATASETS.register
class Digits5(Dataset):
    """Digits of five domains: MNIST, SVHN, USPS, SynthDigits and MNIST-M, in colour.

    The five datasets are read from their own folders beside this one's. As in FedBN's code every image gets three
    channels and is scaled to 28x28 (bilinear), and mean and std are 0.5; MNIST-M has 70,000 images there, which is the
    `built` one, while its authors' files hold 68,002. With `pooled`, training and test images of a domain are put
    together, and a fifth of them, by class, is drawn as the test set: always the same ones. The domain is the attribute
    ``domain``.

    With ``source: fedbn`` the images, and what is training and test, are those that FedBN's authors publish in
    ``digit_dataset.zip``, downloaded into this dataset's own folder when it is not there. Its test sets have the sizes
    of `pooled`, but other images, and its MNIST-M is one of FedBN's own.
    """

    citation = "X. Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021"
    licence = "see the five datasets"
    homepage = "https://github.com/med-air/FedBN"
    download_size = "see the five datasets; FedBN's own files 278 MB"
    access = FOLDER
    original = (3, 28, 28)
    class_names = tuple("0123456789")
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"domain": _DOMAINS}
    counts = (56_000 + 79_431 + 7_438 + 391_162 + 56_000, 14_000 + 19_858 + 1_860 + 97_791 + 14_000)
    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)
    smoke: ClassVar[dict[str, Any]] = {"size": 28}

    source: str = option(
        "datasets",
        help="datasets: the five, each from its own files; fedbn: the files that FedBN's authors made of them, with "
        "their training and test sets, for which split and mnistm are not used.",
        choices=("datasets", "fedbn"),
        later=True,
    )
    parts_used: int = option(
        1,
        help="Of source: fedbn, how many of the ten training files of each domain: 743 images with one, FedBN's "
        "default, and 7,438 with all.",
        ge=1,
        le=PARTS,
        later=True,
    )
    domain_list: tuple[str, ...] = option(
        _DOMAINS,
        help="Which of the five domains, in the order in which clients get them: a part, where not all are at hand.",
        choices=_DOMAINS,
        later=True,
    )
    size: int = option(28, help="Height and width in pixels that every image is scaled to.", ge=8, le=224)
    split: str = option(
        "pooled",
        help="pooled: a fifth of all images of each domain is its test set; official: each dataset's own test set.",
        choices=("pooled", "official"),
    )
    mnistm: str = option(
        "built",
        help="Which MNIST-M: built from MNIST and BSDS500 (70,000 images), or the official files (68,002).",
        choices=("built", "official"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.domain_list or len(set(self.domain_list)) < len(self.domain_list):
            raise UserError(f"{self.name}.domain_list = {list(self.domain_list)} must be distinct, one at least")
        object.__setattr__(self, "attributes", {"domain": self.domain_list})

    @property
    def domains(self) -> dict[str, Dataset]:
        """Return the datasets by domain, those of `domain_list`."""
        parts = (Mnist(), Svhn(), Usps(), SynthDigits(), MnistM(source=self.mnistm))
        five = dict(zip(_DOMAINS, parts, strict=True))
        return {domain: five[domain] for domain in self.domain_list}

    @property
    def expected(self) -> tuple[int, int]:
        """Return the number of training and test samples of the domains together."""
        if self.source == "fedbn":
            train = int(PART_SIZE * self.parts_used) * len(self.domain_list)
            return train, sum(_PUBLISHED[domain].tests for domain in self.domain_list)
        sizes = [part.expected or (0, 0) for part in self.domains.values()]
        if self.split == "pooled":
            sizes = [(train + test - _fifth(train + test), _fifth(train + test)) for train, test in sizes]
        return sum(train for train, _ in sizes), sum(test for _, test in sizes)

    def data_files(self, folder: Path) -> list[DataFile]:
        """Return those of the domains' datasets, in their own folders, or FedBN's archive."""
        if self.source == "fedbn":
            return [DataFile("FedBN's files", folder, (ARCHIVE.name,), ARCHIVE, "278 MB", needed=True)]
        return [
            replace(file, what=domain if file.what == dataset.name else f"{domain}, {file.what}")
            for domain, dataset in self.domains.items()
            for file in dataset.data_files(folder.parent / dataset.name)
        ]

    def load(self, folder: Path) -> Samples:
        """Read the datasets from their folders beside `folder`, or FedBN's archive in it, downloading what can be."""
        return self._published(folder) if self.source == "fedbn" else self._composed(folder)

    def _published(self, folder: Path) -> Samples:
        inputs, end = allocate((sum(self.expected), *self.shape)), 0
        labels, train, domains = [], [], []
        for domain, is_train, images, digits in _read_published(
            ARCHIVE.obtain(folder), self.parts_used, self.domain_list
        ):
            _fit(images, inputs[end : end + len(images)], domain)
            end += len(images)
            labels.append(digits)
            train.append(np.full(len(digits), is_train))
            domains.append(np.full(len(digits), self.domain_list.index(domain), np.int64))
        return self.complete(
            inputs,
            np.concatenate(labels),
            np.concatenate(train),
            where=str(folder),
            source=f"FedBN's files, {self.parts_used} of {PARTS} for training",
            attributes={"domain": Attribute(np.concatenate(domains), self.domain_list)},
        )

    def _composed(self, folder: Path) -> Samples:
        parts = self.domains
        sizes = {domain: sum(part.expected or (0, 0)) for domain, part in parts.items()}
        ends = dict(zip(parts, np.cumsum(list(sizes.values())), strict=True))
        inputs = allocate((sum(sizes.values()), *self.shape))
        labels: dict[str, Rows] = {}
        train: dict[str, Mask] = {}
        sources: dict[str, str] = {}
        # First those that the user has to get, before anything is downloaded in vain.
        for domain in sorted(parts, key=lambda domain: parts[domain].access != FOLDER):
            samples = parts[domain].load(folder.parent / parts[domain].name)
            _fit(samples.inputs, inputs[ends[domain] - sizes[domain] : ends[domain]], domain)
            labels[domain] = samples.labels
            train[domain] = samples.train if self.split == "official" else _draw(samples.labels, domain)
            sources[domain] = samples.source
        return self.complete(
            inputs,
            np.concatenate([labels[domain] for domain in parts]),
            np.concatenate([train[domain] for domain in parts]),
            where=str(folder.parent),
            source="; ".join(f"{domain}: {sources[domain]}" for domain in parts),
            attributes={"domain": Attribute(np.repeat(np.arange(len(parts)), list(sizes.values())), self.domain_list)},
        )


def _fifth(count: int) -> int:
    """Return a fifth, rounded up, as FedBN's sizes are."""
    return -(-count // 5)


def _draw(labels: Rows, domain: str) -> Mask:
    """Draw which samples train: all but a fifth, drawn by class in proportion to the classes' sizes."""
    rng = generator(0, f"digits5 {domain} test set")
    sizes = np.bincount(labels, minlength=len(Digits5.class_names))
    quotas, rests = sizes // 5, sizes % 5
    quotas[np.argsort(-rests, kind="stable")[: _fifth(len(labels)) - quotas.sum()]] += 1
    train = np.ones(len(labels), bool)
    for label, quota in enumerate(quotas):
        train[rng.permutation(np.flatnonzero(labels == label))[:quota]] = False
    return train


def _read_published(archive: Path, parts: int, domains: Sequence[str]) -> Iterator[tuple[str, bool, Bytes, Rows]]:
    """Yield domain, whether it is for training, images uint8 [n, 1 or 3, H, W] and labels of FedBN's pickled pairs."""
    with open_files(archive, lambda name: name.endswith(".pkl")) as files:
        for domain in domains:
            own = _PUBLISHED[domain]
            for pickled in (*(f"partitions/train_part{part}.pkl" for part in range(parts)), "test.pkl"):
                inside = f"{own.folder}/{pickled}"
                # Whatever folder the archive puts them into.
                found = [read for name, read in files.items() if f"/{name}".endswith(f"/{inside}")]
                where = f"{archive}/{inside}"
                if not found:
                    raise UserError(f"{where}: is missing; get the archive again from {ARCHIVE.url}")
                with reading(where):
                    images, labels = load_pickle(found[0](), where)
                    if images.dtype != np.uint8:
                        raise ValueError(f"images of {images.dtype}")
                    images = images.reshape(len(labels), *own.shape).transpose(0, 3, 1, 2)
                    labels = labels.reshape(len(images)).astype(np.int64)
                yield domain, pickled != "test.pkl", images, labels


def _fit(images: Bytes, out: Bytes, domain: str) -> None:
    """Fill `out` [n, 3, H, W] with `images` [n, 1 or 3, H, W], scaled with Pillow as torchvision does."""
    from PIL import Image

    size, advance = out.shape[2:], track(f"scaling {domain}", len(images))
    for start in range(0, len(images), _CHUNK):
        part = images[start : start + _CHUNK]
        if part.shape[2:] == size:
            out[start : start + _CHUNK] = part  # one channel becomes three
        else:
            for row, pixels in enumerate(part, start):
                picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy())
                scaled = np.asarray(picture.resize(size[::-1], Image.Resampling.BILINEAR))
                out[row] = scaled if scaled.ndim == 2 else scaled.transpose(2, 0, 1)
        advance(len(part))
