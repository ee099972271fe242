"""A study in Python: results, tables, runs and partitions as DataFrames, and trained models."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflcore.artifacts import read_table
from pflcore.data.assignment import Assignment
from pflcore.data.sample_files import read_facts
from pflcore.engine.trained import ClientModel, Trained
from pflcore.errors import UserError
from pipeline.library.models import trained
from pipeline.library.spec_results import KEPT, MISSING, STALE, TRAINED, SpecResults, find_run
from pipeline.report.frame import concat_runs, run_labels, tidy_rounds
from pipeline.spec.run import Run
from pipeline.spec.specs import find_specs
from pipeline.workspace import PAPER, Workspace, report_path


class NotUpToDate(UserWarning):
    """A warning: a result is missing or stale, that is, not trained with the present code and settings."""


def _warn(results: SpecResults, line: str) -> None:
    warnings.warn(f"{line}; type `{results.command}`", NotUpToDate, stacklevel=3)


def _run_rows(results: SpecResults, run: Run) -> list[dict[str, Any]]:
    """Return a run's main settings and state as a row, once for each of its places in the table."""
    state = results.state(run)
    row: dict[str, Any] = {"run": run.id, "seed": run.seed, "state": state}
    row |= {name: getattr(run, name) for name in ("method", "backbone", "dataset", "partition", "clients")}
    row |= {"rounds": run.training.rounds, "federation": run.federation_id}
    if state in (TRAINED, KEPT):
        rounds, facts = results.rounds(run)
        last = int(rounds["round"].to_numpy().max(initial=0))
        row |= {"diverged": facts.get("diverged") is not None, "last_round": last}
        row |= {name: facts.get(name) for name in ("device", "communicated_up", "communicated_down", "chosen", "kept")}
    # An axis may have the name of a column, as `method` often has; then the column has the table's label.
    return [{**labels, **row, **labels} for labels in run_labels(results.table, run.id)]


def _assignment_frame(run: Run, dataset: Path, assignment: Assignment) -> pd.DataFrame:
    samples = read_facts(dataset)
    parts = [
        pd.DataFrame({"client": client, "sample": rows, "split": split})
        for split, client_rows in assignment.sides().items()
        for client, rows in enumerate(client_rows)
    ]
    frame = pd.concat(parts, ignore_index=True).sort_values(["client", "split", "sample"], ignore_index=True)
    frame["label"] = samples.labels[frame["sample"]]
    for name, attribute in samples.attributes.items():
        frame[name] = np.array(attribute.names)[attribute.values[frame["sample"]]]
    frame.insert(0, "federation", run.federation_id)
    frame.insert(1, "seed", run.federation["seed"])
    return frame


@dataclass(frozen=True)
class Study:
    """A folder of specs and their results, read-only: no method trains or writes anything.

    Specs are compiled at every call. Stale runs, whose code, data or settings have changed since the training, are left
    out with a warning, :class:`NotUpToDate`, which names the command to type. An unknown name, or a spec without any
    results, raises :class:`UserError`. docs/python.md describes the columns.
    """

    workspace: Workspace

    @property
    def specs(self) -> list[str]:
        """The names of all specs."""
        return list(find_specs(self.workspace.specs, {}))

    def results(self, spec: str) -> pd.DataFrame:
        """Return all measurements: a row per run, client, measured round and population, in the table's order.

        The rows of a run are repeated for each of its cells. Kept results have no losses of single clients.
        """
        results = SpecResults.load(self.workspace, spec)
        states = {run.id: results.state(run) for run in results.runs}
        usable = [run for run in results.runs if states[run.id] in (TRAINED, KEPT)]
        excluded = Counter(state for state in states.values() if state in (STALE, MISSING))
        if not usable:
            reason = "nothing is trained yet"
            if STALE in excluded:
                reason = "nothing of it is up to date, its code or data have changed"
            raise UserError(f"{results.spec}: {reason}; type `{results.command}`")
        if excluded:
            words = ", ".join(f"{count} {state}" for state, count in excluded.items())
            _warn(results, f"{results.spec}: {words} of {len(states)} runs are left out")
        return concat_runs(tidy_rounds(results.table, run.id, run.seed, *results.rounds(run)) for run in usable)

    def table(self, spec: str) -> pd.DataFrame:
        """Return ``table.parquet`` of the spec's report: a row per cell, with labels, published and obtained values,
        verdict, runs, and the value of each seed in ``by_seed``. Without a report it is made of the runs so far."""
        results = SpecResults.load(self.workspace, spec)
        path = f"{report_path(results.spec)}/table.parquet"
        if not (self.workspace.root / path).is_file():
            rows, missing = results.partial_table()
            lacking = f", and {missing} of its runs are missing" if missing else ""
            _warn(results, f"{results.spec}: no report has been made{lacking}")
            return pd.DataFrame(rows.to_pandas())
        if not results.recorded.holds(path):
            _warn(results, f"{path} is not up to date: specs, code or results have changed")
        rows, _ = read_table(self.workspace.root / path, "table/2")
        return pd.DataFrame(rows.to_pandas())

    def runs(self, spec: str) -> pd.DataFrame:
        """Return a row per run of a spec: labels, id, main settings and state."""
        results = SpecResults.load(self.workspace, spec)
        return pd.DataFrame([row for run in results.runs for row in _run_rows(results, run)])

    def partition(self, spec: str) -> pd.DataFrame:
        """Return the assignment of samples to clients: a row per federation of the spec, client and sample."""
        results = SpecResults.load(self.workspace, spec)
        federations, missing = results.assignments()
        if missing:
            _warn(results, f"{results.spec}: {missing} federations are left out, not made here or stale")
        return pd.concat([_assignment_frame(*federation) for federation in federations], ignore_index=True)

    def model(self, run: str, client: int, *, seed: int | None = None, device: str = "cpu") -> ClientModel:
        """Return a client's model as it was measured after the last round of a run (see :class:`ClientModel`).

        `run` is the id of a run, or a cell of a table, ``"quickstart: FedTP, pathological"``; if the cell has several
        seeds, give `seed` too. On the device of the training, the model predicts the same as when it was measured.
        """
        return self.trained(run, seed=seed, device=device).client(client)

    def trained(self, run: str, *, seed: int | None = None, device: str = "cpu") -> Trained:
        """Return a run whose ``client(7)`` returns a client's model. For many models: the data is read only once."""
        return trained(*find_run(self.workspace, run, seed), device)


def labels_of(table: pd.DataFrame) -> list[str]:
    """Return the axes of a table as :meth:`Study.table` returns it, which are its first columns after ``spec``."""
    return list(table.columns[1 : table.columns.get_loc("published_mean")])


def open(path: str | os.PathLike[str] = ".", profile: str = PAPER) -> Study:
    """Return the study in a folder or the nearest one above it; `profile` is the profile of its runs."""
    return Study(Workspace.find(Path(path), profile))
