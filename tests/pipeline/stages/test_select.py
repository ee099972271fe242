"""Trials are trained, one is chosen by what it gave on validation samples, and runs are trained with that."""

import json

import pandas as pd
import pytest
from support.project import make_project, spec

from pflcore.artifacts import read_meta, read_table, write_table
from pflcore.errors import UserError
from pipeline.report.figures._costs import at_edge
from pipeline.stages.results import select
from pipeline.workspace import RECORDS, RUNS, run_path, selection_path

SEEDS = "    seed: [0, 3]\ntable: {rows: [method], average_over: [seed]}\n"
TUNE = """\
tune:
  space: {training.lr: [0.001, 0.3, 0.1]}
  where: {method: FedAvg}
  seeds: [7, 8]
  trial: {training: {rounds: 3}}
"""
SPEC = spec(partition="{name: iid, validation_share: 0.3}", rounds=4, more=SEEDS)


def rounds(project, run):
    table = pd.read_parquet(project.root / run_path(run, "rounds.parquet"))
    return table[["round", "client", "population", "correct", "total", "loss"]].astype({"population": str})


def test_the_best_on_validation_samples_is_chosen_trained_and_reported(tmp_path):
    def executed(name, text):
        project = make_project(tmp_path / name, {"specs/tiny.yaml": text}, default=["tiny"])
        project.compile()
        project.execute(compilation := project.compiled())
        return project, compilation

    project, compilation = executed("tuned", SPEC + TUNE)
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
    rate = chosen["training.lr"]
    by_hand, plain = executed("by_hand", SPEC.replace(" lr: 0.1", f" lr: {rate}"))
    runs = {(run.method, run.seed): run.id for run in plain.runs.values()}
    tuned = [run for run in compilation.runs.values() if run.tuned]
    assert len(tuned) == 2
    for run in tuned:
        assert rounds(project, run.id).equals(rounds(by_hand, runs["fedavg", run.seed]))
        assert read_meta(project.root / run_path(run.id, "rounds.parquet"), "rounds/2")["chosen"] == chosen
    page = (project.root / "reports/tiny/report.md").read_text(encoding="utf-8")
    section = page.partition("## Tuning")[2].partition("## Partitions")[0]
    assert "To choose from: training.lr 0.001, 0.3, 0.1." in section and "FedPer" not in section
    shown = str(rate) if rate == 0.1 else f"{rate}\\*"  # at the edge of the space
    (line,) = [line for line in section.splitlines() if line.startswith("| FedAvg")]
    assert line.split()[:6] == ["|", "FedAvg", "|", shown, "|", "3"]
    assert "3 of 3" in line and "18 (4.5×)" in line
    tried = pd.read_csv(project.root / "reports/tiny/figures/tuning.csv")
    assert len(tried) == 6 and tried["chosen"].sum() == 2 and sorted(set(tried["training.lr"])) == [0.001, 0.1, 0.3]
    # Of equal trials the first is chosen, and none that diverged under any seed.
    out = tmp_path / "out.json"
    same, _ = read_table(project.root / run_path(tuned[0].id, "rounds.parquet"), "rounds/2")

    def choose(*diverged):
        for number, trial in enumerate(selection.trials):
            end = {"round": 2, "client": 0} if number in diverged else None
            for run, state in zip(trial.runs, (None, end), strict=True):
                write_table(project.root / run_path(run.id, "rounds.parquet"), same, "rounds/2", diverged=state)
        select(selection.id, project.root / RECORDS, project.root / RUNS, out)
        return json.loads(out.read_text())["chosen"]

    assert choose() == selection.trials[0].chosen and choose(0) == selection.trials[1].chosen
    with pytest.raises(UserError, match="all 3 trials diverged; widen the space"):
        choose(0, 1, 2)


def test_values_at_the_edge_of_a_space():
    assert at_edge(0.3, [0.001, 0.3, 0.1]) and at_edge(0.001, [0.001, 0.3, 0.1])
    assert not any((at_edge(0.1, [0.001, 0.3, 0.1]), at_edge("sgd", ["sgd", "adam"]), at_edge(0.1, [0.1])))
