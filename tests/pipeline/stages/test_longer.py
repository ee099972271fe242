"""Which runs train alike, and what the train stage makes of it: longer runs go on, others are measured only."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.project import CONVNET, VIT, tree
from support.runner import Runner, runner
from support.tiny import first_fitting, method, result_bytes, run, spied, training

from pflcore.engine import KeptStates, Progress
from pflcore.errors import UserError
from pflcore.method import PROGRESS, Federation, Method, Update
from pflcore.methods import METHODS
from pflcore.options import OptionInfo, describe_options
from pflcore.room import Room
from pflcore.settings import Evaluation, Training
from pipeline.spec.run import Run
from pipeline.stages.lineage import Lineage

CPU = torch.device("cpu")
CODE = {"stages/code/train.txt": "engine", "stages/code/analysis.noise.txt": "noise"}
CURVE = Evaluation(window=0, curve_every=1)


def record(entry: Method, settings: Training, evaluation: Evaluation = CURVE) -> dict[str, Any]:
    """The part of a run's record that says how it is trained and measured."""
    return {
        "method": {"name": entry.name, **dataclasses.asdict(entry)},
        "training": dataclasses.asdict(settings),
        "evaluation": dataclasses.asdict(evaluation),
        "analyses": [{"name": "noise"}],
        "seed": 3,
    }


def lineage(entry: Method, settings: Training, evaluation: Evaluation = CURVE) -> Lineage:
    return Lineage.of(Run(record(entry, settings, evaluation)), CODE, {"dataset_hash": "d"}, CPU)


# --- every method --------------------------------------------------------------------------------------------------

FEW = ("fedavg", "fedtp", "ditto", "fedkd")


@pytest.mark.parametrize(
    "name", [one if one in FEW else pytest.param(one, marks=pytest.mark.matrix) for one in METHODS.names()]
)
def test_a_longer_run_gives_the_bytes_of_one_from_the_beginning(name: str, tmp_path: Path) -> None:
    entry, seen, trained = method(name), list[list[Update]](), dict[int, int]()
    for rounds in (2, 4):
        settings, before = training(rounds=rounds, local_epochs=1, momentum=0.5), len(seen)
        mine = lineage(entry, settings)
        kept = KeptStates(Room(tmp_path, 2**30), mine.training, mine.measuring, pytest.fail)
        shared = spied(entry, seen)
        result = run(shared, first_fitting(entry), training=settings, evaluation=CURVE, kept=kept)
        trained[rounds] = len(seen) - before
    whole = run(entry, first_fitting(entry), training=settings, evaluation=CURVE)
    assert result_bytes(result) == result_bytes(whole)
    assert trained == {2: 2, 4: 4 if PROGRESS in entry.facts else 2}


SCHEDULES: list[tuple[dict[str, Any], int]] = [
    ({"schedule": "cosine"}, 4),
    ({"schedule": "step", "step_every": 1, "gamma": 0.5, "warmup": 1}, 2),
    ({"server_optimizer": "yogi"}, 2),
]


@pytest.mark.parametrize(("options", "trained"), SCHEDULES, ids=lambda value: str(value))
def test_a_longer_run_goes_on_unless_its_learning_rate_goes_by_the_rounds(
    options: dict[str, Any], trained: int, tmp_path: Path
) -> None:
    entry, counts = method("fedavg"), list[int]()
    for rounds in (2, 4):
        settings = training(rounds=rounds, local_epochs=1, **options)
        mine, seen = lineage(entry, settings), list[list[Update]]()
        kept = KeptStates(Room(tmp_path, 2**30), mine.training, mine.measuring, pytest.fail)
        result = run(spied(entry, seen), first_fitting(entry), training=settings, evaluation=CURVE, kept=kept)
        counts.append(len(seen))
    assert result_bytes(result) == result_bytes(run(entry, first_fitting(entry), training=settings, evaluation=CURVE))
    assert counts == [2, trained]


TUNING = ("groups", "steps", "epochs", "lr")


def other_value(option: OptionInfo) -> Any:
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    if option.type == "str":  # names of groups
        return ("head",)
    values = [2, 3] if option.type == "int" else [0.3, 0.6]
    other = next(value for value in values if value != option.default)
    return (other,) if option.many else other


