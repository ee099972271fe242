"""Synthetic tables and run artifacts for the tests of the report."""

import json
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa

from pflcore.artifacts import write_table
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import summarise
from pflcore.settings import Evaluation
from pipeline.compile.generated import to_json
from pipeline.ledger import FACTS
from pipeline.report.collect import collect_frame, write_frame
from pipeline.report.frame import ALL
from pipeline.report.table import Results
from pipeline.report.write import build_report
from pipeline.spec.run import Run
from pipeline.spec.schema import Claim
from pipeline.spec.table import Published, ResolvedTable, TableCell, read_runs
from pipeline.workspace import RECORDS, frame_path, run_path
from support.rounds import rounds_table

PUBLISHED = {  # FedTP, Table II, CIFAR-10
    "Local-T": [(84.55, 0.15), (82.21, 0.08), (69.94, 0.13), (66.68, 0.13)],
    "FedAvg-T": [(50.42, 4.22), (46.28, 4.23), (61.85, 1.5), (59.23, 1.93)],
    "FedPer-T": [(89.86, 0.89), (89.01, 0.12), (79.41, 0.16), (77.70, 0.14)],
    "pFedMe-T": [(82.26, 0.61), (77.57, 0.52), (71.45, 0.87), (68.13, 0.67)],
    "Vanilla Personalized-T": [(86.97, 0.07), (84.90, 0.11), (75.14, 0.12), (72.33, 0.16)],
    "FedTP": [(90.31, 0.26), (88.39, 0.14), (81.24, 0.17), (80.27, 0.28)],
}
COLUMNS = [("Pathological", "50"), ("Pathological", "100"), ("Dirichlet", "50"), ("Dirichlet", "100")]
HEADINGS = {
    **{"adaptation": "Adaptation to novel clients", "embeddings": "Client embeddings"},
    **{"mixing": "How local attention is mixed", "rollout": "Attention rollout"},
}
EVALUATION = Evaluation(every=5, window=20, curve_every=10)
RECORD = {
    **{"dataset": {"name": "digits"}, "partition": {"name": "iid"}, "clients": 3, "seed": 0},
    **{"backbone": {"name": "convnet"}, "method": {"name": "fedavg"}, "training": {"rounds": 100}},
    "evaluation": {"every": 5, "window": 20, "curve_every": 10},
}
"""What a run is of which a test says nothing else."""
KEPT = dict.fromkeys(FACTS, 3) | dict.fromkeys(("device", "torch", "dataset_hash", "partition_hash", "code"), "cpu")
KEPT |= dict.fromkeys(("epsilon", "diverged", "chosen"))
"""The facts of a kept run."""
CODE = "c0de00c0de00"
Rows = dict[str, dict[str, list[float | None]]]
"""Method → setting → value by seed, from 0 on; None of one that is not run yet."""


def cell(labels, runs, published=None, client=None, note=""):
    """A cell of a resolved table; `published` is (mean, std) or (mean, std, "quoted")."""
    if published is not None:
        published = Published(mean=published[0], std=published[1], quoted=len(published) > 2, note=note)
    return TableCell(labels=labels, runs=runs, client=client, published=published)


def table(cells, rows, columns, **changes):
    """A resolved table whose labels and runs are those of its cells; the runs are those of :data:`RECORD`."""
    base = {
        **{"spec": "demo/table2", "title": "A demonstration", "profile": "paper", "paper": None, "notes": []},
        **{"caption": "Average test accuracy.", "rows": rows, "columns": columns, "clients": {}, "cells": cells},
        **{"metric": "last_rounds", "better": "higher", "decimals": 2},
        "labels": {axis: list(dict.fromkeys(entry.labels[axis] for entry in cells)) for axis in (*rows, *columns)},
        "runs": {run: Run(RECORD).federation_id for entry in cells for run in entry.runs},
        "partitions": [{"federation": "digits-iid-n3-s0-00000000", "words": "iid on digits, 3 clients, seed 0"}],
        **{"claims": [], "figures": None, "analyses": HEADINGS},
    }
    return ResolvedTable.model_validate({**base, **changes})


def changed(resolved, **changes):
    """The table with some of its fields changed."""
    return ResolvedTable.model_validate(resolved.model_dump() | changes)


def with_note(resolved, index, note):
    """The table with a note on the published value of a cell."""
    cells = resolved.model_dump()["cells"]
    cells[index]["published"]["note"] = note
    return changed(resolved, cells=cells)


def with_records(root, resolved, records):
    """The table with other runs under the same names; their records are written."""
    write_records(root, records)
    return changed(resolved, runs=resolved.runs | {run: Run(record).federation_id for run, record in records.items()})


def write_records(root, records, *, anew=True):
    """Add records to those of a workspace, `anew` also where there is one."""
    path = root / RECORDS
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    write_text(path, to_json(known | records if anew else records | known, 1) + "\n")


def claim(side, than, form="better", **changes):
    """A resolved claim."""
    if form == "within":
        return Claim(text="So it is.", within=changes.pop("margin"), **changes)
    return Claim.model_validate({"text": "So it is.", form: side, "than": than, **changes})


def by_seed(root, rows: Rows, *claims, **changes):
    """A table of methods and settings, of which each run's figures are written."""
    cells, records = [], {}
    for method, settings in rows.items():
        for setting, values in settings.items():
            runs = [f"{method}-{setting}-{seed}" for seed in range(len(values))]
            cells.append(cell({"method": method, "setting": setting}, runs))
            for seed, (run, value) in enumerate(zip(runs, values, strict=True)):
                records[run] = RECORD | {"seed": seed}
                if value is not None:
                    write_metrics(root, run, value)
    return with_records(root, table(cells, ["method"], ["setting"], claims=list(claims), **changes), records)


