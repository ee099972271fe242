"""How fast clients train and are measured: our executors beside a plain loop over clients with a DataLoader each.

The plain loop is what the common libraries do: a deep copy of the model per client, ``torch.optim.SGD``, a
``DataLoader`` over tensors that are normalised beforehand. Images are generated, since speed does not depend on them.
Contestants take turns, so that a busy moment of the machine hits all of them; the table shows medians, seconds per
10,000 samples visited, and the share of the floor: the FLOPs of the model over the rate of a large matrix product.

    python benchmarks/engine.py            # a table, and benchmarks/engine.csv
"""

from __future__ import annotations

import argparse
import copy
import csv
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from pflcore.backbones import BACKBONES
from pflcore.engine import train
from pflcore.federation import FederatedData
from pflcore.methods import METHODS
from pflcore.settings import Evaluation, Training

HERE = Path(__file__).parent
CLIENTS, COHORT, BATCH, RATE = 50, 5, 64, 0.01


@dataclass(frozen=True)
class Workload:
    """Local training (`epochs` over `samples` per client) or, with no epochs, measuring all clients' own models."""

    name: str
    backbone: str
    method: str
    samples: int
    epochs: int


WORKLOADS = (
    Workload("W1 ConvNet, FedAvg", "convnet", "fedavg", 1000, 5),
    Workload("W2 tiny ViT, FedAvg", "tiny_vit", "fedavg", 64, 1),
    Workload("W2 tiny ViT, FedTP", "tiny_vit", "fedtp", 64, 1),
    Workload("W4 ConvNet, 50 personal models", "convnet", "fedper", 200, 0),
)


def federation(workload: Workload) -> FederatedData:
    rng = np.random.default_rng(0)
    total = CLIENTS * workload.samples
    rows = np.array_split(rng.permutation(total), CLIENTS)
    return FederatedData.from_arrays(
        rng.integers(0, 256, (total, 3, 32, 32), np.uint8),
        rng.integers(0, 10, total),
        rows,
        rows if not workload.epochs else [part[:1] for part in rows],
        (0.5,) * 3,
        (0.25,) * 3,
        10,
        torch.device("cpu"),
    )


def ours(workload: Workload, data: FederatedData, executor: str) -> Callable[[], float]:
    """A function that runs a round and returns its seconds; start-up and the first round are left out."""

    def once() -> float:
        marks: list[float] = []
        measured = not workload.epochs
        train(
            data=data,
            backbone=BACKBONES.create(workload.backbone),
            method=METHODS.create(workload.method),
            training=Training(
                rounds=3,
                sample_rate=1 / CLIENTS if measured else COHORT / CLIENTS,
                local_epochs=max(workload.epochs, 1),
            ),
            evaluation=Evaluation(every=1, window=3 if measured else 0, curve_every=0),
            seed=0,
            executor=executor,
            on_round=lambda _: marks.append(time.perf_counter()),
        )
        return marks[1] - marks[0]

    return once


def plain(workload: Workload, data: FederatedData) -> Callable[[], float]:
    """The same work as a loop over clients, each with a DataLoader."""
    model, _ = BACKBONES.create(workload.backbone).create(data.shape, data.classes, 0)
    images = (data.images.float() / 255 - data.mean) / data.std
    loaders = [
        DataLoader(TensorDataset(images[rows], data.labels[rows]), BATCH, shuffle=bool(workload.epochs))
        for rows in (data.train if workload.epochs else data.test)
    ]

    def once() -> float:
        started = time.perf_counter()
        if workload.epochs:
            states = [fit(copy.deepcopy(model), loader, workload.epochs) for loader in loaders[:COHORT]]
            mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
            model.load_state_dict(mean)
        else:
            for loader in loaders:
                measure(copy.deepcopy(model), loader)
        return time.perf_counter() - started

    return once


def fit(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], epochs: int) -> dict[str, Tensor]:
    model.train()
    sgd = torch.optim.SGD(model.parameters(), RATE)
    for _ in range(epochs):
        for images, labels in loader:
            sgd.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            sgd.step()
    return model.state_dict()


@torch.no_grad()
def measure(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> int:
    model.eval()
    return sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)


def floor(workload: Workload, rate: float) -> float:
    """Seconds for 10,000 samples at `rate` FLOP/s."""
    model, _ = BACKBONES.create(workload.backbone).create((3, 32, 32), 10, 0)
    model.eval()
    with FlopCounterMode(display=False) as counter:
        loss = model(torch.zeros(8, 3, 32, 32)).sum()
        if workload.epochs:
            loss.backward()
    return float(counter.get_total_flops() / 8 * 10_000 / rate)


def matmul_rate() -> float:
    """FLOP/s of a large fp32 matrix product on all cores."""
    one = torch.randn(2048, 2048)
    times = []
    for _ in range(7):
        started = time.perf_counter()
        one @ one
        times.append(time.perf_counter() - started)
    return float(2 * 2048**3 / statistics.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--out", type=Path, default=HERE / "engine.csv")
    parser.add_argument("--only", default="", help="workloads whose name begins so")
    chosen = parser.parse_args()
    rate = matmul_rate()
    print(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, matrix product {rate / 1e9:.0f} GFLOP/s\n")
    print(
        "| workload | executor | s per 10,000 | against the plain loop | share of the floor |\n|---|---|---:|---:|---:|"
    )
    lines = []
    for workload in (one for one in WORKLOADS if one.name.startswith(chosen.only)):
        data = federation(workload)
        contestants = {
            "plain loop": plain(workload, data),
            "sequential": ours(workload, data, "sequential"),
            "pooled": ours(workload, data, "pooled"),
        }
        if workload.method == "fedtp":  # whose server step the plain loop has not
            del contestants["plain loop"]
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(chosen.repeat):
            for name, once in contestants.items():
                times[name].append(once())
        visits = COHORT * workload.samples * workload.epochs or CLIENTS * workload.samples
        lowest = floor(workload, rate)
        for name, values in times.items():
            seconds = statistics.median(values) / visits * 10_000
            against = statistics.median(times["plain loop"]) / statistics.median(values) if "plain loop" in times else 0
            row = [
                workload.name,
                name,
                f"{seconds:.3f}",
                f"{against:.2f}" if against else "",
                f"{lowest / seconds:.2f}",
            ]
            lines.append(row)
            print("| " + " | ".join(row) + " |", flush=True)
    with chosen.out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [["workload", "executor", "seconds_per_10000", "ratio_to_plain", "share_of_floor"], *lines]
        )


if __name__ == "__main__":
    main()
