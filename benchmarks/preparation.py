"""Preparing data: images per second and memory against torchvision's dataset classes, and the time of partitions.

The official files of CIFAR-10 and MNIST are written in full size first, with random pixels, so that nothing has to be
downloaded. Both sides then do the same: read them, make arrays of all images and labels, and write our artifact. Each
measurement is a process of its own, the two sides in turn. torchvision's hash of the files is left out, which favours
it. Partitions are timed on CIFAR-10's label counts, and on as many labels as every client needs.

    python benchmarks/preparation.py [--repeat 3]
"""

from __future__ import annotations

import argparse
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pflcore.data.sample_files import write_samples
from pflcore.data.samples import Attribute, Samples
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, partition

SIDES = ("ours", "torchvision")
CLIENTS = (100, 10_000, 100_000)
OPTIONS: dict[str, dict[str, object]] = {
    "dirichlet": {"sizes": "equal"},
    "quantity": {"alpha": 5.0, "min_samples": 1},
    "domain_dirichlet": {"alpha": 5.0, "min_samples": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "DATASET", "FOLDER"), help="for the processes it starts")
    arguments = parser.parse_args()
    if arguments.one:
        return measure(*arguments.one)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cifar10(folder / "cifar10")
        write_mnist(folder / "mnist")
        print(f"{'dataset':10} {'side':12} {'arrays, images/s':>18} {'artifact, images/s':>19} {'peak, MB':>9}")
        for dataset, count in (("cifar10", 60_000), ("mnist", 70_000)):
            compare(dataset, count, folder / dataset, arguments.repeat)
    partitions()


def compare(dataset: str, count: int, folder: Path, repeat: int) -> None:
    """One line for each side, and the ratios."""
    results: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for _ in range(repeat):
        for side in SIDES:
            command = [sys.executable, __file__, "--one", side, dataset, str(folder)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results[side].append([float(word) for word in printed.split()])
    medians = {
        side: [statistics.median(column) for column in zip(*rows, strict=True)] for side, rows in results.items()
    }
    for side, (arrays, artifact, peak) in medians.items():
        print(f"{dataset:10} {side:12} {count / arrays:18,.0f} {count / artifact:19,.0f} {peak:9,.0f}")
    ratios = [theirs / ours for ours, theirs in zip(medians["ours"], medians["torchvision"], strict=True)]
    print(f"{dataset:10} {'times':12} {ratios[0]:18.1f} {ratios[1]:19.1f} {ratios[2]:9.1f}")


def measure(side: str, dataset: str, folder: str) -> None:
    """Seconds until the arrays are there, seconds until the artifact is, and the peak of memory in MB."""
    load = ours if side == "ours" else torchvisions
    load(dataset, Path(folder), warm_up=True)
    start = time.perf_counter()
    samples = load(dataset, Path(folder))
    arrays = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as out:
        write_samples(Path(out) / "a.parquet", samples)
    artifact = time.perf_counter() - start
    print(arrays, artifact, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def ours(dataset: str, folder: Path, warm_up: bool = False) -> Samples:
    from pflcore.datasets import DATASETS

    entry = DATASETS.create(dataset)
    return Samples(*empty()) if warm_up else entry.load(folder)


def torchvisions(dataset: str, folder: Path, warm_up: bool = False) -> Samples:
    """Every image as torchvision's class gives it, one after the other."""
    from torchvision import datasets

    if warm_up:
        return Samples(*empty())
    images, labels, train = [], [], []
    for is_train in (True, False):
        if dataset == "cifar10":
            datasets.CIFAR10._check_integrity = lambda self: True
            datasets.CIFAR10._load_meta = lambda self: None
            made = datasets.CIFAR10(str(folder), train=is_train)
        else:
            made = datasets.MNIST(str(folder.parent / "torchvision"), train=is_train)
        for image, label in made:
            pixels = np.asarray(image)
            images.append(pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None])
            labels.append(label)
            train.append(is_train)
    inputs = np.stack(images)
    names = tuple(map(str, range(10)))
    grey = (0.5,) * inputs.shape[1]
    return Samples(inputs, np.array(labels, np.int64), np.array(train), dataset, names, grey, grey, "torchvision")


def empty() -> tuple[object, ...]:
    return (
        np.zeros((1, 1, 1, 1), np.uint8),
        np.zeros(1, np.int64),
        np.ones(1, np.bool_),
        "",
        ("a",),
        (0.5,),
        (0.5,),
        "",
    )


def write_cifar10(folder: Path) -> None:
    """The folder that the official Python archive unpacks to."""
    rng = np.random.default_rng(0)
    target = folder / "cifar-10-batches-py"
    target.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = {"data": rng.integers(0, 256, (10_000, 3072), np.uint8), "labels": rng.integers(0, 10, 10_000).tolist()}
        (target / name).write_bytes(pickle.dumps(batch, 3))


def write_mnist(folder: Path) -> None:
    """The unpacked official files, for torchvision in the place where it looks."""
    rng = np.random.default_rng(0)
    theirs = folder.parent / "torchvision/MNIST/raw"
    for target in (folder, theirs):
        target.mkdir(parents=True)
    for split, count in (("train", 60_000), ("t10k", 10_000)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = rng.integers(0, 10, count).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            for target in (folder, theirs):
                (target / f"{split}-{kind}-ubyte").write_bytes(header + array.tobytes())


def labels_like_cifar10(samples: int) -> Samples:
    """Balanced labels of ten classes, a sixth of them for test, with five domains; black images of no size."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(samples) % 10)
    coarse = Attribute(labels % 5, tuple("abcde"))
    domain = Attribute(rng.permutation(np.arange(samples) % 5), tuple("abcde"))
    role = Attribute(np.arange(samples) % max(CLIENTS), tuple(map(str, range(max(CLIENTS)))))
    return Samples(
        np.broadcast_to(np.uint8(0), (samples, 1, 1, 1)),
        labels,
        np.arange(samples) >= samples // 6,
        "labels",
        tuple(map(str, range(10))),
        (0.5,),
        (0.5,),
        "generated",
        attributes={"coarse": coarse, "domain": domain, "role": role},
    )


def partitions() -> None:
    """Seconds for each scheme and number of clients."""
    cifar10 = labels_like_cifar10(60_000)
    sizes = {100: cifar10, 10_000: labels_like_cifar10(600_000), 100_000: labels_like_cifar10(6_000_000)}
    print("\nseconds to deal CIFAR-10's 60,000 labels | seconds for a whole partition with 60 samples per client")
    print(f"{'partition':18} " + " ".join(f"{clients:>9,}" for clients in CLIENTS * 2))
    for name in PARTITIONS.names():
        scheme = PARTITIONS.create(name, **OPTIONS.get(name, {}))
        dealt = []
        for clients in CLIENTS:
            sides = [np.flatnonzero(cifar10.train), np.flatnonzero(~cifar10.train)]
            dealt.append(timed(lambda: scheme.split(cifar10, sides, clients, np.random.default_rng(0))))  # noqa: B023
        whole = [timed(lambda: partition(scheme, sizes[clients], clients, 0)) for clients in CLIENTS]  # noqa: B023
        print(f"{name:18} " + " ".join(f"{seconds:>9}" for seconds in dealt + whole))


def timed(work: object) -> str:
    """Seconds, or "no" and the seconds until it was refused."""
    start = time.perf_counter()
    try:
        work()  # type: ignore[operator]
    except UserError:
        return f"no {time.perf_counter() - start:.2f}"
    return f"{time.perf_counter() - start:.2f}"


if __name__ == "__main__":
    main()
