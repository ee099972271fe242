"""Contestant: this repository's engine with its default settings. It runs in the repository's own environment."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import torch
from common import CLASSES, MEAN, STD, WORKLOADS, Data, arguments, report

from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData
from pflcore.engine import Progress, train
from pflcore.methods import METHODS
from pflcore.settings import Evaluation, Training


def run(data: FederatedData, backbone: str, training: Training, window: int, seed: int) -> tuple[list[float], float]:
    """Seconds of each round, with the evaluation where the last `window` rounds have one, and the last accuracy."""
    marks, shares = [time.perf_counter()], [0.0]

    def note(progress: Progress) -> None:
        marks.append(time.perf_counter())
        shares.append(progress.accuracy or 0.0)

    train(
        data=data,
        backbone=BACKBONES.create(backbone),
        method=METHODS.create("fedavg"),
        training=training,
        evaluation=Evaluation(every=1, window=window, curve_every=0),
        seed=seed,
        on_round=note,
    )
    return np.diff(marks).tolist(), shares[-1]


def main() -> None:
    given = arguments(precision="fp32")
    workload, arrays = WORKLOADS[given.workload], Data(given.data)
    tests, cpu = np.array_split(arrays.test, workload.clients), torch.device("cpu")
    held = (arrays.images, arrays.labels, list(arrays.train), tests)
    data = FederatedData.from_arrays(*held, (MEAN,) * 3, (STD,) * 3, CLASSES, cpu)
    how = {"local_epochs": workload.epochs, "precision": given.precision}
    training = Training(rounds=given.rounds, sample_rate=workload.cohort / workload.clients, **how)
    rounds, share = run(data, workload.backbone, training, 0, given.seed)
    # The engine measures as part of a round. So evaluation is timed in rounds that train one client on one sample.
    idle = replace(data, train=[rows[:1] for rows in data.train])
    least = replace(training, sample_rate=1 / workload.clients, local_epochs=1)
    measured, _ = run(idle, workload.backbone, least, given.rounds, given.seed)
    # The last round of training ends with the only evaluation.
    report(f"{version('pfl-pipeline')}, torch {torch.__version__}", rounds[1:-1], measured[1:], share)


if __name__ == "__main__":
    main()
