"""Digits-Five: one classification task in five domains, as FedBN put it together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import Attribute, Bytes, Mask, Rows, Samples
from pflcore.datasets import DATASETS, _fedbn_digits
from pflcore.datasets._base import FOLDER, Dataset
from pflcore.datasets._download import DataFile
from pflcore.datasets.mnist import Mnist
from pflcore.datasets.mnistm import MnistM
from pflcore.datasets.svhn import Svhn
from pflcore.datasets.synthdigits import SynthDigits
from pflcore.datasets.usps import Usps
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.seeds import generator

_DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M")
_CHUNK = 1000  # images between two signs of progress


@DATASETS.register
class Digits5(Dataset):
    """Digits of five domains: MNIST, SVHN, USPS, SynthDigits and MNIST-M, in colour.

    The five datasets are read from their own folders beside this one's. As in FedBN's code every image gets three
    channels and is scaled to 28x28 (bilinear), and mean and std are 0.5; MNIST-M has 70,000 images there, which is the
    `built` one, while its authors' files hold 68,002. With `pooled`, training and test images of a domain are put
    together, and a fifth of them, by class, is drawn as the test set: always the same ones. The domain is the attribute
    ``domain``.

    With ``source: fedbn`` the images, and what is training and test, are those that FedBN's authors publish:
    ``digit_dataset.zip`` in this dataset's own folder, downloaded when it is not there, or what it unpacks to,
    ``<domain>/partitions/train_part0.pkl`` to ``train_part9.pkl`` and ``<domain>/test.pkl``, without a hash. Its test
    sets have the sizes of `pooled`, but other images, and its MNIST-M is one of FedBN's own.
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
        le=_fedbn_digits.PARTS,
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
            sizes = [_fedbn_digits.sizes(domain, self.parts_used) for domain in self.domain_list]
            return sum(train for train, _ in sizes), sum(test for _, test in sizes)
        sizes = [part.expected or (0, 0) for part in self.domains.values()]
        if self.split == "pooled":
            sizes = [(train + test - _fifth(train + test), _fifth(train + test)) for train, test in sizes]
        return sum(train for train, _ in sizes), sum(test for _, test in sizes)

    def found(self, folder: Path) -> bool:
        """Return whether all datasets of the domains have something to load, or FedBN's files are here."""
        if self.source == "fedbn":
            return (folder / _fedbn_digits.ARCHIVE.name).is_file() or _fedbn_digits.unpacked(folder) is not None
        return all(part.found(folder.parent / part.name) for part in self.domains.values())

    def data_files(self, folder: Path) -> list[DataFile]:
        """Return those of the domains' datasets, in their own folders, or FedBN's."""
        if self.source == "fedbn":
            return _fedbn_digits.data_files(folder, self.domain_list)
        return [
            replace(file, what=domain if file.what == dataset.name else f"{domain}, {file.what}")
            for domain, dataset in self.domains.items()
            for file in dataset.data_files(folder.parent / dataset.name)
        ]

    def load(self, folder: Path) -> Samples:
        """Read the datasets from their folders beside `folder`, or FedBN's files from `folder`.

        What can be downloaded is.
        """
        return self._published(folder) if self.source == "fedbn" else self._composed(folder)

    def _published(self, folder: Path) -> Samples:
        inputs, end = allocate((sum(self.expected), *self.shape)), 0
        labels, train, domains = [], [], []
        files = _fedbn_digits.read_digits(folder, self.parts_used, self.domain_list)
        for number, (domain, images, digits) in enumerate(files):
            _fit(images, inputs[end : end + len(images)], domain)
            end += len(images)
            labels.append(digits)
            train.append(np.full(len(digits), number % (self.parts_used + 1) < self.parts_used))
            domains.append(np.full(len(digits), self.domain_list.index(domain), np.int64))
        return self.complete(
            inputs,
            np.concatenate(labels),
            np.concatenate(train),
            where=str(folder),
            source=f"FedBN's files, {self.parts_used} of {_fedbn_digits.PARTS} for training",
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
