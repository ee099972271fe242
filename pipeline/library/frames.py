"""Artifacts of runs and partitions as rows of DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import read_assignment
from pflcore.data.sample_files import read_facts
from pipeline.library.found import KEPT, TRAINED, Found
from pipeline.spec.run import Run
from pipeline.workspace import dataset_path, partition_path

_COLUMNS = ["client", "round", "population", "accuracy", "loss", "correct", "total"]


def tidy(found: Found, run: Run) -> pd.DataFrame:
    """What was measured of a run, a row per place in the table, round, client and population."""
    rounds, facts = found.rounds(run)
    frame = pd.DataFrame(rounds.to_pandas())
    frame["population"] = frame["population"].astype(str)
    frame["accuracy"] = frame["correct"] / frame["total"].where(frame["total"] > 0)
    if facts.get("kept"):  # which has the mean over all clients in the place of theirs
        frame["loss"] = np.nan
    columns = list(_COLUMNS)
    columns += ["last_correct"] if facts.get("positions", 1) != 1 else []
    columns += ["precision"] if "precision" in frame else []
    places = []
    for labels in found.labels(run):
        place = frame[columns].copy()
        told: dict[str, str | int] = {
            **{name: label for name, label in labels.items() if name != "seed"},
            "run": run.id,
            "seed": run.seed,
        }
        for at, (name, value) in enumerate(told.items()):
            place.insert(at, name if name not in columns else f"{name} (axis)", value)
        places.append(place)
    return pd.concat(places)


def run_row(found: Found, run: Run) -> list[dict[str, Any]]:
    """A run in short, once for each of its places in the table."""
    state = found.state(run)
    row: dict[str, Any] = {
        "run": run.id,
        "seed": run.seed,
        "state": state,
        "method": run.method,
        "backbone": run.backbone,
        "dataset": run.dataset,
        "partition": run.partition,
        "clients": run.clients,
        "rounds": run.training.rounds,
        "federation": run.federation_id,
    }
    if state in (TRAINED, KEPT):
        rounds, facts = found.rounds(run)
        row |= {
            "diverged": facts.get("diverged") is not None,
            "last_round": int(rounds["round"].to_numpy().max(initial=0)),
            **{name: facts.get(name) for name in ("device", "communicated_up", "communicated_down", "chosen", "kept")},
        }
    # An axis may be called like a column, as `method` mostly is: the label is what the table calls it.
    return [{**labels, **{name: row[name] for name in row if name not in labels}} for labels in found.labels(run)]


def dealt(found: Found) -> tuple[list[tuple[Run, Path, Assignment]], int]:
    """The federations of a spec that are dealt here and current, each with a run of it and its dataset; how many are
    not."""
    federations = {run.federation_id: run for run in found.runs}
    there, root = [], found.workspace.root
    for federation, run in federations.items():
        needed = [dataset_path(run.data_id), partition_path(federation)]
        if all(path in found.recorded.makers and found.recorded.holds(path) for path in needed):
            there.append((run, root / needed[0], read_assignment(root / needed[1])))
    return there, len(federations) - len(there)


def owners(found: Found) -> tuple[list[pd.DataFrame], int]:
    """Who holds which samples in each federation that is :func:`dealt`; how many are not."""
    frames = []
    federations, left = dealt(found)
    for run, dataset, assignment in federations:
        samples = read_facts(dataset)
        parts = [
            pd.DataFrame({"client": client, "sample": rows, "split": split})
            for split, held in assignment.sides().items()
            for client, rows in enumerate(held)
        ]
        frame = pd.concat(parts, ignore_index=True).sort_values(["client", "split", "sample"], ignore_index=True)
        frame["label"] = samples.labels[frame["sample"]]
        for name, attribute in samples.attributes.items():
            frame[name] = np.array(attribute.names)[attribute.values[frame["sample"]]]
        frame.insert(0, "federation", run.federation_id)
        frame.insert(1, "seed", run.seed)
        frames.append(frame)
    return frames, left
