"""Sections of gpu.py that measure speed, compared with a plain loop on the same device."""

import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress

import numpy as np
import torch
from engine import PlainHypernetwork, synchronize
from gpu_section import AT_THE_END, SEED, Bench, federation, watched
from torch import Tensor, nn
from workloads import BATCH, CLASSES, ConvNet, TinyViT, Workload, plain_round

from pflcore.backbones import BACKBONES, Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine import train
from pflcore.engine.forward import use_precision
from pflcore.methods import METHODS
from pflcore.settings import Training

WARM, STEADY = 3, 3  # rounds: the first ones allocate memory and record steps


def speed(bench: Bench, name: str) -> None:
    """Write samples per second of W1, the ConvNet under FedAvg, or W2, the tiny ViT under FedTP.

    The most important cases come first, those with ten clients; cases for which there is no time are left out.
    """
    device, depth, epochs = bench.place(), 1 if bench.quick else 8, 1 if bench.quick else 2
    net, method, samples = {"W1": ("convnet", "fedavg", 512), "W2": ("tiny_vit", "fedtp", 256)}[name]
    samples = 16 if bench.quick else samples
    backbone = BACKBONES.create(net, **({"depth": depth} if net == "tiny_vit" else {}))

    def workload(clients: int) -> Workload:
        return Workload(net, samples, epochs, clients=clients, cohort=clients, method=method)

    loops: dict[str, float] = {}  # precision → samples per second of the plain loop, for any number of clients
    for clients in (2,) if bench.quick else (10, 50, 5, 1):
        for precision in ("fp32", "bf16") if bench.quick else ("fp32", "tf32", "bf16"):
            for spread in ("equal", "dirichlet") if clients > 1 else ("equal",):
                if bench.left < 0:
                    return
                what = {"clients": clients, "precision": precision, "sizes": spread}
                with bench.tried(**what):
                    if precision not in loops:
                        few = workload(2 if bench.quick else 5)
                        data = federation(device, sizes(few.clients, samples, "equal"))
                        loops[precision] = few.visits / plain(few, data, depth, precision)
                    held = sizes(clients, samples, spread)
                    with watched() as seen:
                        seconds = rounds_of(workload(clients), federation(device, held), backbone, precision)
                    rate, cuda = sum(held) * epochs / seconds, device.type == "cuda"
                    memory = torch.cuda.max_memory_reserved() / 2**20 if cuda else 0.0
                    line = {"samples_per_s": rate, "to_plain": rate / loops[precision], "round_ms": 1000 * seconds}
                    bench.write(**what, **line, replays=seen.replays, peak_mb=memory)
                    if cuda:
                        torch.cuda.empty_cache()
                        torch.cuda.reset_peak_memory_stats()


def sizes(clients: int, samples: int, spread: str) -> list[int]:
    """Return each client's number of images, `samples` on average: equal, or by Dirichlet(0.3) over ten classes."""
    if spread == "equal":
        return [samples] * clients
    shares = np.random.default_rng(SEED).dirichlet([0.3] * clients, CLASSES).mean(0)
    return [max(2, round(share * clients * samples)) for share in shares]


class Enough(Exception):
    """Raised to end a run that is only timed."""


def rounds_of(workload: Workload, data: FederatedData, net: Backbone, precision: str) -> float:
    """Return the median seconds of a round after warm-up, without evaluation."""
    marks: list[float] = []

    def mark(_: object) -> None:
        synchronize(data.device)
        marks.append(time.perf_counter())
        if len(marks) == WARM + STEADY:
            raise Enough

    how = {"sample_rate": 1.0, "local_epochs": workload.epochs, "batch_size": BATCH, "precision": precision}
    more = {"evaluation": AT_THE_END, "seed": SEED, "executor": "stacked", "on_round": mark}
    with suppress(Enough):
        method, training = METHODS.create(workload.method), Training(rounds=10**6, **how)
        train(data=data, backbone=net, method=method, training=training, **more)
    return statistics.median(np.diff(marks[WARM - 1 :]))


class Slices:
    """Shuffled batches of a client, from normalised images on the device, without a DataLoader or the host."""

    def __init__(self, data: FederatedData, rows: Tensor) -> None:
        own = rows.to(data.device)
        self.images = data.prepare(data.inputs[own.to(data.inputs.device)].to(data.device))
        self.labels = data.labels[own]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.labels), device=self.labels.device)
        return ((self.images[part], self.labels[part]) for part in order.split(BATCH))


def plain(workload: Workload, data: FederatedData, depth: int, precision: str) -> float:
    """Return the seconds of a round in a loop over clients with an ordinary model and the same flags as our engine."""
    model: nn.Module = (ConvNet() if workload.backbone == "convnet" else TinyViT(depth)).to(data.device)
    server = PlainHypernetwork(workload, data.device, depth) if workload.method == "fedtp" else None
    batches, times = [Slices(data, rows) for rows in data.train], []
    autocast = torch.autocast(data.device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
    with use_precision(precision), autocast:
        for _ in range(3):
            started = time.perf_counter()
            plain_round(model, batches, workload.epochs)
            if server:
                server.step()
            synchronize(data.device)
            times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
