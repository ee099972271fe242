"""Hand-made artifacts for the tests of a report's figures."""

import numpy as np
import pandas as pd
import pyarrow as pa

from pflcore.artifacts import read_table, write_table
from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import write_assignment
from pflcore.data.noise import Noise
from pflcore.protocols import summarise
from pflcore.settings import Evaluation
from pipeline.report.figures import build_sections
from pipeline.spec.run import Run
from pipeline.workspace import partition_path
from support.report_demo import CODE, HEADINGS, cell, results_of, table, with_records, write_evaluation, write_metrics
from support.rounds import rounds_table

TOTAL = 200
"""Test samples of every client, so that 1 correct sample is half a percent."""
FIGURES = {
    **{"resources": "Resources", "gain": "Gain of the clients over Local", "noise": "Accuracy and noise"},
    **{"values": "The table as a figure", "boxes": "Spread over the runs"},
    **{"protocols": "Under other protocols", "ranks": "Mean ranks"},
}
"""Those that are no analyses, and their headings."""
Runs = dict[tuple[str, str], dict[str, dict]]
"""(method, setting) → its runs and their records."""


def record(method, *, seed=0, clients=10, setting="dirichlet", **backbone):
    """What a run is, as far as figures look at it."""
    return {
        **{"dataset": {"name": "cifar10"}, "partition": {"name": setting}, "clients": clients, "seed": seed},
        **{"backbone": {"name": "tiny_vit", **backbone}, "method": {"name": method}, "training": {"rounds": 1}},
        "evaluation": {"every": 1, "window": 0, "curve_every": 0},
    }


def write_rounds(root, run, correct, **facts):
    """A run that was measured once: so many of each client's :data:`TOTAL` samples are classified correctly."""
    count = len(correct)
    rounds = rounds_table([(1, client, int(right), TOTAL, 1.0) for client, right in enumerate(correct)])
    costs = {"parameters": 1000, "stored": 0, "received": 1000, "communicated_up": 4000, "communicated_down": 4000}
    meta = {"run": run, "code": CODE, **costs, "macs": 5000, "server": 1000, "positions": 1, "diverged": None}
    write_table(root / f"artifacts/runs/{run}/rounds.parquet", rounds, "rounds/2", **{**meta, **facts})
    write_metrics(root, run, 100 * sum(correct) / (TOTAL * count), 0.5)


def write_counts(root, run, correct, **more):
    """The same with the figures of every protocol, and `more`."""
    write_rounds(root, run, correct)
    rounds, _ = read_table(root / f"artifacts/runs/{run}/rounds.parquet", "rounds/2")
    write_evaluation(root, run, {**summarise(rounds, Evaluation(every=1, window=0, curve_every=0), 1), **more})


def write_noise(root, of, std):
    """The partition of a record; of its samples nothing is known."""
    none = [np.empty(0, np.int64)] * of["clients"]
    noise = Noise(tuple(std), released=False, seed=of["seed"]) if std else None
    path = root / partition_path(Run(of).federation_id)
    write_assignment(path, Assignment(none, none, of["partition"]["name"], of["seed"], noise=noise))


def write_analysis(root, run, rows, **changes):
    """The artifact ``analysis/1`` of a run: analysis, client, item, index, value."""
    kinds = {"analysis": pa.string(), "client": pa.int32(), "item": pa.string(), "index": pa.int32()}
    frame = pd.DataFrame(rows, columns=[*kinds, "value"])
    columns = {name: pa.array(frame[name], kind) for name, kind in (kinds | {"value": pa.float64()}).items()}
    path = root / f"artifacts/runs/{run}/analysis.parquet"
    write_table(path, pa.table({**columns, **changes}), "analysis/1")
    return path


def study(root, runs: Runs, column="setting", **changes):
    """A resolved table of rows (method) and columns (`column`); the records of its `Runs` are written."""
    cells = [cell({"method": m, column: s}, list(own)) for (m, s), own in runs.items()]
    records = {run: of for own in runs.values() for run, of in own.items()}
    return with_records(root, table(cells, ["method"], [column], **changes), records)


def sections_of(resolved, root):
    """The figures of a table's report by name."""
    return {section.name: section for section in build_sections(results_of(resolved, root))}


def demo(root):
    """Three methods in two settings with noise, resources that differ, and every analysis; forty clients."""
    random, runs = np.random.default_rng(0), Runs()
    for at, (label, shift) in enumerate({"Local": 0, "FedAvg": -12, "FedTP": 14}.items()):
        for setting, classes in {"dirichlet": 10, "pathological": 100}.items():
            method, noise = label.lower(), np.linspace(0, 60, 40)
            run, of = f"{method}-{setting}", record(method, clients=40, setting=setting)
            runs[label, setting] = {run: of}
            correct = (random.normal(140 + shift, 13, 40) - 0.4 * noise).clip(0, TOTAL).round()
            whole, kept = 1_000_000 + 128 * classes, [1_000_000 + 128 * classes, 0, 400_000][at]
            sent = {"communicated_up": 4 * (whole - kept), "communicated_down": 4 * (whole - kept)}
            facts = {"parameters": whole, "stored": kept, "received": whole - kept, "macs": 3 * whole + 50_000 * at}
            write_rounds(root, run, correct.tolist(), **sent, **facts, server=at * whole)
            write_noise(root, of, noise.tolist() if setting == "dirichlet" else None)
            write_analysis(root, run, [*(_analyses(random) if method == "fedtp" else []), *_rollout(at)])
    return study(root, runs, title="Figures", figures=[*FIGURES, *HEADINGS])


def every_analysis(at):
    """The rows of every analysis, of the run with this number."""
    return [*_analyses(np.random.default_rng(at), stages=5), *_rollout(at % 5)]


def _analyses(random, stages=2):
    for client in range(100):
        x, y = random.normal(client // 5, 1.0, 2)
        for name, value in (("x", x), ("y", y), ("group", client // 5)):
            yield "embeddings", client, name, 0, float(value)
    for part, ceiling in {"embedding": 70, "head": 78, "all": 86}.items():
        for client, epoch in np.ndindex(4, 11):
            yield "adaptation", client, f"{part}.correct", epoch, int(2 * ceiling - 80 * np.exp(-epoch / 3))
            yield "adaptation", client, f"{part}.total", epoch, TOTAL
    for client, stage in np.ndindex(5, stages):
        for kind, weight in zip(("se", "eca", "ca"), random.dirichlet([5, 5, 5]), strict=True):
            yield "mixing", client, f"conv{stage}_attention.{kind}", 0, float(weight)


def _rollout(shift):
    down, across = np.mgrid[:8, :8]
    for client in (0, 4, 5):
        image = np.stack([30 * down, 120 + 3 * down, 220 - 4 * across]).astype(float)
        mask = np.exp(-((down - client + shift) ** 2 + (across - 3) ** 2) / 9)
        for item, values in ((f"image.{100 + client}", image), (f"mask.{100 + client}", mask / mask.max())):
            yield from (("rollout", client, item, at, float(value)) for at, value in enumerate(values.ravel()))
