"""Code that the sections of gpu.py share: device and output, clients, short runs, and the comparison of runs."""

import json
import math
import multiprocessing
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from workloads import CLASSES

from pflcore.backbones import BACKBONES, Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine import Result, select_device, train, use_threads
from pflcore.methods import METHODS, Method
from pflcore.settings import Evaluation, Training

LINES = "gpu.jsonl"
MARGIN = 3.0  # seconds after the end of a section's time until it is killed
SHAPE, SEED = (3, 32, 32), 0
TEST_SIZE = 16  # samples of each client
AT_THE_END = Evaluation(every=1, window=0, curve_every=0)


@dataclass(frozen=True)
class Bench:
    """The arguments of a section: device, whether to be quick, output folder, name, and end time."""

    device: str
    quick: bool
    out: Path
    section: str
    ends: float

    @property
    def left(self) -> float:
        """The seconds that remain; negative after the end."""
        return self.ends - time.monotonic()

    def limit(self) -> None:
        """End this process some time after its end, if its parent cannot. Call this when the process begins."""
        signal.alarm(math.ceil(max(0.0, self.left) + 2 * MARGIN))

    def write(self, **facts: Any) -> None:
        """Append a line to the output file at once."""
        short = {name: float(f"{one:.4g}") if isinstance(one, float) else one for name, one in facts.items()}
        with (self.out / LINES).open("a") as file:
            file.write(json.dumps({"section": self.section, **short}) + "\n")

    @contextmanager
    def tried(self, **what: Any) -> Iterator[None]:
        """Run a part of a section. An exception becomes a line that begins with `what`; the next part still runs."""
        try:
            yield
        except Exception as error:
            self.write(**what, ok=False, error=first_line(error))

    def place(self) -> torch.device:
        """Return the device, after setting PyTorch's flags as runs do."""
        device = select_device(self.device)
        use_threads(device, SHAPE)
        return device

    def uneven(self, device: torch.device) -> FederatedData:
        """Return clients of different sizes, so batches differ in size too; the last client has less than a batch."""
        return federation(device, (19, 12, 17, 8, 3) if self.quick else (150, 96, 131, 64, 20))

    def network(self, name: str, **options: float) -> Backbone:
        if name != "tiny_vit":  # only the tiny ViT has a depth and dropout
            return BACKBONES.create(name)
        create = partial(small, BACKBONES) if self.quick else BACKBONES.create
        return create(name, depth=2, **options)


def federation(device: torch.device, train_sizes: Sequence[int]) -> FederatedData:
    """Return clients with the given numbers of random images of 3×32×32 pixels and ten classes."""
    rng = np.random.default_rng(SEED)
    ends = np.cumsum([*train_sizes, *[TEST_SIZE] * len(train_sizes)])
    parts = np.split(rng.permutation(ends[-1]), ends[:-1])
    images = rng.integers(0, 256, (ends[-1], *SHAPE), np.uint8)
    owned, tested = parts[: len(train_sizes)], parts[len(train_sizes) :]
    labels = rng.integers(0, CLASSES, ends[-1])
    return FederatedData.from_arrays(images, labels, owned, tested, (0.5,) * 3, (0.25,) * 3, CLASSES, device)


def small(registry: Any, name: str, **options: Any) -> Any:
    """Return an entry with the options of its smoke profile."""
    return registry.create(name, **{**registry.get(name).smoke, **options})


def trained(
    data: FederatedData,
    method: str | Method,
    net: Backbone,
    executor: str = "stacked",
    *,
    rounds: int = 3,
    sample_rate: float = 0.8,
    precision: str = "fp32",
    lr: float = 0.02,
    **more: Any,
) -> Result:
    """Return the result of a short training with momentum on the data's device, measured after the last round."""
    size = 8 if max(map(len, data.train)) < 32 else 32
    how = {"local_epochs": 2, "batch_size": size, "lr": lr, "momentum": 0.5, "precision": precision}
    training = Training(rounds=rounds, sample_rate=sample_rate, **how)
    method = method if isinstance(method, Method) else small(METHODS, method)
    more |= {"training": training, "evaluation": AT_THE_END, "seed": SEED, "executor": executor}
    return train(data=data, backbone=net, method=method, **more)


@contextmanager
def watched() -> Iterator[SimpleNamespace]:
    """Count replays of recorded steps and collect warnings; the yielded object is complete after the block."""
    seen, replay = SimpleNamespace(replays=0, warnings=[]), torch.cuda.CUDAGraph.replay

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


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest difference between tensors of the same name; NaN if names differ or a tensor has NaN.

    For masks it is the share of elements that differ, because rounding decides elements near the threshold.
    """
    if one.keys() != other.keys():
        return float("nan")
    gaps = [torch.zeros((), dtype=torch.float64)]
    for name in one:
        first, second = (tensors[name].detach().cpu().double() for tensors in (one, other))
        gap = (first - second).abs()
        mask = all((tensor * (1 - tensor) == 0).all() for tensor in (first, second))
        gaps.append(gap.mean() if mask else gap.max())
    return float(torch.stack(gaps).max())


def compare(one: Result, other: Result, limit: float) -> dict[str, Any]:
    """Return the columns of a line about the differences between two runs."""
    gap = difference(one.weights, other.weights)
    accuracy = float(np.abs(one.correct / one.total - other.correct / other.total).max())
    return {"difference": gap, "accuracy": accuracy, "limit": limit, "ok": gap <= limit}


def start(work: Callable[..., None], *given: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=work, args=given)
    process.start()
    return process


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]
