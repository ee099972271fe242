"""Comparison of our engine with peers on the same federation: a plain PyTorch loop, Flower, and Apple's pfl.

    python benchmarks/peers.py                    # a table
    python benchmarks/peers.py --data FOLDER      # with the Parquet export of CIFAR-10 in FOLDER

The peers are installed once, into build/peers-env; that takes minutes and about 6 GB. Each contestant runs in separate
processes with the same samples, partition, model and local SGD. They take turns, so other load on the machine affects
all of them. Seconds are wall time of whole rounds, including the server's work, but without start-up, the first round,
and evaluation, which is timed separately. Times are medians over all turns. Memory is the peak of all processes of a
contestant together; pages that they share count once.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # comes with dvc
from workloads import CLASSES, WORKLOADS, Workload

from pflcore.datasets import DATASETS

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "contestants.py"
# The version of torch is the one that the engine was measured with.
REQUIREMENTS = "torch==2.11.0 numpy==2.4.6 flwr[simulation]==1.41.0 ray==2.55.1 pfl==0.6.0"
ENVIRONMENT = HERE.parent / "build" / "peers-env"
OURS, PEERS = Path(sys.executable), ENVIRONMENT / "bin/python"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
IMAGES = 50_000  # largest number of generated training images
# Variables of this shell that would change the number of threads of some contestants.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PFL_THREADS", "PFL_WORKERS")
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={CORES}")
COLUMNS = ("workload", "contestant", "version", "train_s_per_10000", "test_s_per_10000", "memory_mb", "accuracy")
CONTESTANTS: dict[str, tuple[object, ...]] = {
    "ours": (OURS, SCRIPT, "ours"),
    "plain loop": (PEERS, SCRIPT, "plain"),
    "Flower": (PEERS, SCRIPT, "flower"),
    "pfl": (PEERS, SCRIPT, "apple"),
    "pfl, a process per core": (PEERS, *LAUNCHER, SCRIPT, "apple"),
}


def install() -> None:
    """Make the peers' environment, and make it again if the requirements have changed."""
    ready = ENVIRONMENT / "ready.txt"
    if ready.is_file() and ready.read_text() == REQUIREMENTS:
        return
    print(f"Installing the peers into {ENVIRONMENT} (minutes) ...", file=sys.stderr)
    venv.create(ENVIRONMENT, clear=True, with_pip=True)
    pip = [PEERS, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, *REQUIREMENTS.split()], check=True)
    ready.write_text(REQUIREMENTS)


