"""One long or large run: many rounds, or many clients, each with checkpoints."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from growing.grown import Grown, memory
from torch import Tensor

from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData
from pflcore.engine import CheckpointFolder, Progress, train
from pflcore.methods import METHODS
from pflcore.settings import Evaluation, Training


class Counted(CheckpointFolder):
    """Checkpoints every so many rounds, whatever the clock says; what each wrote."""

    def __init__(self, folder: Path, every: int) -> None:
        super().__init__(folder, "growth", print)
        self.every, self.written, self.seconds = every, 0, 0.0

    def save(self, round_: int, tensors: Mapping[str, Tensor]) -> None:
        if round_ % self.every:
            return
        before, started = self._files(), time.process_time()
        super().save(round_, tensors)
        self.seconds = time.process_time() - started
        self.written = sum(size for name, size in self._files().items() if name not in before)

    def _files(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.folder.glob("*.safetensors")}

    @property
    def on_disk(self) -> int:
        return sum(self._files().values())


class Enough(Exception):
    """The run has gone far enough."""


def federation(clients: int) -> FederatedData:
    """Two small images for training and one for testing, of each client."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3 * clients, 1, 8, 8), np.uint8)
    rows = np.arange(3 * clients).reshape(clients, 3)
    labels = rng.integers(0, 10, len(images))
    place = torch.device("cpu")
    return FederatedData.from_arrays(images, labels, rows[:, :2], rows[:, 2:], [0.5], [0.3], 10, place)


def trained(
    clients: int, cohort: int, rounds: int, curve: int, folder: CheckpointFolder, on_round: Callable[[Progress], None]
) -> None:
    """Train FedPer on the smallest model, on one thread, as far as `on_round` lets it."""
    torch.set_num_threads(1)
    with folder, suppress(Enough):
        train(
            data=federation(clients),
            backbone=BACKBONES.create("convnet", kernel=3, padding=1, channels=(2, 2), hidden=(4, 4)),
            method=METHODS.create("fedper"),
            training=Training(rounds=rounds + 1, sample_rate=cohort / clients, local_epochs=1, batch_size=2, lr=0.01),
            evaluation=Evaluation(window=0, curve_every=curve),
            seed=1,
            executor="sequential",
            checkpoints=folder,
            checkpoint_every=0.0,
            on_round=on_round,
        )


def rounds(count: int, folder: Path) -> list[Grown]:
    """A run of many rounds."""
    every = max(count // 100, 1)
    speed, resident = Grown("ms per round", 2.0), Grown("resident MiB", 1.15)
    written = Grown("KiB written per checkpoint", 12.0, mean=True)  # with all measurements
    checkpoints = Counted(folder, every)
    times: list[float] = []
    last = time.process_time()

    def on_round(progress: Progress) -> None:
        nonlocal last
        now = time.process_time()
        times.append(now - last)
        if progress.round % every == 0:
            speed.add(progress.round, 1000 * statistics.median(times))
            resident.add(progress.round, memory())
            if checkpoints.written:
                written.add(progress.round, checkpoints.written / 1024)
            times.clear()
        if progress.round >= count:
            raise Enough
        last = time.process_time()

    trained(10, 2, count, 10, checkpoints, on_round)
    print(f"checkpoints on the disk at the end: {checkpoints.on_disk / 1024:.0f} KiB")
    return [speed, resident, written]


def clients(count: int, folder: Path, number: int = 100_000, cohort: int = 100) -> list[Grown]:
    """A run of so many rounds with many clients, killed in the middle and gone on with."""
    every = max(count // 50, 1)
    speed, resident = Grown("ms per round", 2.0), Grown("resident MiB", 1.3)
    written, saving = Grown("KiB written per checkpoint", 4.0, mean=True), Grown("ms per checkpoint", 4.0)
    times: list[float] = []
    ends = [count // 2, count]
    last = 0.0

    def on_round(progress: Progress) -> None:
        nonlocal last
        times.append(time.process_time() - last)
        if progress.round % every == 0:
            speed.add(progress.round, 1000 * statistics.median(times))
            resident.add(progress.round, memory())
            if checkpoints.written:
                written.add(progress.round, checkpoints.written / 1024)
                saving.add(progress.round, 1000 * checkpoints.seconds)
            times.clear()
        if progress.round >= ends[0]:
            del ends[0]
            raise Enough
        last = time.process_time()

    for end in (count // 2, count):
        checkpoints, last = Counted(folder, every), time.process_time()
        trained(number, cohort, count, 0, checkpoints, on_round)
        print(f"ended after round {end}: {checkpoints.on_disk / 1024:.0f} KiB of checkpoints on the disk", flush=True)
    return [speed, resident, written, saving]
