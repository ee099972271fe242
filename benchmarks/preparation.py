"""Speed of data preparation: images per second for arrays and for the artifact, and the time of partitions.

The script first writes the official files of CIFAR-10 and MNIST in full size with random pixels, so nothing has to be
downloaded. Each measurement is a separate process. Partitions are timed on 60,000 balanced labels, as CIFAR-10 has, and
on 60 labels per client.

    python benchmarks/preparation.py [--repeat 3]
"""

import argparse
import pickle
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from pflcore.data.sample_files import write_samples
from pflcore.data.samples import Attribute, Samples
from pflcore.datasets import DATASETS
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, partition

CLIENTS = (100, 10_000, 100_000)
LEAST: dict[str, object] = {"alpha": 5.0, "min_samples": 1}
OPTIONS = {"dirichlet": {"sizes": "equal"}, "quantity": LEAST, "domain_dirichlet": LEAST}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("| dataset | arrays, images/s | artifact, images/s | MB |\n|---|---:|---:|---:|")
        for dataset, count, write in (("cifar10", 60_000, write_cifar10), ("mnist", 70_000, write_mnist)):
            write(Path(folder, dataset))
            with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # a process per measurement
                runs = [pool.apply(measure, (dataset, Path(folder, dataset))) for _ in range(chosen.repeat)]
            arrays, artifact, peak = map(statistics.median, zip(*runs, strict=True))
            print(f"| {dataset} | {count / arrays:,.0f} | {count / artifact:,.0f} | {peak:,.0f} |")
    partitions()


def measure(dataset: str, folder: Path) -> tuple[float, float, float]:
    """Return the seconds until the arrays are loaded and until the artifact is written, and the peak memory in MB."""
    entry = DATASETS.create(dataset)
    start = time.perf_counter()
    samples = entry.load(folder)
    arrays = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as out:
        write_samples(Path(out) / "a.parquet", samples)
    return arrays, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_cifar10(folder: Path) -> None:
    """Write the folder that the official Python archive unpacks to."""
    rng, target = np.random.default_rng(0), folder / "cifar-10-batches-py"
    target.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = {"data": rng.integers(0, 256, (10_000, 3072), np.uint8), "labels": rng.integers(0, 10, 10_000).tolist()}
        (target / name).write_bytes(pickle.dumps(batch, 3))


def write_mnist(folder: Path) -> None:
    """Write the unpacked official files."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for split, count in (("train", 60_000), ("t10k", 10_000)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", rng.integers(0, 10, count).astype(np.uint8))):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (folder / f"{split}-{kind}-ubyte").write_bytes(header + array.tobytes())


def labelled(samples: int) -> Samples:
    """Return samples with balanced labels of ten classes, a sixth for test, five domains and black one-pixel images."""
    rng, places = np.random.default_rng(0), tuple(map(str, range(max(CLIENTS))))
    labels = rng.permutation(np.arange(samples) % 10)
    columns = {"coarse": labels % 5, "domain": rng.permutation(np.arange(samples) % 5)}
    attributes = {name: Attribute(values, tuple("abcde")) for name, values in columns.items()}
    attributes["role"] = Attribute(np.arange(samples) % max(CLIENTS), places)
    images, train = np.broadcast_to(np.uint8(0), (samples, 1, 1, 1)), np.arange(samples) >= samples // 6
    return Samples(images, labels, train, "labels", places[:10], (0.5,), (0.5,), "generated", attributes=attributes)


def partitions() -> None:
    """Print the seconds for each partition and number of clients."""
    cifar10 = labelled(60_000)
    sides = [np.flatnonzero(cifar10.train), np.flatnonzero(~cifar10.train)]
    whole = {clients: labelled(max(60_000, 60 * clients)) for clients in CLIENTS}
    print("\nSeconds to deal CIFAR-10's 60,000 labels, and for a whole partition with 60 samples per client\n")
    print(f"| partition | {' | '.join(f'{clients:,}' for clients in CLIENTS * 2)} |\n|---|{'---:|' * 6}")
    for name in PARTITIONS.names():
        scheme = PARTITIONS.create(name, **OPTIONS.get(name, {}))
        rngs = [np.random.default_rng(0) for _ in CLIENTS]
        dealt = [timed(scheme.split, cifar10, sides, *of) for of in zip(CLIENTS, rngs, strict=True)]
        made = [timed(partition, scheme, whole[clients], clients, 0) for clients in CLIENTS]
        print(f"| {name} | {' | '.join(dealt + made)} |", flush=True)


def timed(work: Callable[..., object], *given: object) -> str:
    """Return the seconds of a call, or "refused" if it raised :class:`UserError`."""
    start = time.perf_counter()
    try:
        work(*given)
    except UserError:
        return "refused"
    return f"{time.perf_counter() - start:.2f}"


if __name__ == "__main__":
    main()
