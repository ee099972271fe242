"""What `tune` compiles to: trials, selections, and the runs that wait for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_catalog import BASE, resolved

from pflcore.errors import UserError
from pipeline.spec.tuning import Selection

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


def selections(folder: Path, text: str, profile: str = "paper") -> dict[str, Selection]:
    """Return selections by method."""
    found = resolved(folder, text, profile).selections
    return {name.split("-")[0]: selection for name, selection in found.items()}


def test_combinations_are_tried_under_seeds_of_their_own(tmp_path: Path) -> None:
    result, found = resolved(tmp_path, GRID + TUNE), selections(tmp_path, GRID + TUNE)
    sizes = {method: (len(one.trials), one.size) for method, one in found.items()}
    assert sizes == {"fedavg": (6, 6), "fedtp": (12, 12)}
    assert [tuple(trial.chosen.values()) for trial in found["fedavg"].trials[:3]] == [(0.01, 1), (0.01, 2), (0.1, 1)]
    third = [(run.seed, run.training.lr, run.training.rounds, run.tuned) for run in found["fedavg"].trials[2].runs]
    assert third == [(7, 0.1, 1, None), (8, 0.1, 1, None)]
    tried = found["fedtp"].trials[1].runs[0]  # longer, as `also` says
    assert (tried.options("method")["server_lr"], tried.training.rounds, tried.training.sample_rate) == (1.0, 3, 0.5)
    assert found["fedtp"].record["rounds"] == 72
    # One choice for both seeds of a method's runs, which are those of the table.
    final = [run for run in result.runs if run.tuned]
    assert len(final) == 4 and len(result.runs) == 4 + 2 * 18 and result.table is not None
    assert {run.tuned for run in final if run.method == "fedavg"} == {found["fedavg"].id}
    assert {run.id for run in final} == set(result.table.runs) == set(result.table.tuned)
    small = selections(tmp_path, GRID + TUNE, "smoke")["fedtp"].trials[0].runs[0]
    assert (small.record["profile"], small.training.batch_size) == ("smoke", 16)
    found, again = (selections(tmp_path, f"{GRID}{TUNE}  trials: 5\n") for _ in range(2))
    for method, size in (("fedavg", 6), ("fedtp", 12)):  # a random set
        drawn = [tuple(trial.chosen.values()) for trial in found[method].trials]
        assert len(set(drawn)) == 5 and drawn == sorted(drawn)  # in the order of the grid, which ascends here
        assert found[method].size == size and found[method].id == again[method].id
    names = ("lr", "momentum", "beta1", "beta2", "eps", "clip", "gamma")
    space = {f"training.{name}": [number / 1000 for number in range(1, 900)] for name in names}
    with pytest.raises(UserError, match=r"tune: 5e\+20 combinations for fedavg.*narrow the space"):
        resolved(tmp_path, f"{GRID}tune: {{space: {space}, trials: 5}}\n".replace("'", ""))


def test_an_axis_may_be_whether_runs_are_tuned(tmp_path: Path) -> None:
    grid = GRID.replace("    seed:", "    way: {as it is: {}, tuned: {}}\n    seed:")
    grid = grid.replace("average", "columns: [way], average")
    result = resolved(tmp_path, f"{grid}tune: {{where: {{way: tuned}}, space: {{training.lr: [0.01, 0.1]}}}}\n")
    assert result.table is not None
    tuned = {run.id for run in result.runs if run.tuned}
    for cell in result.table.cells:
        assert len(cell.runs) == 2 and {run in tuned for run in cell.runs} == {cell.labels["way"] == "tuned"}
    with pytest.raises(UserError, match="way: has no effect"):
        resolved(tmp_path, grid)