# Methods that have nothing to tune, or tune already; that they refuse it is tested with them.
TUNED = ("per_fedavg", "fedala", "ifca", "pfedfda", "pfedgp")
REFUSED = {("fedproto", "finetune_groups"), *((name, f"finetune_{what}") for name in TUNED for what in TUNING)}
MEASURING = [
    (name, option.name)
    for name in METHODS.names()
    for option in describe_options(METHODS.get(name))
    if option.measuring and (name, option.name) not in REFUSED
]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param(*one, marks=() if one in {("fedavg", "finetune_lr"), ("knn_per", "knn")} else pytest.mark.matrix)
        for one in MEASURING
    ],
)
def test_an_option_of_measuring_changes_no_state(name: str, option: str) -> None:
    entry = method(name)
    if option in ("finetune_lr", "finetune_groups"):  # which say nothing alone
        entry = dataclasses.replace(entry, finetune_steps=1)
    (info,) = (one for one in describe_options(type(entry)) if one.name == option)
    other = dataclasses.replace(entry, **{option: other_value(info)})
    settings = training(rounds=3, momentum=0.5)
    one, two = (run(each, first_fitting(each), training=settings) for each in (entry, other))
    assert result_bytes(one)["weights"] == result_bytes(two)["weights"] and one.cost == two.cost
    assert lineage(entry, settings).training == lineage(other, settings).training
    assert lineage(entry, settings).measuring != lineage(other, settings).measuring


def test_what_acts_in_training_is_not_said_to_act_in_measuring() -> None:
    """The list, so that one more is a decision."""
    own = {option for _, option in MEASURING}
    assert own == {
        "knn",
        "knn_grid",
        "neighbours",
        "measured_chains",
        *(f"finetune_{what}" for what in ("parts", *TUNING)),
    }
    assert {one.name for one in describe_options(Training) if one.measuring} == {"save_weights"}
    assert all(one.measuring for one in describe_options(Evaluation))


def test_a_method_that_uses_the_number_of_rounds_says_so() -> None:
    def init_server(self: Any, initial: Any, roles: Any, federation: Federation) -> Any:
        assert federation.rounds > 0
        return super(fedavg, self).init_server(initial, roles, federation)

    fedavg = METHODS.get("fedavg")
    counting = type("Counting", (fedavg,), {"init_server": init_server})
    with pytest.raises(UserError, match=r"test_longer\.py:\d+: federation\.rounds must be asked for: facts = "):
        run(counting(), first_fitting(method("fedavg")))
    asking = type("Asking", (counting,), {"facts": (PROGRESS,)})
    assert run(asking(), first_fitting(method("fedavg"))).round[-1] == 2


# --- lineages ------------------------------------------------------------------------------------------------------

# What is changed, and which hashes change with it.
CHANGES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"training": {"rounds": 9}}, {"run"}),
    ({"training": {"save_weights": True}}, {"run"}),
    ({"training": {"patience": 3}}, {"run"}),
    ({"training": {"lr": 0.9}}, {"run", "training"}),
    ({"training": {"precision": "bf16"}}, {"run", "training"}),
    ({"evaluation": {"every": 7, "window": 9, "curve_every": 3}}, {"run"}),
    ({"method": {"knn": 0.5}}, {"run", "measuring"}),
    ({"method": {"mu": 0.5}}, {"run", "training"}),
    ({"method": {"also_personal": ["head"]}}, {"run", "training"}),
    ({"analyses": []}, {"run"}),
    ({"seed": 4}, {"run", "training"}),
]


@pytest.mark.parametrize(("change", "changed"), CHANGES)
def test_what_a_lineage_depends_on(change: dict[str, Any], changed: set[str]) -> None:
    before = record(method("fedprox"), training())
    parts = {field: {**before[field], **part} if isinstance(part, dict) else part for field, part in change.items()}
    hashes = [
        dataclasses.asdict(Lineage.of(Run(one), CODE, {"dataset_hash": "d"}, CPU))
        for one in (before, {**before, **parts})
    ]
    assert {name for name in hashes[0] if hashes[0][name] != hashes[1][name]} == changed


def test_a_lineage_depends_on_data_and_on_the_code_that_trains() -> None:
    one = Run(record(method("fedavg"), training()))
    hashes = {
        name: Lineage.of(one, {**CODE, **code}, {"dataset_hash": data}, CPU)
        for name, code, data in [
            ("same", {}, "d"),
            ("data", {}, "e"),
            ("engine", {"stages/code/train.txt": "edited"}, "d"),
            ("analysis", {"stages/code/analysis.noise.txt": "edited"}, "d"),
        ]
    }
    assert len({each.run for each in hashes.values()}) == 4
    assert hashes["analysis"].training == hashes["same"].training
    assert len({each.training for each in hashes.values()}) == 3


