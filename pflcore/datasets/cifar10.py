"""CIFAR-10 from its official archive or from a Parquet export."""

from __future__ import annotations

from pflcore.datasets import DATASETS
from pflcore.datasets._cifar import HOST, Cifar, Labels
from pflcore.datasets._download import Source


@DATASETS.register
class Cifar10(Cifar):
    """CIFAR-10, 50,000 + 10,000 colour images of 32x32 in 10 classes.

    The official source is looked for as ``cifar-10-python.tar.gz`` and ``cifar-10-batches-py/``, in this order, and
    downloaded when neither is there. A Parquet export has columns ``img`` and ``label``. Mean and std are the field's
    customary ones.
    """

    citation = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
    download_size = "170 MB"
    files = ("cifar-10-python.tar.gz", "cifar-10-batches-py/", "train*.parquet")
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    counts = (50_000, 10_000)
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2023, 0.1994, 0.2010)
    kinds = (Labels("labels", "label", 10),)
    archive = Source(
        f"{HOST}/cifar-10-python.tar.gz", "sha256", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
    )
    unpacked = "cifar-10-batches-py"
    batches = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
