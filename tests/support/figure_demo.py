"""Hand-made artifacts for the tests of a report's figures; run as a script it writes a report to look at."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pflcore.artifacts import read_table, write_table
from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import write_assignment
from pflcore.data.noise import Noise
from pflcore.protocols import summarise
from pflcore.settings import Evaluation
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import partition_path
from support.report_demo import (
    CODE,
    HEADINGS,
    cell,
    report,
    rounds_table,
    table,
    with_records,
    write_evaluation,
    write_metrics,
)

TOTAL = 200
"""Test samples of every client, so that 1 correct sample is half a percent."""

FIGURES = {
    "resources": "Resources",
    "gain": "Gain of the clients over Local",
    "noise": "Accuracy and noise",
    "values": "The table as a figure",
    "boxes": "Spread over the runs",
    "protocols": "Under other protocols",
    "ranks": "Mean ranks",
}
"""Those that are no analyses, and their headings."""
METHODS = {"Local": "local", "FedAvg": "fedavg", "FedTP": "fedtp"}
Rows = Iterable[tuple[str, int, str, int, float]]


def record(
    method: str, *, seed: int = 0, clients: int = 10, setting: str = "dirichlet", **backbone: Any
) -> dict[str, Any]:
    """What a run is, as far as figures look at it."""
    return {
        "dataset": {"name": "cifar10"},
        "partition": {"name": setting},
        "clients": clients,
        "seed": seed,
        "backbone": {"name": "tiny_vit", **backbone},
        "method": {"name": method},
        "training": {"rounds": 1},
        "evaluation": {"every": 1, "window": 0, "curve_every": 0},
    }


def write_rounds(root: Path, run: str, correct: Sequence[int], **facts: Any) -> None:
    """A run that was measured once: so many of each client's :data:`TOTAL` samples are classified correctly."""
    count = len(correct)
    rounds = rounds_table([1] * count, range(count), [int(c) for c in correct], [TOTAL] * count, [1.0] * count)
    costs = {"parameters": 1000, "stored": 0, "received": 1000, "communicated_up": 4000, "communicated_down": 4000}
    meta = {"run": run, "code": CODE, **costs, "macs": 5000, "server": 1000, "positions": 1, "diverged": None}
    write_table(root / f"artifacts/runs/{run}/rounds.parquet", rounds, "rounds/2", **{**meta, **facts})
    write_metrics(root, run, 100 * sum(correct) / (TOTAL * count), 0.5)


def write_counts(root: Path, run: str, correct: Sequence[int], **more: Any) -> None:
    """The same with the figures of every protocol, and `more`."""
    write_rounds(root, run, correct)
    rounds, _ = read_table(root / f"artifacts/runs/{run}/rounds.parquet", "rounds/2")
    figures = summarise(rounds, Evaluation(every=1, window=0, curve_every=0), 1)
    write_evaluation(root, run, {**figures, **more})


def write_noise(root: Path, of: dict[str, Any], std: Sequence[float] | None) -> None:
    """The partition of a record; of its samples nothing is known."""
    none = [np.empty(0, np.int64)] * of["clients"]
    noise = Noise(tuple(std), released=False, seed=of["seed"]) if std else None
    path = root / partition_path(Run(of).federation_id)
    write_assignment(path, Assignment(none, none, of["partition"]["name"], of["seed"], noise=noise))


def write_analysis(root: Path, run: str, rows: Rows, **changes: Any) -> Path:
    """The artifact ``analysis/1`` of a run: analysis, client, item, index, value."""
    frame = pd.DataFrame(rows, columns=["analysis", "client", "item", "index", "value"])
    columns = {
        "analysis": pa.array(frame["analysis"], pa.string()),
        "client": pa.array(frame["client"], pa.int32()),
        "item": pa.array(frame["item"], pa.string()),
        "index": pa.array(frame["index"], pa.int32()),
        "value": pa.array(frame["value"], pa.float64()),
    }
    path = root / f"artifacts/runs/{run}/analysis.parquet"
    write_table(path, pa.table({**columns, **changes}), "analysis/1")
    return path


def study(root: Path, runs: dict[tuple[str, str], dict[str, dict[str, Any]]], **changes: Any) -> ResolvedTable:
    """A resolved table of rows (method) and columns (setting): (method, setting) → its runs and their records, which
    are written."""
    cells = [cell({"method": m, "setting": s}, list(own)) for (m, s), own in runs.items()]
    records = {run: of for own in runs.values() for run, of in own.items()}
    return with_records(root, table(cells, ["method"], ["setting"], **changes), records)


