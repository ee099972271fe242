"""A longer run continues from the last checkpoint of a shorter one where it may, with the bytes of a whole one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.damage import flip
from support.project import VIT, tree
from support.runner import Runner, runner
from support.tiny import first_fitting, method, result_bytes, run, spied, training

from pflcore.engine import CheckpointFolder, Progress, Result
from pflcore.engine.checkpoint import round_of, stored
from pflcore.method import PROGRESS, Method, Update
from pflcore.methods import METHODS
from pflcore.settings import Evaluation, Training
from pipeline.spec.run import Run
from pipeline.stages.identity import lineage_hash, run_hash

CPU = torch.device("cpu")
LAST, CURVE, SECOND = (Evaluation(window=0, curve_every=every) for every in (0, 1, 2))


def record(entry: Method, settings: Training) -> dict[str, Any]:
    return {
        "method": {"name": entry.name, **dataclasses.asdict(entry)},
        "training": dataclasses.asdict(settings),
        "evaluation": dataclasses.asdict(CURVE),
        "analyses": [{"name": "noise"}],
        "seed": 3,
    }


def lineage(run: Run, code: str = "2-noise", data: str = "d", device: torch.device = CPU) -> str:
    return lineage_hash(run, code, {"dataset_hash": data}, device)


class Workshop:
    """Runs that leave their last checkpoints to each other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.states = folder, folder / "states"
        self.lines: list[str] = []

    def run(self, name: str, rounds: int, evaluation: Evaluation = CURVE, stop: int = 0, **settings: Any) -> Result:
        """Train a run to its end, which is that of one that is trained from its beginning; or `stop` in a round."""
        trained: list[list[Update]] = []
        entry, chosen = method(name), training(rounds=rounds, local_epochs=1, momentum=0.5, **settings)

        def on_round(progress: Progress) -> None:
            if progress.round == stop:
                raise InterruptedError

        own = self.folder / "own"
        arguments: dict[str, Any] = {"training": chosen, "evaluation": evaluation}
        folder = CheckpointFolder(own, "me", self.lines.append, lineage(Run(record(entry, chosen))), self.states)
        with folder:
            more: dict[str, Any] = {"checkpoint_every": 0.0 if stop else 60.0, "on_round": on_round}
            result = run(spied(entry, trained), first_fitting(entry), **arguments, checkpoints=folder, **more)
            folder.archive()
        assert stored(own) == [] and len(trained) == rounds - result.resumed_from
        assert result_bytes(result) == result_bytes(run(entry, first_fitting(entry), **arguments))
        return result

    def rounds(self) -> list[int]:
        return sorted(map(round_of, stored(self.states)))


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


FEW = ("fedavg", "fedtp", "ditto", "fedrep", "fedofa")


@pytest.mark.parametrize(
    "name", [one if one in FEW else pytest.param(one, marks=pytest.mark.matrix) for one in METHODS.names()]
)
def test_a_longer_run_gives_the_bytes_of_one_from_the_beginning(name: str, workshop: Workshop) -> None:
    workshop.run(name, 2)
    # Where the method asks for the progress, runs of other lengths are of other lineages.
    assert workshop.run(name, 4).resumed_from == (0 if PROGRESS in method(name).facts else 2)


@pytest.mark.parametrize(
    ("first", "second", "begins", "settings"),
    [
        ((2,), (4,), 0, {"schedule": "cosine"}),  # goes by the number of rounds
        ((2,), (4,), 0, {"schedule": "linear", "warmup": 1, "schedule_by": "step"}),
        ((2,), (4,), 2, {"schedule": "step", "step_every": 1, "gamma": 0.5, "warmup": 1}),
        ((2,), (4,), 2, {"server_optimizer": "yogi"}),
        ((4, LAST), (6, LAST), 4, {}),  # whose measurement is left out
        ((4, LAST), (2, LAST), 0, {}),
        ((4, LAST), (4, CURVE), 0, {}),  # nobody measured rounds 1 to 3
        ((3, SECOND), (4, SECOND), 3, {}),
    ],
)
def test_where_a_longer_run_begins(
    first: Any, second: Any, begins: int, settings: dict[str, Any], workshop: Workshop
) -> None:
    workshop.run("fedper", *first, **settings)
    assert workshop.run("fedper", *second, **settings).resumed_from == begins


def test_which_state_is_taken_and_which_are_replaced(workshop: Workshop) -> None:
    for rounds in (4, 2):
        workshop.run("fedavg", rounds)
    assert workshop.rounds() == [2, 4]
    assert workshop.run("fedavg", 3).resumed_from == 2 and workshop.rounds() == [3, 4]
    flip(next(path for path in stored(workshop.states) if round_of(path) == 4))
    assert workshop.run("fedavg", 5).resumed_from == 3 and workshop.rounds() == [5]
    assert len(workshop.lines) == 1 and workshop.lines[0].endswith("its content does not match its name; skipped")
    # One that was stopped goes on from its own checkpoint.
    with pytest.raises(InterruptedError):
        workshop.run("fedavg", 8, stop=7)
    result = workshop.run("fedavg", 8)
    assert (result.resumed_from, result.inherited) == (6, False)


def test_what_a_lineage_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = record(method("fedprox"), training())
    one = Run(before)
    for same, changes in {
        True: [{"training": {"rounds": 9, "save_weights": True, "patience": 3}}, {"tuned": {"selection": "a"}}],
        False: [{"training": {"lr": 0.9}}, {"evaluation": {"every": 7}}, {"method": {"mu": 7.0}}, {"seed": 4}],
    }.items():
        for change in changes:
            parts = {
                name: {**before.get(name, {}), **part} if isinstance(part, dict) else part
                for name, part in change.items()
            }
            two = Run({**before, **parts})
            assert run_hash(one, "code", {}, CPU) != run_hash(two, "code", {}, CPU)
            assert (lineage(one) == lineage(two)) == same, change
    hashes = {lineage(one), lineage(one, data="e"), lineage(one, "3-noise"), lineage(one, device=torch.device("meta"))}
    for place, value in (("torch.__version__", "9.9"), ("torch.backends.cpu.get_cpu_capability", lambda: "AVX9000")):
        with monkeypatch.context() as patch:
            patch.setattr(place, value)
            hashes.add(lineage(one))
    assert len(hashes) == 6


def rounds_trained(one: Runner) -> int:
    one.train()
    timing = json.loads((one.project.root / f".pfl/timings/{one.run.id}.json").read_text(encoding="utf-8"))
    return int(timing["rounds"])


def test_the_stage_leaves_the_same_files(tmp_path: Path) -> None:
    whole, longer = runner(tmp_path / "whole", "fedtp", VIT), runner(tmp_path / "longer", "fedtp", VIT)
    for one in (whole, longer):
        one.change(evaluation={"window": 2})
    assert rounds_trained(longer) == 4 and rounds_trained(longer) == 0
    for one in (whole, longer):
        one.change(training={"rounds": 7})
    longer.said.clear()
    assert rounds_trained(whole) == 7 and rounds_trained(longer) == 3
    assert tree(longer.out) == tree(whole.out) and set(tree(whole.out)) == {"rounds.parquet", "weights.safetensors"}
    assert longer.said == [f"{longer.run.id}: continued from 4 rounds of an earlier run"]
    assert longer.checkpoints() == []
