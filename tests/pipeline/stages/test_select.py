"""Trials are trained, one is chosen by what it gave on validation samples, and runs are trained with that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from support.project import Project, make_project, spec
from support.report_demo import RECORD, rounds_table, write_records

from pflcore.artifacts import read_meta, write_table
from pflcore.errors import UserError
from pipeline.report.figures._costs import at_edge
from pipeline.spec.run import Run, short_hash
from pipeline.stages.results import select
from pipeline.workspace import RECORDS, run_path, selection_path

TUNE = """\
    seed: [0, 3]
table: {rows: [method], average_over: [seed]}
tune:
  space: {training.lr: [0.001, 0.3, 0.1]}
  where: {method: FedAvg}
  seeds: [7, 8]
  trial: {training: {rounds: 3}}
"""
SPEC = spec(partition="{name: iid, validation_share: 0.3}", rounds=4, more=TUNE)


def rounds(project: Project, run: str) -> pd.DataFrame:
    table = pd.read_parquet(project.root / run_path(run, "rounds.parquet"))
    return table[["round", "client", "population", "correct", "total", "loss"]].astype({"population": str})


def test_the_best_on_validation_samples_is_chosen_trained_and_reported(tmp_path: Path) -> None:
    project = make_project(tmp_path / "tuned", {"specs/tiny.yaml": SPEC}, default=["tiny"])
    project.compile()
    project.execute(compilation := project.compiled())
    (selection,) = compilation.selections.values()
    means = []
    for trial in selection.trials:
        tables = [rounds(project, run.id) for run in trial.runs]  # the window is of one round
        own = [one[(one["population"] == "validation") & one["round"].isin([2, 3])] for one in tables]
        sums = [one.groupby("round")[["correct", "total"]].sum() for one in own]
        means.append(sum((100 * one["correct"] / one["total"]).mean() for one in sums) / 2)
    written = json.loads((project.root / selection_path(selection.id)).read_text())
    assert [trial["mean"] for trial in written["trials"]] == pytest.approx(means) and len(set(means)) == 3
    chosen = written["chosen"]
    assert chosen == selection.trials[max(range(3), key=means.__getitem__)].chosen
    # Tuned runs are the runs with what was chosen.
    text = SPEC.partition("tune:")[0].replace(" lr: 0.1", f" lr: {chosen['training.lr']}")
    by_hand = make_project(tmp_path / "by_hand", {"specs/tiny.yaml": text})
    by_hand.compile()
    by_hand.execute(plain := by_hand.compiled())
    runs = {(run.method, run.seed): run.id for run in plain.runs.values()}
    tuned = [run for run in compilation.runs.values() if run.tuned]
    assert len(tuned) == 2
    for run in tuned:
        assert rounds(project, run.id).equals(rounds(by_hand, runs["fedavg", run.seed]))
        assert read_meta(project.root / run_path(run.id, "rounds.parquet"), "rounds/2")["chosen"] == chosen
    page = (project.root / "reports/tiny/report.md").read_text(encoding="utf-8")
    section = page.partition("## Tuning")[2].partition("## Partitions")[0]
    assert "To choose from: training.lr 0.001, 0.3, 0.1." in section and "FedPer" not in section
    (line,) = [line for line in section.splitlines() if line.startswith("| FedAvg")]
    star = "" if chosen["training.lr"] == 0.1 else "\\*"
    assert line.split()[:6] == ["|", "FedAvg", "|", f"{chosen['training.lr']}{star}", "|", "3"]
    assert "3 of 3" in line and "18 (4.5×)" in line
    tried = pd.read_csv(project.root / "reports/tiny/figures/tuning.csv")
    assert len(tried) == 6 and tried["chosen"].sum() == 2 and sorted(set(tried["training.lr"])) == [0.001, 0.1, 0.3]


def choose(folder: Path, accuracies: dict[float, list[int | None]]) -> Any:
    """Return what is chosen among learning rates, given what trials got right of 100; None for one that diverged."""
    short = {"training": {"rounds": 7}, "evaluation": {"every": 7, "window": 1, "curve_every": 7}}
    trials, records = [], {}
    for rate, values in accuracies.items():
        runs = [Run(RECORD | short | {"seed": index, "clients": int(1000 * rate)}) for index in range(len(values))]
        for run, value in zip(runs, values, strict=True):
            rows = rounds_table([7, 7], [0, 0], [3, value or 0], [100, 100], [1.0, 1.0])
            rows = rows.set_column(2, "population", pa.array(["test", "validation"]))
            diverged = {"round": 2, "client": 0} if value is None else None
            write_table(folder / run.id / "rounds.parquet", rows, "rounds/2", diverged=diverged)
            records[run.id] = run.record
        trials.append({"chosen": {"training.lr": rate}, "runs": [run.id for run in runs]})
    record = {"space": {"training.lr": [1]}, "size": 3, "rounds": 9, "trials": trials}
    id_ = f"s-{short_hash([record['space'], [[one['chosen'], one['runs']] for one in trials]])}"
    write_records(folder, records | {id_: record})
    select(id_, folder / RECORDS, folder, folder / "out.json")
    return json.loads((folder / "out.json").read_text())["chosen"]["training.lr"]


def test_which_trial_is_chosen(tmp_path: Path) -> None:
    assert choose(tmp_path / "means", {0.1: [50, 70], 0.2: [61, 60]}) == 0.2
    assert choose(tmp_path / "equal", {0.3: [60], 0.1: [60], 0.2: [59]}) == 0.3  # the first
    assert choose(tmp_path / "diverged", {0.1: [99, None], 0.2: [10, 11]}) == 0.2
    with pytest.raises(UserError, match="all 2 trials diverged; widen the space"):
        choose(tmp_path / "none", {0.1: [None], 0.2: [None]})
    assert at_edge(0.3, [0.001, 0.3, 0.1]) and at_edge(0.001, [0.001, 0.3, 0.1])
    assert not any((at_edge(0.1, [0.001, 0.3, 0.1]), at_edge("sgd", ["sgd", "adam"]), at_edge(0.1, [0.1])))
