"""A longer run continues from the last checkpoint of a shorter one where it may, with the bytes of a whole one."""

import dataclasses
import json

import pytest
import torch
from support.damage import flip
from support.project import VIT, tree
from support.runner import Runner
from support.tiers import few_of
from support.tiny import first_fitting, method, result_bytes, run, spied, stop_in, training

from pflcore.engine import CheckpointFolder
from pflcore.engine.checkpoint import round_of, stored
from pflcore.method import PROGRESS
from pflcore.methods import METHODS
from pflcore.settings import Evaluation
from pipeline.spec.run import Run
from pipeline.stages.identity import lineage_hash, run_hash

CPU = torch.device("cpu")
LAST, CURVE, SECOND = (Evaluation(window=0, curve_every=every) for every in (0, 1, 2))


def record(entry, settings):
    return {
        "method": {"name": entry.name, **dataclasses.asdict(entry)},
        "training": dataclasses.asdict(settings),
        "evaluation": dataclasses.asdict(CURVE),
        "analyses": [{"name": "noise"}],
        "seed": 3,
    }


def lineage(run, code="2-noise", data="d", device=CPU):
    return lineage_hash(run, code, {"dataset_hash": data}, device)


class Workshop:
    """Runs that leave their last checkpoints to each other."""

    def __init__(self, folder):
        self.own, self.states, self.lines = folder / "own", folder / "states", []

    def run(self, name, rounds, evaluation=CURVE, stop=0, **settings):
        """Train a run to its end, which is that of one that is trained from its beginning; or `stop` in a round."""
        trained, entry = [], method(name)
        arguments = {"training": training(rounds=rounds, local_epochs=1, momentum=0.5, **settings)}
        arguments["evaluation"] = evaluation
        shared = lineage(Run(record(entry, arguments["training"])))
        with CheckpointFolder(self.own, "me", self.lines.append, shared, self.states) as folder:
            more = {"checkpoint_every": 0.0 if stop else 60.0, "on_round": stop_in(stop), "checkpoints": folder}
            result = run(spied(entry, trained), first_fitting(entry), **arguments, **more)
            folder.archive()
        assert stored(self.own) == [] and len(trained) == rounds - result.resumed_from
        assert result_bytes(result) == result_bytes(run(entry, first_fitting(entry), **arguments))
        return result

    def rounds(self):
        return sorted(map(round_of, stored(self.states)))


@pytest.fixture
def workshop(tmp_path):
    return Workshop(tmp_path)


@pytest.mark.parametrize("name", few_of(METHODS.names(), ("fedavg", "fedtp", "ditto", "fedrep", "fedofa")))
def test_a_longer_run_gives_the_bytes_of_one_from_the_beginning(name, workshop):
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
def test_where_a_longer_run_begins(first, second, begins, settings, workshop):
    workshop.run("fedper", *first, **settings)
    assert workshop.run("fedper", *second, **settings).resumed_from == begins


def test_which_state_is_taken_and_which_are_replaced(workshop):
    for rounds in (4, 2):
        workshop.run("fedavg", rounds)
    assert workshop.rounds() == [2, 4]
    assert workshop.run("fedavg", 3).resumed_from == 2 and workshop.rounds() == [3, 4]
    flip(next(path for path in stored(workshop.states) if round_of(path) == 4))
    assert workshop.run("fedavg", 5).resumed_from == 3 and workshop.rounds() == [5]
    (line,) = workshop.lines
    assert line.endswith("its content does not match its name; skipped")
    # One that was stopped goes on from its own checkpoint.
    with pytest.raises(InterruptedError):
        workshop.run("fedavg", 8, stop=7)
    result = workshop.run("fedavg", 8)
    assert (result.resumed_from, result.inherited) == (6, False)


@pytest.mark.parametrize(
    ("part", "change", "same"),
    [
        ("training", {"rounds": 9, "save_weights": True, "patience": 3}, True),
        ("tuned", {"selection": "a"}, True),
        ("training", {"lr": 0.9}, False),
        ("evaluation", {"every": 7}, False),
        ("method", {"mu": 7.0}, False),
        ("seed", 4, False),
    ],
)
def test_what_a_lineage_depends_on(part, change, same, monkeypatch):
    before = record(method("fedprox"), training())
    one = Run(before)
    two = Run(before | {part: before.get(part, {}) | change if isinstance(change, dict) else change})
    assert run_hash(one, "code", {}, CPU) != run_hash(two, "code", {}, CPU)
    assert (lineage(one) == lineage(two)) == same
    hashes = {lineage(one), lineage(one, data="e"), lineage(one, "3-noise"), lineage(one, device=torch.device("meta"))}
    for place, value in (("torch.__version__", "9.9"), ("torch.backends.cpu.get_cpu_capability", lambda: "AVX9000")):
        with monkeypatch.context() as patch:
            patch.setattr(place, value)
            hashes.add(lineage(one))
    assert len(hashes) == 6


def test_the_stage_leaves_the_same_files(tmp_path):
    def rounds_trained(one):
        one.train()
        return json.loads((one.project.root / f".pfl/timings/{one.run.id}.json").read_text())["rounds"]

    whole, longer = Runner(tmp_path / "whole", "fedtp", VIT), Runner(tmp_path / "longer", "fedtp", VIT)
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
