"""What `tune` compiles to: trials, selections, and the runs that wait for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_catalog import write_specs
from support.paper_specs import catalog_of_all
from support.project import make_project, spec

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.spec.resolve import Resolved, resolve
from pipeline.spec.specs import load_spec
from pipeline.spec.table import train_stage
from pipeline.workspace import PAPER

HELD_BACK = "{name: iid, validation_share: 0.2}"
TUNE = """\
tune:
  space: {training.lr: [0.01, 0.1, 0.5], training.local_epochs: [1, 2]}
  also:
    - when: {method: FedTP}
      space: {method.server_lr: [0.1, 1.0]}
  seeds: [7, 8]
  trial: {training: {rounds: 1}}
"""
VIT = "{name: tiny_vit, depth: 1, dim: 8, heads: 1, head_dim: 8, mlp_dim: 8, patch: 4}"


def compiled(
    folder: Path,
    tune: str = TUNE,
    partition: str = HELD_BACK,
    more: str = "",
    *,
    seeds: str = "[0, 3]",
    training: str = "",
    profile: str = PAPER,
) -> Compilation:
    methods = "{FedAvg: fedavg, FedTP: fedtp}"
    table = "table: {rows: [method], average_over: [seed]}\n"
    more = f"    seed: {seeds}\n{more}{table}{tune}"
    text = spec(methods, partition=partition, backbone=VIT, training=training, more=more)
    return make_project(folder, {"specs/tiny.yaml": text}, default=["tiny"]).compiled(profile)


def selections(compilation: Compilation) -> dict[str, Any]:
    """By method."""
    return {name.split("-")[0]: selection for name, selection in compilation.selections.items()}


def test_all_combinations_are_tried_under_seeds_of_their_own(tmp_path: Path) -> None:
    compilation = compiled(tmp_path)
    found = selections(compilation)
    assert {method: (len(one.trials), one.size) for method, one in found.items()} == {
        "fedavg": (6, 6),
        "fedtp": (12, 12),
    }
    tried = [trial.chosen for trial in found["fedavg"].trials]
    assert tried[:3] == [
        {"training.lr": 0.01, "training.local_epochs": 1},
        {"training.lr": 0.01, "training.local_epochs": 2},
        {"training.lr": 0.1, "training.local_epochs": 1},
    ]
    third = found["fedavg"].trials[2].runs
    facts = [(run.seed, run.training.lr, run.training.rounds, run.tuned) for run in third]
    assert facts == [(7, 0.1, 1, None), (8, 0.1, 1, None)]
    assert found["fedtp"].trials[1].runs[0].options("method")["server_lr"] == 1.0
    assert found["fedtp"].record["rounds"] == 24
    # One choice for both seeds of a method's runs, which are those of the table.
    final = [run for run in compilation.runs.values() if run.tuned]
    assert len(final) == 4 and len(compilation.runs) == 4 + 2 * 18
    assert {run.tuned for run in final if run.method == "fedavg"} == {found["fedavg"].id}
    assert set(compilation.tables["tiny"].runs) == {run.id for run in final} == set(compilation.tables["tiny"].tuned)


def test_trials_of_some_runs_are_longer(tmp_path: Path) -> None:
    longer = "    - {when: {method: FedTP}, trial: {training: {rounds: 3, sample_rate: 0.5}}}\n  seeds: [7, 8]\n"
    found = selections(compiled(tmp_path, TUNE.replace("  seeds: [7, 8]\n", longer)))
    trials = {method: one.trials[0].runs[0].training for method, one in found.items()}
    assert {method: (one.rounds, one.sample_rate) for method, one in trials.items()} == {
        "fedavg": (1, 1.0),
        "fedtp": (3, 0.5),
    }


def test_an_axis_may_be_whether_runs_are_tuned(tmp_path: Path) -> None:
    more, table = "    settings: {one for all: {}, tuned: {}}\n", "columns: [settings], average_over"
    text = spec("{FedAvg: fedavg}", partition=HELD_BACK, more=f"    seed: [0, 3]\n{more}")
    tuned = "tune: {where: {settings: tuned}, space: {training.lr: [0.01, 0.1]}}\n"
    text += f"table: {{rows: [method], {table}: [seed]}}\n"
    compilation = make_project(tmp_path / "a", {"specs/tiny.yaml": text + tuned}, default=["tiny"]).compiled()
    cells = {cell.labels["settings"]: cell.runs for cell in compilation.tables["tiny"].cells}
    assert len(cells["one for all"]) == len(cells["tuned"]) == 2 and not {*cells["one for all"]} & {*cells["tuned"]}
    assert {bool(compilation.runs[run].tuned) for run in cells["tuned"]} == {True}
    with pytest.raises(UserError, match="settings: has no effect"):
        make_project(tmp_path / "b", {"specs/tiny.yaml": text}, default=["tiny"]).compiled()


def test_a_space_without_end_is_one_line(tmp_path: Path) -> None:
    values = ", ".join(str(number / 1000) for number in range(1, 900))
    names = ["lr", "momentum", "beta1", "beta2", "eps", "clip", "gamma"]
    space = ", ".join(f"training.{name}: [{values}]" for name in names)
    with pytest.raises(UserError, match=r"tune: 5e\+20 combinations for fedavg.*narrow the space"):
        compiled(tmp_path, f"tune: {{space: {{{space}}}, trials: 5}}\n")


def test_what_is_chosen_comes_before_the_run_and_the_report(tmp_path: Path) -> None:
    compilation = compiled(tmp_path)
    stages = {stage.name: stage for stage in compilation.stages}
    (final,) = (run for run in compilation.runs.values() if run.tuned and run.method == "fedavg" and run.seed == 3)
    choice = f"artifacts/selections/{final.tuned}.json"
    assert choice in stages[train_stage(final)].deps and choice in stages["evaluate-tiny"].deps
    select = stages[final.tuned or ""]
    assert select.outs == (choice,) and select.kind == "select" and select.file == "stages/selections/dvc.yaml"
    assert sum(dep.endswith("/rounds.parquet") for dep in select.deps) == 12
    trial = next(run for run in compilation.runs.values() if not run.tuned)
    assert not [dep for dep in stages[train_stage(trial)].deps if "selections" in dep]


def test_a_random_set_of_equal_budget(tmp_path: Path) -> None:
    found = selections(compiled(tmp_path / "a", TUNE + "  trials: 5\n"))
    assert {method: (len(one.trials), one.size) for method, one in found.items()} == {
        "fedavg": (5, 6),
        "fedtp": (5, 12),
    }
    for one in found.values():
        tried = [tuple(trial.chosen.values()) for trial in one.trials]
        assert len(set(tried)) == 5 and tried == sorted(tried)  # in the order of the grid, which ascends here
    again = selections(compiled(tmp_path / "b", TUNE + "  trials: 5\n"))
    assert {one.id for one in again.values()} == {one.id for one in found.values()}
    assert len(selections(compiled(tmp_path / "d", TUNE + "  trials: 9\n"))["fedavg"].trials) == 6


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ("space: {training.lrr: [1, 2]}", r"tiny\.yaml:\d+: tune\.space\.training\.lrr: no training has an option"),
        ("space: {lr: [1, 2]}", r"tune\.space\.lr: cannot be tuned"),
        ("space: {evaluation.every: [1, 2]}", "cannot be tuned"),
        ("space: {training.rounds: [1, 2]}", "cannot be tuned"),
        ("space: {training.lr: [0.1, 0.1]}", r"tune\.space\.training\.lr\[1\]: 0\.1 is there twice"),
        ("space: {training.lr: [0.1, -1]}", r"tune\.space\.training\.lr\[1\].*greater than 0"),
        ("space: {method.server_lr: [0.1, 1.0]}", r"tune\.space\.method\.server_lr\[0\]"),  # FedAvg has none
        ("space: {training.lr: []}", r"tune\.space\.training\.lr"),
        ("seeds: [7]", "names nothing to tune"),
        ("{space: {training.lr: [1, 2]}, seeds: [7, 3]}", r"tune\.seeds\[1\]: 3 is the seed of a run"),
        ("{space: {training.lr: [1, 2]}, seeds: [7, 7]}", "7 is there twice"),
        ("{space: {training.lr: [1, 2]}, trials: 0}", r"tune\.trials"),
        ("{space: {training.lr: [1, 2]}, where: {method: FedAgv}}", "unknown label 'FedAgv'; did you mean 'FedAvg'"),
        ("{space: {training.lr: [1, 2]}, trial: {training: {round: 1}}}", r"tune\.trial\.training\.round"),
        ("{space: {training.lr: [1, 2]}, budget: 3}", r"tune\.budget: unknown key"),
        ("{space: {training.lr: [1, 2]}, trial: {seed: 5}}", r"tune\.trial\.seed: trials have the `seeds`"),
        ("{space: {training.lr: [1, 2]}, trial: {training: {lr: 1}}}", r"tune\.trial\.training\.lr: is in the `space`"),
        ("{space: {training.lr: [1, 2]}, trial: {training: {patience: 1}}}", r"tune\.trial\.training\.patience: needs"),
        ("space: {training.patience: [1, 2]}", "cannot be tuned"),
        ("{space: {training.lr: [1, 2]}, also: [{when: {method: FedTP}}]}", r"tune\.also\[0\]: says nothing"),
        ("{space: {training.lr: [1, 2]}, where: {method: FedAvg}, also: [{when: {method: FedTP}, space: "
         "{training.clip: [1]}}]}", r"tune\.also\[0\]\.when: picks no run that is tuned"),
        ("space: {training.momentum: [0.9], training.nesterov: [true, false], training.optimizer: [sgd, adam]}",
         r"tune\.space\.training\.momentum\[0\]: training\.momentum is SGD's"),
        ("{space: {training.momentum: [0.5]}, trial: {training: {optimizer: sgd}}}", r"momentum is SGD's"),
    ],
)  # fmt: skip
def test_what_cannot_be_tuned(tune: str, message: str, tmp_path: Path) -> None:
    training = ", optimizer: adam" if "trial: {training: {optimizer" in tune else ""
    with pytest.raises(UserError, match=message):
        compiled(tmp_path, f"tune: {tune if tune.startswith('{') else '{' + tune + '}'}\n", training=training)


def test_without_samples_for_validation_nothing_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tune: chooses by accuracy on validation samples; set validation_share"):
        compiled(tmp_path, partition="iid")


def test_an_axis_states_its_own_values(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is an axis of the grid"):
        compiled(tmp_path, more="    training.lr: [0.1, 0.2]\n").tables["tiny"]


# Choosing a round: by validation, where samples are held back for it.

SPEC = """\
grid:
  base:
    dataset: digits
    partition: {name: iid, validation_share: 0.2}
    clients: 10
    backbone: convnet
  axes:
    method: [fedavg, local]
