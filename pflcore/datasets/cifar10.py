"""CIFAR-10 from its official archives or from a Parquet export."""

from __future__ import annotations

from pflcore.datasets import DATASETS
from pflcore.datasets._cifar import HOST, Cifar, Labels
from pflcore.datasets._download import Source

_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"


@DATASETS.register
class Cifar10(Cifar):
    """CIFAR-10, 50,000 + 10,000 colour images of 32x32 in 10 classes.

    The official source is looked for as ``cifar-10-python.tar.gz``, ``cifar-10-binary.tar.gz``,
    ``cifar-10-batches-py/`` and ``cifar-10-batches-bin/``, in this order, and downloaded when none is there. A Parquet
    export has columns ``img`` and ``label``. Mean and std are the field's customary ones.
    """

    title = "CIFAR-10"
    citation = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
    download_size = "170 MB"
    files = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz", "cifar-10-batches-*/", "train*.parquet")
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    counts = (50_000, 10_000)
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2023, 0.1994, 0.2010)
    kinds = (Labels("labels", "label", 10),)
    archives = (
        (
            Source(f"{HOST}/cifar-10-python.tar.gz", "sha256", _SHA256),
            "cifar-10-batches-py",
        ),
        (Source(f"{HOST}/cifar-10-binary.tar.gz", "md5", "c32a1d4ab5d03f1284b67883e8d87530"), "cifar-10-batches-bin"),
    )
    batches = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