def test_states_are_of_a_kind_of_device_and_of_what_rounds_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Run(record(method("fedavg"), training()))
    here, there = (Lineage.of(one, CODE, {"dataset_hash": "d"}, device) for device in (CPU, torch.device("meta")))
    assert here.run != there.run and here.training != there.training and here.measuring == there.measuring
    for name, other in (("torch.__version__", "9.9"), ("torch.backends.cpu.get_cpu_capability", lambda: "AVX9000")):
        with monkeypatch.context() as patch:
            patch.setattr(name, other)
            after = Lineage.of(one, CODE, {"dataset_hash": "d"}, CPU)
        assert (after.run, after.measuring) == (here.run, here.measuring) and after.training != here.training


# --- the stage -----------------------------------------------------------------------------------------------------

SAVED = ", save_weights: true"


def made(folder: Path, name: str, backbone: str = CONVNET, **parts: dict[str, Any]) -> Runner:
    one = runner(folder, name, backbone, SAVED)
    one.change_record(lambda record: [record[part].update(change) for part, change in parts.items()])
    return one


def rounds_trained(one: Runner, **changes: Any) -> int:
    """Train as the project that leaves everything; the rounds that it took."""
    seen: list[Progress] = []
    one.train(room=Room(one.project.root / ".pfl/kept", 2**30), on_round=seen.append, **changes)
    timing = json.loads((one.project.root / f".pfl/timings/{one.run.id}.json").read_text(encoding="utf-8"))
    assert timing["rounds"] == len(seen)
    return len(seen)


@pytest.mark.parametrize(
    ("name", "backbone"),
    [
        pytest.param("fedavg", CONVNET, marks=pytest.mark.matrix),
        ("fedtp", VIT),
        pytest.param("ditto", "{name: lenet_bn, kernel: 3, padding: 1}", marks=pytest.mark.matrix),
    ],
)
def test_a_longer_run_leaves_the_same_files(name: str, backbone: str, tmp_path: Path) -> None:
    more = {"training": {"rounds": 7}, "evaluation": {"window": 2}}
    whole = made(tmp_path / "whole", name, backbone, **more)
    whole.train()
    longer = made(tmp_path / "longer", name, backbone)
    assert rounds_trained(longer) == 4
    for part, change in more.items():
        longer.change_record(lambda record, part=part, change=change: record[part].update(change))
    assert rounds_trained(longer) == 3
    assert tree(longer.out) == tree(whole.out) and set(tree(whole.out)) == {"rounds.parquet", "weights.safetensors"}
    assert longer.said == [f"{longer.run.id}: continued from 4 rounds of an earlier run"]


@pytest.mark.matrix
def test_a_method_with_a_schedule_over_all_rounds_starts_anew(tmp_path: Path) -> None:
    one = made(tmp_path, "fedkd")
    assert rounds_trained(one) == 4
    one.change_record(lambda record: record["training"].update(rounds=5))
    assert rounds_trained(one) == 5 and one.said == []
    one.change_record(lambda record: record["evaluation"].update(window=0, curve_every=0))
    assert rounds_trained(one) == 0


def test_the_weight_of_neighbours_is_measured_and_not_trained(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", "knn_per", method={"knn": 0.8})
    whole.train()
    one = made(tmp_path / "one", "knn_per")
    assert rounds_trained(one, keep_measured=True) == 4  # states of measured rounds are kept when asked for
    one.change_record(lambda record: record["method"].update(knn=0.8))
    assert rounds_trained(one) == 0 and tree(one.out) == tree(whole.out)


def test_an_analysis_is_made_of_a_state_that_is_there(tmp_path: Path) -> None:
    def analysed(one: Runner) -> None:
        one.change_record(lambda record: record.update(analyses=[{"name": "rollout"}]))

    whole, one = (made(tmp_path / name, "fedtp", VIT) for name in ("whole", "one"))
    assert rounds_trained(one) == 4
    analysed(whole)
    whole.train()
    analysed(one)
    code = {"train.txt": "one", "analysis.rollout.txt": "two"}
    assert rounds_trained(one, code=code) == 0
    assert (one.out / "analysis.parquet").read_bytes() == (whole.out / "analysis.parquet").read_bytes()
    assert rounds_trained(one, code={**code, "train.txt": "edited"}) == 4


def test_nothing_is_taken_or_left_without_room(tmp_path: Path) -> None:
    one = made(tmp_path, "fedavg")
    assert rounds_trained(one) == 4
    one.train()
    assert one.said == []
    assert rounds_trained(one) == 0 and one.said == [f"{one.run.id}: continued from 4 rounds of an earlier run"]
