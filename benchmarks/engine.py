"""How fast clients train and are measured: our executors beside a plain loop over clients with a DataLoader each.

The plain loop is what the common libraries do: a deep copy of an ordinary model per client, ``torch.optim.SGD``, a
``DataLoader`` over tensors that are normalised beforehand; for FedTP, a backward pass through the hypernetwork per
client, summed up. Images are generated, since speed does not depend on them. Contestants take turns, so that a busy
moment of the machine hits all of them. The table shows medians: seconds per 10,000 samples visited, the ratio to the
plain loop, and the share of the floor, which is the FLOPs of the model over the rate of a large matrix product in the
same arithmetic.

    python benchmarks/engine.py                   # a table, and benchmarks/engine.csv
    python benchmarks/engine.py --device cuda     # the same on a GPU
    python benchmarks/engine.py --hypernetwork    # FedTP's server step alone
"""

from __future__ import annotations

import argparse
import copy
import csv
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peers.common import ConvNet, TinyViT, accuracy, fit
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData
from pflcore.engine import select_device, train
from pflcore.engine.forward import use_precision
from pflcore.methods import METHODS
from pflcore.operators.hypernetworks import HyperNetwork
from pflcore.settings import Evaluation, Training

HERE = Path(__file__).parent
BATCH, RATE, SEED = 64, 0.01, 0
IMAGES = 50_000  # that a workload's clients share, however many they are
MODELS: dict[str, Callable[[], nn.Module]] = {"convnet": ConvNet, "tiny_vit": TinyViT}


@dataclass(frozen=True)
class Workload:
    """A round of local training; with no epochs, a measurement of all clients' own models."""

    name: str
    backbone: str
    method: str
    clients: int
    cohort: int
    samples: int
    epochs: int

    @property
    def visits(self) -> int:
        """Samples trained on, or measured, in a round."""
        return self.cohort * self.samples * self.epochs or self.clients * self.samples


WORKLOADS = (
    Workload("W1 ConvNet, FedAvg", "convnet", "fedavg", clients=50, cohort=5, samples=1000, epochs=5),
    Workload("W2 tiny ViT, FedAvg", "tiny_vit", "fedavg", clients=50, cohort=5, samples=128, epochs=1),
    Workload("W2 tiny ViT, FedTP", "tiny_vit", "fedtp", clients=50, cohort=5, samples=128, epochs=1),
    Workload("W3 ConvNet, 10,000 clients", "convnet", "fedavg", clients=10_000, cohort=100, samples=20, epochs=5),
    Workload("W4 ConvNet, 100 personal models", "convnet", "fedper", clients=100, cohort=1, samples=100, epochs=0),
)


