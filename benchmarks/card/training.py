"""Federations of random images, our rounds on them, and the same work as a plain loop over clients."""

from __future__ import annotations

import copy
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from engine import PlainHypernetwork, Workload, synchronize
from peers.common import ConvNet, TinyViT, fit
from torch import Tensor, nn

from pflcore.backbones import BACKBONES, Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine import Result, select_device, train, use_threads
from pflcore.engine.forward import use_precision
from pflcore.methods import METHODS, Method
from pflcore.settings import Evaluation, Training

BATCH, SEED, CLASSES = 64, 0, 10
SHAPE = (3, 32, 32)
# The first rounds fetch memory and record steps.
_WARM, _STEADY = 3, 3


def place(name: str) -> torch.device:
    """The device, with the flags that runs have on it."""
    device = select_device(name)
    use_threads(device, SHAPE)
    return device


def federation(device: torch.device, train_sizes: Sequence[int], test_size: int = 16) -> FederatedData:
    """Clients with that many random images of 3×32×32, and ten classes."""
    rng = np.random.default_rng(SEED)
    ends = np.cumsum([*train_sizes, *[test_size] * len(train_sizes)])
    parts = np.split(rng.permutation(ends[-1]), ends[:-1])
    images = rng.integers(0, 256, (ends[-1], *SHAPE), np.uint8)
    owned, tested = parts[: len(train_sizes)], parts[len(train_sizes) :]
    labels = rng.integers(0, CLASSES, ends[-1])
    return FederatedData.from_arrays(images, labels, owned, tested, (0.5,) * 3, (0.25,) * 3, CLASSES, device)


def sizes(clients: int, samples: int, spread: str) -> list[int]:
    """How many images each client has, `samples` on average: ``equal``, or as Dirichlet(0.3) deals ten classes."""
    if spread == "equal":
        return [samples] * clients
    shares = np.random.default_rng(SEED).dirichlet([0.3] * clients, CLASSES).mean(0)
    return [max(2, round(share * clients * samples)) for share in shares]


@dataclass
class Seen:
    """What happened aside in a run: how many recorded steps were replayed, and which warnings there were."""

    replays: int = 0
    warnings: list[str] = field(default_factory=list)


@contextmanager
def watched() -> Iterator[Seen]:
    """Count replays and collect warnings; what is given is complete after the block."""
    seen, replay = Seen(), torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        seen.replays += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counted
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield seen
    finally:
        torch.cuda.CUDAGraph.replay = replay
        seen.warnings = sorted({str(one.message).splitlines()[0][:160] for one in caught})


def trained(
    data: FederatedData,
    method: str | Method,
    net: Backbone,
    executor: str = "stacked",
    *,
    rounds: int = 3,
    sample_rate: float = 0.8,
    **more: Any,
) -> Result:
    """A short run with momentum, on its device, measured after the last round."""
    settings = {
        "local_epochs": 2,
        "batch_size": 8 if max(map(len, data.train)) < 32 else 32,
        "lr": 0.02,
        "momentum": 0.5,
    } | more.pop("training", {})
    return train(
        data=data,
        backbone=net,
        method=method if isinstance(method, Method) else small(METHODS, method),
        training=Training(rounds=rounds, sample_rate=sample_rate, **settings),
        evaluation=Evaluation(every=1, window=0, curve_every=0),
        seed=SEED,
        executor=executor,
        **more,
    )


def small(registry: Any, name: str, **options: Any) -> Any:
    """An entry with the options that its smoke profile has."""
    return registry.create(name, **{**registry.get(name).smoke, **options})


class _Enough(Exception):
    """Ends a run that is only timed."""


def rounds_of(workload: Workload, data: FederatedData, net: Backbone, precision: str) -> list[float]:
    """Return seconds of three rounds in the steady state, a cohort in each; nothing is measured in between."""
    marks: list[float] = []

    def mark(_: object) -> None:
        synchronize(data.device)
        marks.append(time.perf_counter())
        if len(marks) == _WARM + _STEADY:
            raise _Enough

    rate = workload.cohort / workload.clients
    settings = {"sample_rate": rate, "local_epochs": workload.epochs, "batch_size": BATCH, "precision": precision}
    with suppress(_Enough):
        train(
            data=data,
            backbone=net,
            method=METHODS.create(workload.method),
            training=Training(rounds=10**6, **settings),
            evaluation=Evaluation(every=1, window=0, curve_every=0),
            seed=SEED,
            executor="stacked",
            on_round=mark,
        )
    return list(np.diff(marks[_WARM - 1 :]))


class _Slices:
    """Shuffled batches of a client, cut from normalised images on the device: no DataLoader, no host."""

    def __init__(self, data: FederatedData, rows: Tensor) -> None:
        own = rows.to(data.device)
        self.images, self.labels = (
            data.normalise(data.inputs[own.to(data.inputs.device)].to(data.device)),
            data.labels[own],
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.labels), device=self.labels.device)
        return ((self.images[part], self.labels[part]) for part in order.split(BATCH))


def plain(workload: Workload, data: FederatedData, depth: int, precision: str) -> float:
    """Seconds of a round as a loop over clients with an ordinary model, under the flags that ours runs under."""
    model: nn.Module = (ConvNet() if workload.backbone == "convnet" else TinyViT(depth)).to(data.device)
    server = PlainHypernetwork(workload, data.device, depth) if workload.method == "fedtp" else None
    batches = [_Slices(data, rows) for rows in data.train]
    times = []
    autocast = torch.autocast(data.device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
    with use_precision(precision), autocast:
        for _ in range(3):
            started = time.perf_counter()
            states = []
            for each in batches:
                own = copy.deepcopy(model)
                fit(own, each, workload.epochs)
                states.append(own.state_dict())
            model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
            if server:
                server.step()
            synchronize(data.device)
            times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def backbone(name: str, depth: int) -> Backbone:
    """A workload's network; `depth` is the Transformer's."""
    return BACKBONES.create(name, **({"depth": depth} if name == "tiny_vit" else {}))
