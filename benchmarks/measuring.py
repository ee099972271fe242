"""Rounds per second of CPU time of FedAvg and Ditto with an evaluation after every round, by what is measured.

There are twenty clients, each with a hundred random images of 28×28 and two hundred for tests; the ConvNet, one thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData
from pflcore.engine import train
from pflcore.methods import METHODS
from pflcore.settings import METRICS, VIEWS, Evaluation, Training

CLIENTS, TRAINED, TESTED, ROUNDS = 20, 100, 200, 3
ASKED: dict[str, Mapping[str, Any]] = {
    "as usual": {},
    "all metrics": {"metrics": tuple(METRICS)},
    "global": {"models": VIEWS["models"]},
    "after training": {"moments": VIEWS["moments"]},
    "on all": {"on": VIEWS["on"]},
}


def main() -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    count = CLIENTS * (TRAINED + TESTED)
    images, labels = random.integers(0, 256, (count, 1, 28, 28), np.uint8), random.integers(0, 10, count)
    rows = np.split(np.arange(count), np.cumsum([TRAINED] * CLIENTS + [TESTED] * CLIENTS)[:-1])
    data = FederatedData.from_arrays(
        images, labels, rows[:CLIENTS], rows[CLIENTS:], [0.5], [0.5], 10, torch.device("cpu")
    )
    training = Training(rounds=ROUNDS, sample_rate=0.5, local_epochs=1, batch_size=16)
    print("| measured | FedAvg | Ditto |\n|:---|---:|---:|")
    for words, asked in ASKED.items():
        speeds = []
        for name in ("fedavg", "ditto"):
            started = time.process_time()
            train(
                data=data,
                backbone=BACKBONES.create("convnet"),
                method=METHODS.create(name),
                training=training,
                evaluation=Evaluation(every=1, window=ROUNDS, **asked),
                seed=0,
                executor="sequential",
            )
            speeds.append(f"{ROUNDS / (time.process_time() - started):.2f}")
        print(f"| {words} | {' | '.join(speeds)} |", flush=True)


if __name__ == "__main__":
    main()