def federation(workload: Workload, device: torch.device) -> FederatedData:
    """Clients with `samples` images each; where they need more than there are, clients hold the same ones."""
    rng = np.random.default_rng(0)
    drawn = rng.permuted(np.tile(np.arange(IMAGES), -(-workload.clients * workload.samples // IMAGES)))
    rows = list(drawn[: workload.clients * workload.samples].reshape(workload.clients, -1))
    pixels = rng.integers(0, 256, (IMAGES, 3, 32, 32), np.uint8)
    test = [part[:1] for part in rows] if workload.epochs else rows
    return FederatedData.from_arrays(
        pixels, rng.integers(0, 10, IMAGES), rows, test, (0.5,) * 3, (0.25,) * 3, 10, device
    )


def ours(workload: Workload, data: FederatedData, executor: str, precision: str) -> Callable[[], float]:
    """A function that runs rounds and returns the seconds of the last one; start-up and the first are left out."""

    def once() -> float:
        marks: list[float] = []

        def mark(_: object) -> None:
            synchronize(data.device)
            marks.append(time.perf_counter())

        measuring = not workload.epochs
        train(
            data=data,
            backbone=BACKBONES.create(workload.backbone),
            method=METHODS.create(workload.method),
            training=Training(
                rounds=5 if data.device.type == "cuda" else 3,  # steps are recorded in the first ones
                sample_rate=workload.cohort / workload.clients,
                local_epochs=max(workload.epochs, 1),
                precision=precision,
            ),
            evaluation=Evaluation(every=1, window=99 if measuring else 0, curve_every=0),
            seed=SEED,
            executor=executor,
            on_round=mark,
        )
        # The last round of a training workload is also measured; those of a measuring one also train one client.
        return marks[-1] - marks[-2] if measuring else marks[-2] - marks[-3]

    return once


def plain(workload: Workload, data: FederatedData) -> Callable[[], float]:
    """The same work as a loop over clients, each with a DataLoader."""
    model = MODELS[workload.backbone]().to(data.device)
    images = (data.inputs.float() / 255 - data.mean) / data.std

    def loader(rows: Tensor) -> DataLoader[tuple[Tensor, ...]]:
        own = rows.to(data.device)
        return DataLoader(TensorDataset(images[own], data.labels[own]), BATCH, shuffle=bool(workload.epochs))

    loaders = [loader(rows) for rows in (data.train[: workload.cohort] if workload.epochs else data.test)]
    server = PlainHypernetwork(workload, data.device) if workload.method == "fedtp" else None

    @as_a_plain_program()
    def once() -> float:
        started = time.perf_counter()
        if workload.epochs:
            states = []
            for each in loaders:
                own = copy.deepcopy(model)
                fit(own, each, workload.epochs)
                states.append(own.state_dict())
            model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
            if server:
                server.step()
        else:
            for each in loaders:
                accuracy(copy.deepcopy(model), each)
        synchronize(data.device)
        return time.perf_counter() - started

    return once


@contextmanager
def as_a_plain_program() -> Iterator[None]:
    """PyTorch's usual algorithms, deterministic or not, in the same arithmetic as ours."""
    chosen = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        with use_precision("fp32"):
            yield
    finally:
        torch.use_deterministic_algorithms(chosen, warn_only=True)


class PlainHypernetwork:
    """FedTP's server step as a sum of gradients, one backward pass per client, and ``torch.optim.SGD``."""

    def __init__(self, workload: Workload, device: torch.device, depth: int = 8) -> None:
        targets = {str(block): (1536, 128) for block in range(depth)}
        self.cohort = workload.cohort
        self.net = HyperNetwork(workload.clients, 32, 150, 4, targets)
        self.params = {name: nn.Parameter(one.to(device)) for name, one in self.net.init(SEED).items()}
        self.sgd = torch.optim.SGD(self.params.values(), RATE, momentum=0.9, weight_decay=1e-3)
        self.change = {name: torch.randn(1, *shape, device=device) * 1e-3 for name, shape in targets.items()}

    def step(self) -> None:
        self.sgd.zero_grad()
        for client in range(self.cohort):
            made = self.net(self.params, [client])
            gradients = torch.autograd.grad(list(made.values()), list(self.params.values()), list(self.change.values()))
            for param, gradient in zip(self.params.values(), gradients, strict=True):
                param.grad = gradient / self.cohort if param.grad is None else param.grad + gradient / self.cohort
        self.sgd.step()


def hypernetwork(repeat: int, device: torch.device) -> None:
    """FedTP's server step alone: 237.6 million parameters, five clients."""
    workload = next(one for one in WORKLOADS if one.method == "fedtp")
    usual = PlainHypernetwork(workload, device)
    params = {name: one.to(device) for name, one in usual.net.init(SEED).items()}
    momenta = {name: torch.zeros_like(one) for name, one in params.items()}
    cohort = range(workload.cohort)

    change = {name: tensor.expand(len(cohort), -1, -1) for name, tensor in usual.change.items()}

    def descend() -> None:
        usual.net.sgd_step(params, momenta, cohort, change, lr=RATE, momentum=0.9, weight_decay=1e-3)

    times: dict[str, list[float]] = {"a backward pass per client": [], "ours": []}
    for turn in range(repeat + 1):
        for (_, seconds), step in zip(times.items(), (usual.step, descend), strict=True):
            started = time.perf_counter()
            step()
            synchronize(device)
            if turn:  # the first one fetches memory
                seconds.append(time.perf_counter() - started)
    print("| server step | seconds |\n|---|---:|")
    for name, seconds in times.items():
        print(f"| {name} | {statistics.median(seconds):.3f} |")


def floor(workload: Workload, rate: float) -> float:
    """Seconds for 10,000 samples at `rate` FLOP/s."""
    model = MODELS[workload.backbone]()
    model.eval()
    with FlopCounterMode(display=False) as counter:
        loss = model(torch.zeros(8, 3, 32, 32)).sum()
        if workload.epochs:
            loss.backward()
    return float(counter.get_total_flops() / 8 * 10_000 / rate)


def matmul_rate(device: torch.device, precision: str) -> float:
    """FLOP/s of a large matrix product on all cores."""
    with use_precision(precision):
        return _matmul_rate(device, torch.bfloat16 if precision == "bf16" else torch.float32)


def _matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    side = 8192 if device.type == "cuda" else 2048
    one = torch.randn(side, side, device=device, dtype=dtype)
    times = []
    for _ in range(7):
        started = time.perf_counter()
        one @ one
        synchronize(device)
        times.append(time.perf_counter() - started)
    return float(2 * side**3 / statistics.median(times))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--out", type=Path, default=HERE / "engine.csv")
    parser.add_argument("--only", default="", help="workloads whose name begins so")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", nargs="+", default=["fp32"], help="also tf32 and bf16")
    parser.add_argument("--executors", nargs="+", help="other than the usual ones of the device")
    parser.add_argument("--hypernetwork", action="store_true", help="FedTP's server step alone instead")
    chosen = parser.parse_args()
    device = select_device(chosen.device)
    if chosen.hypernetwork:
        with use_precision("fp32"):
            return hypernetwork(chosen.repeat, device)
    rates = {precision: matmul_rate(device, precision) for precision in chosen.precision}
    words = ", ".join(f"{precision} {rate / 1e9:.0f}" for precision, rate in rates.items())
    print(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, matrix product in GFLOP/s: {words}\n")
    print(
        "| workload | executor | s per 10,000 | against the plain loop | share of the floor |\n|---|---|---:|---:|---:|"
    )
    usual = ["sequential", "pooled"] if device.type == "cpu" else ["sequential", "stacked"]
    lines = []
    for workload in (one for one in WORKLOADS if one.name.startswith(chosen.only)):
        data = federation(workload, device)
        contestants = {("plain loop", "fp32"): plain(workload, data)} | {
            (executor, precision): ours(workload, data, executor, precision)
            for executor in chosen.executors or usual
            for precision in chosen.precision
        }
        times: dict[tuple[str, str], list[float]] = {name: [] for name in contestants}
        for _ in range(chosen.repeat):
            for name, once in contestants.items():
                times[name].append(once())
        base = statistics.median(times["plain loop", "fp32"])
        for (name, precision), values in times.items():
            seconds = statistics.median(values)
            per = seconds / workload.visits * 10_000
            share = floor(workload, rates.get(precision, rates[chosen.precision[0]])) / per
            label = name if precision == "fp32" else f"{name}, {precision}"
            lines.append([workload.name, label, f"{per:.3f}", f"{base / seconds:.2f}", f"{share:.2f}"])
            print("| " + " | ".join(lines[-1]) + " |", flush=True)
    with chosen.out.open("w", newline="") as file:
        header = ["workload", "executor", "seconds_per_10000", "ratio_to_plain", "share_of_floor"]
        csv.writer(file, lineterminator="\n").writerows([header, *lines])


if __name__ == "__main__":
    main()
