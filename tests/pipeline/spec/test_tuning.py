"""Trials of a spec: which combinations are tried, under which seeds, and for which runs."""

from pathlib import Path

import pytest
from support.fake_catalog import BASE, resolved

from pflcore.errors import UserError

HELD_BACK = BASE.replace("dirichlet", "{name: dirichlet, validation_share: 0.2}")
GRID = f"""\
grid:
  base: {HELD_BACK}
  axes:
    method: {{FedAvg: fedavg, FedTP: fedtp}}
    seed: [0, 3]
table: {{rows: [method], average_over: [seed]}}
"""
TUNE = """\
tune:
  space: {training.lr: [0.01, 0.1, 0.5], training.local_epochs: [1, 2]}
  also:
    - when: {method: FedTP}
      space: {method.server_lr: [0.1, 1.0]}
      trial: {training: {rounds: 3, sample_rate: 0.5}}
  seeds: [7, 8]
  trial: {training: {rounds: 1}}
"""


def test_combinations_are_tried_under_seeds_of_their_own(tmp_path: Path) -> None:
    def tried(text: str, profile: str = "paper") -> tuple:
        result = resolved(tmp_path, text, profile)
        by_method = {name.partition("-")[0]: selection for name, selection in result.selections.items()}
        return result, by_method["fedavg"], by_method["fedtp"]

    result, plain, longer = tried(GRID + TUNE)
    assert [(len(one.trials), one.size) for one in (plain, longer)] == [(6, 6), (12, 12)]
    assert [tuple(trial.chosen.values()) for trial in plain.trials[:3]] == [(0.01, 1), (0.01, 2), (0.1, 1)]
    third = [(run.seed, run.training.lr, run.training.rounds, run.tuned) for run in plain.trials[2].runs]
    assert third == [(7, 0.1, 1, None), (8, 0.1, 1, None)]
    run = longer.trials[1].runs[0]  # as `also` says
    assert (run.options("method")["server_lr"], run.training.rounds, run.training.sample_rate) == (1.0, 3, 0.5)
    assert longer.record["rounds"] == 72
    # One choice for both seeds of a method's runs, which are those of the table.
    final = [run for run in result.runs if run.tuned]
    assert len(final) == 4 and len(result.runs) == 4 + 2 * 18
    assert {run.tuned for run in final if run.method == "fedavg"} == {plain.id}
    assert {run.id for run in final} == set(result.table.runs) == set(result.table.tuned)
    small = tried(GRID + TUNE, "smoke")[2].trials[0].runs[0]
    assert (small.record["profile"], small.training.batch_size) == ("smoke", 16)
    (_, *some), (_, *again) = (tried(f"{GRID}{TUNE}  trials: 5\n") for _ in range(2))  # a random set
    assert [one.size for one in some] == [6, 12] and [one.id for one in some] == [one.id for one in again]
    for one in some:
        drawn = [tuple(trial.chosen.values()) for trial in one.trials]
        assert len(set(drawn)) == 5 and drawn == sorted(drawn)  # in the order of the grid, which ascends here


def test_an_axis_may_be_whether_runs_are_tuned(tmp_path: Path) -> None:
    grid = GRID.replace("    seed:", "    way: {as it is: {}, tuned: {}}\n    seed:")
    grid = grid.replace("average", "columns: [way], average")
    result = resolved(tmp_path, f"{grid}tune: {{where: {{way: tuned}}, space: {{training.lr: [0.01, 0.1]}}}}\n")
    tuned = {run.id for run in result.runs if run.tuned}
    for shown in result.table.cells:
        assert len(shown.runs) == 2 and {run in tuned for run in shown.runs} == {shown.labels["way"] == "tuned"}
    with pytest.raises(UserError, match="way: has no effect"):
        resolved(tmp_path, grid)