def picture_rows(client: int, row: int, image: np.ndarray, mask: np.ndarray) -> list[tuple[str, int, str, int, float]]:
    """One image [C, H, W] and its mask [h, w] as rows of the analysis rollout."""
    parts = {f"image.{row}": image, f"mask.{row}": mask}
    return [
        ("rollout", client, item, index, float(value))
        for item, values in parts.items()
        for index, value in enumerate(values.reshape(-1))
    ]


def demo(root: Path, clients: int = 40) -> ResolvedTable:
    """Three methods in two settings with noise, resources that differ, and every analysis."""
    random = np.random.default_rng(0)
    runs: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row, (label, method) in enumerate(METHODS.items()):
        for setting in ("dirichlet", "pathological"):
            run, of = f"{method}-{setting}", record(method, clients=clients, setting=setting)
            runs[label, setting] = {run: of}
            noise = np.linspace(0, 60, clients)
            shift = {"local": 0, "fedavg": -12, "fedtp": 14}[method]
            base = np.random.default_rng(7).normal(140, 12, clients) + shift - 0.4 * noise
            classes = 10 if setting == "dirichlet" else 100
            head = 128 * classes
            kept = {"local": 1_000_000 + head, "fedavg": 0, "fedtp": 400_000}[method]
            correct = (base + random.normal(0, 6, clients)).clip(0, TOTAL).round().astype(int).tolist()
            write_rounds(
                root,
                run,
                correct,
                parameters=1_000_000 + head,
                stored=kept,
                received=1_000_000 + head - kept,
                communicated_up=4 * (1_000_000 + head - kept),
                communicated_down=4 * (1_000_000 + head - kept),
                macs=3_000_000 + 3 * head + 50_000 * row,
                server=0 if method == "local" else 1_000_000 + head + 5_000_000 * (method == "fedtp"),
            )
            write_noise(root, of, noise.tolist() if setting == "dirichlet" else None)
    for setting in ("dirichlet", "pathological"):
        rows: list[tuple[str, int, str, int, float]] = []
        for client in range(100):
            angle, group = 2 * np.pi * (client // 5) / 20, client // 5
            at = 10 * np.array([np.cos(angle), np.sin(angle)]) + random.normal(0, 1.0, 2)
            rows += [("embeddings", client, name, 0, float(v)) for name, v in zip("xy", at, strict=True)]
            rows += [("embeddings", client, "group", 0, float(group))]
        for part, ceiling in {"embedding": 70, "hypernetwork": 84, "head": 78, "all": 86}.items():
            for client in range(4):
                for epoch in range(11):
                    correct = int(TOTAL / 100 * (ceiling - (ceiling - 30) * np.exp(-epoch / 3)))
                    rows += [("adaptation", client, f"{part}.correct", epoch, correct)]
                    rows += [("adaptation", client, f"{part}.total", epoch, TOTAL)]
        for client in range(5):
            for stage in (1, 2):
                weights = random.dirichlet([5, 5, 5])
                rows += [
                    ("mixing", client, f"conv{stage}_attention.{kind}", 0, float(w))
                    for kind, w in zip(("se", "eca", "ca"), weights, strict=True)
                ]
        write_analysis(root, f"fedtp-{setting}", [*rows, *_rollout()])
    write_analysis(root, "local-dirichlet", _rollout(3))
    return study(root, runs, title="Figures", figures=[*FIGURES, *HEADINGS])


def _rollout(shift: int = 0) -> list[tuple[str, int, str, int, float]]:
    down, across = np.mgrid[:32, :32]
    rows = []
    for client in (0, 4, 5, 7, 11, 26):
        disc = np.exp(-((down - 10 - client / 2) ** 2 + (across - 16) ** 2) / 60)
        image = np.stack([255 * disc, 120 + 3 * down, 220 - 4 * across]).clip(0, 255).round()
        patch_down, patch_across = np.mgrid[:8, :8]
        mask = np.exp(-((4 * patch_down - 8 - client / 2 + shift) ** 2 + (4 * patch_across - 14 + shift) ** 2) / 90)
        rows += picture_rows(client, 100 + client, image, mask / mask.max())
    return rows


if __name__ == "__main__":
    where = Path(sys.argv[1])
    report(demo(where), where, where / "report")