table:
  rows: [method]
  metric: best_by_validation
"""


def resolved(folder: Path, text: str, profile: str = "paper") -> Resolved:
    specs = write_specs(folder, {"specs/a.yaml": text})
    return resolve(load_spec(specs / "a.yaml", specs, catalog_of_all()), catalog_of_all(), profile)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(UserError) as error:
        resolved(folder, text)
    return str(error.value)


@pytest.mark.parametrize("profile", ["paper", "smoke"])
def test_by_validation(tmp_path: Path, profile: str) -> None:
    found = resolved(tmp_path, SPEC, profile)
    assert found.table and found.table.metric == "best_by_validation"
    assert [run.record["partition"]["validation_share"] for run in found.runs] == [0.2, 0.2]


@pytest.mark.parametrize("partition", ["iid", "{name: iid, validation_share: 0}"])
def test_by_validation_without_any(tmp_path: Path, partition: str) -> None:
    told = refused(tmp_path, SPEC.replace("{name: iid, validation_share: 0.2}", partition))
    assert told.startswith("specs/a.yaml:11: table.metric: 'best_by_validation' needs validation samples")


def test_ids_are_those_from_before(tmp_path: Path) -> None:
    plain = SPEC.replace("metric: best_by_validation", "metric: final")
    without = [plain.replace(", validation_share: 0.2", rest) for rest in ("", ", validation_share: 0")]
    ids = [{run.id for run in resolved(tmp_path, text).runs} for text in (plain, *without)]
    assert ids[1] == ids[2] and not ids[0] & ids[1]


PATIENT = SPEC.replace("best_by_validation", "final").replace(
    "backbone: convnet", "backbone: convnet\n    training: {patience: 3}\n    evaluation: {window: 0, curve_every: 5}"
)


@pytest.mark.parametrize("profile", ["paper", "smoke"])
def test_early_stopping(tmp_path: Path, profile: str) -> None:
    found = resolved(tmp_path, PATIENT, profile)
    assert [(run.training.patience, run.evaluation.window) for run in found.runs] == [(3, 0)] * 2
    assert found.runs[0].evaluation.curve_every > 0


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (", validation_share: 0.2", "", "needs validation samples; set the partition's validation_share"),
        ("window: 0", "window: 9", "needs evaluation.window: 0, not 9"),
        ("window: 0, ", "", "needs evaluation.window: 0, not 200"),
        ("every: 5", "every: 0", "needs evaluation.curve_every"),
    ],
)
def test_early_stopping_without_what_it_needs(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in PATIENT
    told = refused(tmp_path, PATIENT.replace(before, after))
    assert told.startswith(f"specs/a.yaml:7: grid.base.training.patience: {message}")
