"""Growth of costs with many clients, rounds and runs: time per round in the first and last tenth, memory, compilation.

Clients and rounds are those of FedPer, which keeps a classifier for each client, with a small MLP, random arrays and
one thread; clients are measured after the last round. Runs are those of a spec with many seeds, which is compiled.

    python benchmarks/growth.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil  # comes with dvc
import torch

from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData
from pflcore.engine import Progress, train
from pflcore.methods import METHODS
from pflcore.settings import Evaluation, Training

COHORT, CLASSES, TRAINED, TESTED = 5, 10, 8, 4
SPEC = """\
title: Many runs
grid:
  base:
    dataset: digits
    partition: iid
    clients: 4
    backbone: {{name: convnet, kernel: 3, padding: 1}}
    method: fedavg
  axes: {{seed: {seeds}}}
table: {{rows: [], columns: [], average_over: [seed]}}
"""


def memory() -> float:
    """Return the memory of this process, in MB."""
    return float(psutil.Process().memory_info().rss) / 1e6


def federation(clients: int) -> FederatedData:
    random, count = np.random.default_rng(0), clients * (TRAINED + TESTED)
    inputs, labels = random.normal(size=(count, 16)).astype(np.float32), random.integers(0, CLASSES, count)
    rows = np.split(np.arange(count), np.cumsum([TRAINED] * clients + [TESTED] * clients)[:-1])
    nowhere = [0.0] * 16, [1.0] * 16
    return FederatedData.from_arrays(
        inputs, labels, rows[:clients], rows[clients:], *nowhere, CLASSES, torch.device("cpu")
    )


def trained(clients: int, rounds: int) -> str:
    """Train; return CPU seconds in all and per round in the first and last tenth of rounds, and MB after each tenth."""
    tenth = rounds // 10
    ends = (1, 1 + tenth), (rounds - 1 - tenth, rounds - 1)  # without the first round (warm-up) and the last one
    marks = dict[int, tuple[float, float]]()

    def mark(progress: Progress) -> None:
        if progress.round in (*ends[0], *ends[1]):
            marks[progress.round] = time.process_time(), memory()

    started = time.process_time()
    train(
        data=federation(clients),
        backbone=BACKBONES.create("mlp", hidden=(8,)),
        method=METHODS.create("fedper"),
        training=Training(rounds=rounds, sample_rate=COHORT / clients, local_epochs=1, batch_size=8),
        evaluation=Evaluation(every=rounds, window=1, curve_every=0),
        seed=0,
        executor="sequential",
        on_round=mark,
    )
    cells = [f"{time.process_time() - started:.1f}"]
    cells += [f"{1e3 * (marks[end][0] - marks[begin][0]) / tenth:.2f} ms" for begin, end in ends]
    return " | ".join([*cells, *(f"{marks[end][1]:.0f}" for _, end in ends)])


def compiled(runs: int) -> str:
    """Compile a spec with `runs` runs in a new study; return the CPU seconds in all and the time per run."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "specs").mkdir()
        (Path(folder) / "specs/many.yaml").write_text(SPEC.format(seeds=list(range(runs))), encoding="utf-8")
        (Path(folder) / "pyproject.toml").write_text('[tool.pfl]\ndefault = ["many"]\n', encoding="utf-8")
        before = sum(os.times()[2:4])
        subprocess.run([Path(sys.executable).with_name("pfl"), "compile"], cwd=folder, check=True, capture_output=True)
    seconds = sum(os.times()[2:4]) - before
    return f"{seconds:.1f} | {1e3 * seconds / runs:.2f} ms | | | "


def main() -> None:
    torch.set_num_threads(1)
    cases: dict[str, Callable[[], str]] = {
        "compiling 500 runs": lambda: compiled(500),
        "compiling 5,000 runs": lambda: compiled(5000),
        "1,000 clients, 100 rounds": lambda: trained(1000, 100),
        "1,000 clients, 10,000 rounds": lambda: trained(1000, 10_000),
        "100,000 clients, 100 rounds": lambda: trained(100_000, 100),
    }
    print("| case | s of a core | per unit, first tenth | last tenth | MB after it | MB at the end |")
    print("|:---|---:|---:|---:|---:|---:|")
    for words, measure in cases.items():
        print(f"| {words} | {measure()} |", flush=True)


if __name__ == "__main__":
    main()