def generated(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels that can be learnt in several rounds: faint patterns of the classes under noise."""
    labels = rng.integers(0, CLASSES, count)
    patterns = np.random.default_rng(0).normal(0, 50, (CLASSES, 3, 8, 8)).repeat(4, 2).repeat(4, 3)
    images = np.empty((count, 3, 32, 32), np.uint8)
    for row, (label, shift) in enumerate(zip(labels, rng.integers(0, 4, (count, 2)), strict=True)):
        pattern = rng.random() * np.roll(patterns[label], shift, (1, 2))
        images[row] = (128 + pattern + rng.normal(0, 60, (3, 32, 32))).clip(0, 255)
    return images, labels


def write(folder: Path, workload: Workload, source: Path | None) -> None:
    """Write the federation, with an equal share of the shuffled training images for each client."""
    rng, size = np.random.default_rng(1), workload.clients * workload.samples
    if source:
        samples = DATASETS.create("cifar10", source="parquet").load(source)
        images, labels = samples.inputs, samples.labels
        train, test = (rng.permutation(np.flatnonzero(part)) for part in (samples.train, ~samples.train))
    else:
        images, labels = generated(min(size, IMAGES) + workload.tests, rng)
        train, test = np.split(np.arange(len(labels)), [-workload.tests])
    rows = {"train": np.resize(train, size).reshape(workload.clients, -1), "test": test[: workload.tests]}
    folder.mkdir()
    for name, array in ({"images": images, "labels": labels.astype(np.int64)} | rows).items():
        np.save(folder / f"{name}.npy", array)


def measure(name: str, folder: Path, options: dict[str, object], limit: float) -> dict[str, Any] | None:
    """Return a turn's result with its peak memory in bytes; None if it failed or took over `limit` seconds."""
    command = [*CONTESTANTS[name], *(text for key, value in options.items() for text in (f"--{key}", str(value)))]
    settings = {key: value for key, value in os.environ.items() if key not in THREADS} | {"TMPDIR": str(folder)}
    out, err = folder / "out.txt", folder / "err.txt"
    peak, family, end = 0, [], time.monotonic() + limit
    with out.open("w") as stdout, err.open("w") as stderr:
        child = psutil.Popen(command, stdout=stdout, stderr=stderr, env=settings, cwd=folder)
        try:
            while child.poll() is None and time.monotonic() < end:
                with suppress(psutil.Error):  # a process may end meanwhile
                    family = [child, *child.children(recursive=True)]
                    peak = max(peak, sum(process.memory_full_info().pss for process in family))  # shared pages once
                time.sleep(1)  # not more often, since each look takes some milliseconds of a core
        finally:
            for process in family:  # processes that are left, or all of them after an interruption
                if process.is_running():
                    process.kill()
    if child.wait():
        print(f"{name} failed or took over {limit:.0f} s:\n{err.read_text()[-2000:]}", file=sys.stderr)
        return None
    return {**json.loads(out.read_text().splitlines()[-1]), "memory": peak}


def summary(workload: str, contestant: str, turns: list[dict[str, Any]]) -> list[str]:
    """Return a row of the table. The accuracy is the mean over turns, which have different seeds, with its range."""

    def median(name: str, samples: int) -> str:
        return f"{statistics.median(value for turn in turns for value in turn[name]) / samples * 10_000:.3f}"

    if not turns:
        return [workload, contestant, "failed", *[""] * 4]
    sizes, shares = WORKLOADS[workload], [100 * turn["accuracy"] for turn in turns]
    times = [median("rounds", sizes.visits), median("evaluations", sizes.tests)]
    peak = f"{max(turn['memory'] for turn in turns) / 1e6:.0f}"
    shown = f"{statistics.mean(shares):.1f} ({min(shares):.1f}-{max(shares):.1f})"
    return [workload, contestant, turns[0]["version"], *times, peak, shown]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", default=["W1"], choices=WORKLOADS)
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), choices=CONTESTANTS, metavar="NAME")
    parser.add_argument("--repeat", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--rounds", type=int, default=8, help="rounds per turn, at least 3")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which a turn is given up")
    parser.add_argument("--data", type=Path, help="a folder with train*.parquet and test*.parquet of CIFAR-10")
    given = parser.parse_args()
    if given.rounds < 3:
        parser.error("--rounds must be at least 3: the first is left out, and our last contains the evaluation")
    if any(CONTESTANTS[name][0] == PEERS for name in given.contestants):
        install()
    print(f"{CORES} cores, {given.repeat} turns of {given.rounds} rounds\n")
    print(f"| {' | '.join(COLUMNS)} |\n|---|---|---|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="peers-") as temporary:
        folder = Path(temporary)
        for workload in given.workload:
            write(folder / workload, WORKLOADS[workload], given.data)
            turns: dict[str, list[dict[str, Any]]] = {name: [] for name in given.contestants}
            for seed in range(given.repeat):
                for name, results in turns.items():
                    options = {"data": folder / workload, "workload": workload, "rounds": given.rounds, "seed": seed}
                    if result := measure(name, folder, options, given.limit):
                        results.append(result)
            for name, results in turns.items():
                print(f"| {' | '.join(summary(workload, name, results))} |", flush=True)


if __name__ == "__main__":
    main()
