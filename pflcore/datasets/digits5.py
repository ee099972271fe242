"""Digits-Five: one classification task in five domains, as FedBN put it together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import Attribute, Bytes, Mask, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import FOLDER, Dataset
from pflcore.datasets.mnist import Mnist
from pflcore.datasets.mnistm import MnistM
from pflcore.datasets.svhn import Svhn
from pflcore.datasets.synthdigits import SynthDigits
from pflcore.datasets.usps import Usps
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
    """

    citation = "X. Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021"
    licence = "see the five datasets"
    homepage = "https://github.com/med-air/FedBN"
    download_size = "see the five datasets"
    access = FOLDER
    original = (3, 28, 28)
    class_names = tuple("0123456789")
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"domain": _DOMAINS}
    counts = (56_000 + 79_431 + 7_438 + 391_162 + 56_000, 14_000 + 19_858 + 1_860 + 97_791 + 14_000)
    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)
    smoke: ClassVar[dict[str, Any]] = {"size": 28}

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

    @property
    def parts(self) -> dict[str, Dataset]:
        """The five datasets by domain."""
        parts = (Mnist(), Svhn(), Usps(), SynthDigits(), MnistM(source=self.mnistm))
        return dict(zip(_DOMAINS, parts, strict=True))

    @property
    def expected(self) -> tuple[int, int]:
        """Training and test samples of the five together."""
        sizes = [part.expected or (0, 0) for part in self.parts.values()]
        if self.split == "pooled":
            sizes = [(train + test - _fifth(train + test), _fifth(train + test)) for train, test in sizes]
        return sum(train for train, _ in sizes), sum(test for _, test in sizes)

    def found(self, folder: Path) -> bool:
        """Whether all five datasets have something to load."""
        return all(part.found(folder.parent / part.name) for part in self.parts.values())

    def load(self, folder: Path) -> Samples:
        """Read the five datasets from their folders beside `folder`, downloading those that can be."""
        parts = self.parts
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
            attributes={
                "domain": Attribute(np.repeat(np.arange(len(parts)), list(sizes.values())), self.attributes["domain"])
            },
        )


def _fifth(count: int) -> int:
    """A fifth, rounded up, as FedBN's sizes are."""
    return -(-count // 5)


def _draw(labels: Rows, domain: str) -> Mask:
    """True for training samples: all but a fifth, drawn by class in proportion to the classes' sizes."""
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