def runs_of(resolved, root):
    """The runs of a table by id; the record of one that has none is :data:`RECORD` and is written."""
    write_records(root, dict.fromkeys(resolved.runs, RECORD), anew=False)
    return read_runs(resolved, root)


def frame_of(resolved, root):
    """The frame of a table's runs, which is written too, with the figures that :func:`write_evaluation` has stated."""
    with patch("pipeline.report.collect.summarise", _summarised):
        frame = collect_frame(resolved, runs_of(resolved, root), root)
        write_frame(resolved, root, root / frame_path(resolved.spec))
    paths = {run: root / run_path(run, "figures.json") for run in resolved.runs}
    stated = {run: json.loads(path.read_text()) for run, path in paths.items() if path.is_file()}
    rows = [
        {"run": run, "client": ALL, "metric": metric, **figure, "std": figure["std"] if figure["n"] > 1 else None}
        for run, figures in stated.items()
        for metric, figure in figures.items()
    ]
    others = frame.values[~frame.values["run"].isin(stated) | (frame.values["client"] != ALL)]
    values = pd.concat([others, pd.DataFrame(rows, columns=others.columns).astype(others.dtypes.to_dict())])
    states = {run: "measured" if figures else "diverged" for run, figures in stated.items()}
    state = [states.get(run, known) for run, known in frame.runs[["run", "state"]].itertuples(index=False)]
    return replace(frame, runs=frame.runs.assign(state=state), values=values)


def _summarised(*given):
    """The figures of a run; none where not all rounds are measured that its record asks for."""
    try:
        return summarise(*given)
    except UserError:
        return {}


def results_of(resolved, root):
    """A table filled in."""
    return Results.from_frame(resolved, frame_of(resolved, root))


def report(resolved, root, out):
    """The report of a table."""
    frame = frame_of(resolved, root)
    with patch("pipeline.report.write.read_frame", lambda folder: frame):
        build_report(resolved, root, out)


def write_metrics(root, run, mean, std=0.0):
    """A run of which only its figures are of interest; its clients are those of its rounds, if there are any."""
    figure = {"mean": mean, "std": std, "n": 5}
    write_evaluation(root, run, dict.fromkeys(("last_rounds", "clients", "final"), figure))


def write_evaluation(root, run, figures):
    """State the figures of a run by protocol, whatever its rounds say; none of one that diverged."""
    write_text(root / run_path(run, "figures.json"), json.dumps(figures))


def write_run(root, run, target, *, clients=8, rounds=100, diverged=False, train_loss=None, due=()):
    """All artifacts of a run whose accuracy rises towards `target` percent, with noise seeded by its id; `due` are the
    measured rounds."""
    random, rows = np.random.default_rng(list(run.encode())), []
    due = due or [r for r in range(1, rounds + 1) if EVALUATION.is_due(r, rounds)]
    due = due[: len(due) // 2] if diverged else due
    for r in due:
        for client in range(clients):
            share = target * (1 - 0.8 * np.exp(-r / (rounds / 5))) + random.normal(0, 1.5)
            correct = int(np.clip(round(500 * share / 100), 0, 500))
            rows.append((r, client, correct, 500, 2.0 - share / 60))
    meta = {
        **{"run": run, "device": "cpu", "torch": "2.11.0", "code": CODE, "positions": 1, "server": 2345678},
        **{"dataset_hash": "d" * 64, "partition_hash": "e" * 64, "parameters": 1234567, "macs": 3456789},
        **{"communicated_up": 10**9, "communicated_down": 2 * 10**9, "stored": 1250, "received": 1234567},
        "diverged": {"round": due[-1] + 1, "client": 3} if diverged else None,
    }
    table = rounds_table(rows)
    if train_loss:  # a function of the round
        table = table.append_column("train_loss", pa.array([train_loss(row[0]) for row in rows], pa.float64()))
    write_table(root / run_path(run, "rounds.parquet"), table, "rounds/2", **meta)


def demo(root, **changes):
    """Six methods on four settings with published values, one quoted row without runs, and every kind of cell."""
    cells = []
    for method, values in {**PUBLISHED, "pFedGP": [(mean, 0.3, "quoted") for mean in (89.2, 88.8, 63.3, 61.3)]}.items():
        for (setting, clients), published in zip(COLUMNS, values, strict=True):
            run = f"{method.lower().replace(' ', '-')}-{setting[0].lower()}{clients}"
            labels = {"method": method, "dataset": "CIFAR-10", "setting": setting, "clients": clients}
            cells.append(cell(labels, [run] if method in PUBLISHED else [], published))
            if method in PUBLISHED and (method, clients) != ("pFedMe-T", "100"):  # which is not run yet
                shift = 6.0 if method == "FedAvg-T" else 0.8
                write_run(root, run, published[0] + shift, diverged=method == "Local-T" and clients == "100")
    others = [one for one in PUBLISHED if one != "FedTP"]
    citation = "Li et al., Federated Learning by Transformer Personalization"
    ahead = claim({"method": ["FedTP"]}, {"method": others}, text="FedTP beats every other method in every setting.")
    personal, average = {"method": ["Vanilla Personalized-T"]}, {"method": ["FedAvg-T"]}
    more = {
        "title": "Transformer-based methods on image data",
        "paper": {"name": "FedTP", "citation": citation, "table": "Table II"},
        "notes": ["Local epochs are 5 in all runs."],
        "claims": [ahead, claim(personal, average, text="Vanilla personalisation beats FedAvg.")],
    }
    return table(cells, ["method"], ["dataset", "setting", "clients"], **{**more, **changes})
