"""Speed of training and evaluating clients: our executors compared with a plain loop over clients.

The plain loop does what common libraries do: for each client a deep copy of an ordinary model, ``torch.optim.SGD`` and
a ``DataLoader`` over tensors that are normalised beforehand; for FedTP, a backward pass through the hypernetwork per
client, summed up. Images are generated, since speed does not depend on them. Contestants take turns, so other load on
the machine affects all of them. The table shows medians: seconds per 10,000 samples visited, the ratio to the plain
loop, and the share of the floor, which is the FLOPs of the model divided by the rate of a large matrix product.

    python benchmarks/engine.py                   # a table; gpu.py does the same on a GPU
    python benchmarks/engine.py --hypernetwork    # FedTP's server step alone
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode
from workloads import BATCH, MODELS, RATE, Workload, accuracy, plain_round

from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData
from pflcore.engine import select_device, train
from pflcore.engine.forward import use_precision
from pflcore.methods import METHODS
from pflcore.operators.hypernetworks import HyperNetwork
from pflcore.settings import Evaluation, Training

SEED = 0
IMAGES = 50_000  # number of images, which all clients of a workload share
WORKLOADS = {
    "W1 ConvNet, FedAvg": Workload("convnet", samples=1000, epochs=5),
    "W2 tiny ViT, FedAvg": Workload("tiny_vit", samples=128, epochs=1),
    "W2 tiny ViT, FedTP": Workload("tiny_vit", samples=128, epochs=1, method="fedtp"),
    "W3 ConvNet, 10,000 clients": Workload("convnet", samples=20, epochs=5, clients=10_000, cohort=100),
    "W4 ConvNet, 100 personal models": Workload(
        "convnet", samples=100, epochs=0, clients=100, cohort=1, method="fedper"
    ),
}


def federation(workload: Workload) -> FederatedData:
    """Return clients with `samples` images each; if they need more than there are, some images have several owners."""
    rng = np.random.default_rng(0)
    drawn = rng.permuted(np.tile(np.arange(IMAGES), -(-workload.clients * workload.samples // IMAGES)))
    rows = list(drawn[: workload.clients * workload.samples].reshape(workload.clients, -1))
    pixels, labels = rng.integers(0, 256, (IMAGES, 3, 32, 32), np.uint8), rng.integers(0, 10, IMAGES)
    test = [part[:1] for part in rows] if workload.epochs else rows
    return FederatedData.from_arrays(pixels, labels, rows, test, (0.5,) * 3, (0.25,) * 3, 10, select_device("cpu"))


def ours(workload: Workload, data: FederatedData, executor: str) -> Callable[[], float]:
    """Return a function that returns the seconds of a round, without start-up and the first round."""
    measuring = not workload.epochs
    share = workload.cohort / workload.clients
    training = Training(rounds=3, sample_rate=share, local_epochs=max(workload.epochs, 1))

    def once() -> float:
        marks: list[float] = []
        train(
            data=data,
            backbone=BACKBONES.create(workload.backbone),
            method=METHODS.create(workload.method),
            training=training,
            evaluation=Evaluation(every=1, window=99 if measuring else 0, curve_every=0),
            seed=SEED,
            executor=executor,
            on_round=lambda _: marks.append(time.perf_counter()),
        )
        # The last round of a training workload includes an evaluation. Rounds of an evaluation also train one client.
        return marks[-1] - marks[-2] if measuring else marks[-2] - marks[-3]

    return once


def plain(workload: Workload, data: FederatedData) -> Callable[[], float]:
    """Return a function that does the same work in a loop over clients, and returns its seconds."""
    model = MODELS[workload.backbone]()
    images = (data.inputs.float() / 255 - data.mean) / data.std

    def loader(rows: Tensor) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(TensorDataset(images[rows], data.labels[rows]), BATCH, shuffle=bool(workload.epochs))

    loaders = [loader(rows) for rows in (data.train[: workload.cohort] if workload.epochs else data.test)]
    server = PlainHypernetwork(workload, data.device) if workload.method == "fedtp" else None

    def once() -> float:
        # PyTorch's default algorithms, which need not be deterministic, in the same precision as ours.
        chosen = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        started = time.perf_counter()
        with use_precision("fp32"):
            if workload.epochs:
                plain_round(model, loaders, workload.epochs)
                if server:
                    server.step()
            else:
                for each in loaders:
                    accuracy(copy.deepcopy(model), each)
        torch.use_deterministic_algorithms(chosen, warn_only=True)
        return time.perf_counter() - started

    return once


class PlainHypernetwork:
    """FedTP's server step with one backward pass per client, summed gradients, and ``torch.optim.SGD``."""

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


def hypernetwork(repeat: int) -> None:
    """Print the seconds of FedTP's server step alone, with 237.6 million parameters and five clients."""
    workload = WORKLOADS["W2 tiny ViT, FedTP"]
    usual = PlainHypernetwork(workload, torch.device("cpu"))
    params = usual.net.init(SEED)
    momenta = {name: torch.zeros_like(one) for name, one in params.items()}
    cohort = range(workload.cohort)
    change = {name: tensor.expand(len(cohort), -1, -1) for name, tensor in usual.change.items()}

    def descend() -> None:
        usual.net.sgd_step(params, momenta, cohort, change, lr=RATE, momentum=0.9, weight_decay=1e-3)

    print("| server step | seconds |\n|---|---:|")
    for name, step in {"a backward pass per client": usual.step, "ours": descend}.items():
        step()  # the first step allocates memory
        print(f"| {name} | {statistics.median(seconds(step) for _ in range(repeat)):.3f} |", flush=True)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def floor(workload: Workload, rate: float) -> float:
    """Return the seconds that 10,000 samples take at `rate` FLOP/s."""
    model = MODELS[workload.backbone]()
    model.eval()
    with FlopCounterMode(display=False) as counter:
        loss = model(torch.zeros(8, 3, 32, 32)).sum()
        if workload.epochs:
            loss.backward()
    return float(counter.get_total_flops() / 8 * 10_000 / rate)


def matmul_rate(side: int = 2048) -> float:
    """Return the FLOP/s of a large matrix product on all cores."""
    one = torch.randn(side, side)
    return float(2 * side**3 / statistics.median(seconds(lambda: one @ one) for _ in range(7)))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--only", default="", help="workloads whose name begins so")
    parser.add_argument("--hypernetwork", action="store_true", help="FedTP's server step alone instead")
    chosen = parser.parse_args()
    if chosen.hypernetwork:
        return hypernetwork(chosen.repeat)
    rate = matmul_rate()
    print(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, matrix product: {rate / 1e9:.0f} GFLOP/s\n")
    print("| workload | executor | s per 10,000 | against the plain loop | share of the floor |")
    print("|---|---|---:|---:|---:|")
    for title, workload in WORKLOADS.items():
        if not title.startswith(chosen.only):
            continue
        data = federation(workload)
        contestants = {"plain loop": plain(workload, data)}
        contestants |= {executor: ours(workload, data, executor) for executor in ("sequential", "pooled")}
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(chosen.repeat):
            for name, once in contestants.items():
                times[name].append(once())
        base = statistics.median(times["plain loop"])
        for name, values in times.items():
            median = statistics.median(values)
            per = median / workload.visits * 10_000
            ratios = f"{base / median:.2f} | {floor(workload, rate) / per:.2f}"
            print(f"| {title} | {name} | {per:.3f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
