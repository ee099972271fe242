"""A longer run continues from the last checkpoint of a shorter one where it may, with the bytes of a whole one."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.damage import empty, flip, shorten
from support.project import CONVNET, VIT, tree
from support.runner import Runner, runner
from support.tiny import first_fitting, method, result_bytes, run, spied, training

from pflcore.engine import CheckpointFolder, Progress, Result
from pflcore.engine.checkpoint import round_of, stored
from pflcore.errors import UserError
from pflcore.method import PROGRESS, Federation, Method, Update
from pflcore.methods import METHODS
from pflcore.settings import Evaluation, Training
from pipeline.spec.run import Run
from pipeline.stages.identity import lineage_hash, run_hash

CPU = torch.device("cpu")
CODE = "2-noise"
LAST = Evaluation(window=0, curve_every=0)
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


def lineage(entry: Method, settings: Training, code: str = CODE, data: str = "d", device: torch.device = CPU) -> str:
    return lineage_hash(Run(record(entry, settings)), code, {"dataset_hash": data}, device)


class Workshop:
    """Runs that leave their last checkpoints to each other. `trained` has the cohorts of the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.trained: list[list[Update]] = []

    def run(self, name: str, rounds: int, evaluation: Evaluation = CURVE, **settings: Any) -> Result:
        """Train a run to its end, which is that of one that is trained from its beginning."""
        self.trained = []
        entry, chosen = method(name), training(rounds=rounds, local_epochs=1, momentum=0.5, **settings)
        own = self.folder / "own"  # of one run after the other, as none leaves a checkpoint there
        with CheckpointFolder(own, "me", self.lines.append, lineage(entry, chosen), self.states) as folder:
            arguments: dict[str, Any] = {"training": chosen, "evaluation": evaluation}
            result = run(spied(entry, self.trained), first_fitting(entry), **arguments, checkpoints=folder)
            folder.archive()
        assert stored(own) == [] and len(self.trained) == rounds - result.resumed_from
        assert result.inherited == bool(result.resumed_from)
        assert result_bytes(result) == result_bytes(run(entry, first_fitting(entry), **arguments))
        return result

    @property
    def states(self) -> Path:
        return self.folder / "states"

    def rounds(self) -> list[int]:
        return sorted(map(round_of, stored(self.states)))


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


# --- what continues ------------------------------------------------------------------------------------------------

FEW = ("fedavg", "fedtp", "ditto", "fedkd", "fedrep", "fedofa")


@pytest.mark.parametrize(
    "name", [one if one in FEW else pytest.param(one, marks=pytest.mark.matrix) for one in METHODS.names()]
)
def test_a_longer_run_gives_the_bytes_of_one_from_the_beginning(name: str, workshop: Workshop) -> None:
    workshop.run(name, 2)
    entry = method(name)
    # Where the method asks for the progress, runs of other lengths are of other lineages.
    assert workshop.run(name, 4).resumed_from == (0 if PROGRESS in entry.facts else 2)


@pytest.mark.parametrize(
    ("options", "begins"),
    [
        ({"schedule": "cosine"}, 0),
        ({"schedule": "linear", "warmup": 1, "schedule_by": "step"}, 0),
        ({"schedule": "step", "step_every": 1, "gamma": 0.5, "warmup": 1}, 2),
        ({"server_optimizer": "yogi"}, 2),
        ({"server_optimizer": "momentum"}, 2),
    ],
    ids=str,
)
def test_a_longer_run_continues_unless_its_learning_rate_goes_by_the_rounds(
    options: dict[str, Any], begins: int, workshop: Workshop
) -> None:
    workshop.run("fedavg", 2, **options)
    assert workshop.run("fedavg", 4, **options).resumed_from == begins


def windowed(window: int) -> Evaluation:
    return Evaluation(every=2, window=window, curve_every=0)


@pytest.mark.parametrize(
    ("first", "second", "begins"),
    [
        ((4, LAST), (6, LAST), 4),  # whose measurement is left out
        ((4, LAST), (4, LAST), 4),
        ((4, LAST), (2, LAST), 0),
        ((4, LAST), (4, CURVE), 0),  # nobody measured rounds 1 to 3
        ((4, windowed(4)), (6, windowed(4)), 4),
        ((4, windowed(4)), (7, windowed(7)), 0),  # 1 and 3 are to be measured, and 2 was
        ((3, Evaluation(window=0, curve_every=2)), (4, Evaluation(window=0, curve_every=2)), 3),
    ],
)
def test_what_has_to_be_measured_was_measured(
    first: tuple[int, Evaluation], second: tuple[int, Evaluation], begins: int, workshop: Workshop
) -> None:
    workshop.run("fedper", *first)
    assert workshop.run("fedper", *second).resumed_from == begins


def test_the_longest_that_is_short_enough_is_taken_and_shorter_ones_are_replaced(workshop: Workshop) -> None:
    workshop.run("fedavg", 4)
    workshop.run("fedavg", 2)
    assert workshop.rounds() == [2, 4]
    assert workshop.run("fedavg", 3).resumed_from == 2 and workshop.rounds() == [3, 4]
    assert workshop.run("fedavg", 5).resumed_from == 4 and workshop.rounds() == [5]


def test_a_run_that_was_stopped_goes_on_from_its_own_checkpoint(workshop: Workshop) -> None:
    def stop(progress: Progress) -> None:
        if progress.round == 4:
            raise InterruptedError

    workshop.run("fedavg", 2)
    entry, settings = method("fedavg"), training(rounds=5, local_epochs=1, momentum=0.5)
    own = CheckpointFolder(workshop.folder / "own", "me", pytest.fail, lineage(entry, settings), workshop.states)
    arguments: dict[str, Any] = {"training": settings, "evaluation": CURVE, "checkpoints": own, "checkpoint_every": 0}
    with own, pytest.raises(InterruptedError):
        run(entry, first_fitting(entry), **arguments, on_round=stop)
    with own:
        result = run(entry, first_fitting(entry), **arguments)
    assert (result.resumed_from, result.inherited) == (3, False)


@pytest.mark.parametrize("damage", [flip, shorten, empty])
def test_what_is_damaged_is_skipped(damage: Callable[[Path], None], workshop: Workshop) -> None:
    workshop.run("fedavg", 4)
    workshop.run("fedavg", 2)
    newest = stored(workshop.states)[0]
    damage(newest)
    assert workshop.run("fedavg", 5).resumed_from == 2
    assert workshop.lines == [f"{newest}: its content does not match its name; skipped"] and workshop.rounds() == [5]


def test_what_cannot_be_left_costs_a_line(workshop: Workshop) -> None:
    workshop.states.write_text("a file")
    workshop.run("fedavg", 2)
    (line,) = workshop.lines
    assert line.startswith(f"{workshop.states}: the last state is not left to longer runs ([Errno {errno.EEXIST}]")


def test_a_file_that_another_process_removes_is_not_missed(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.run("fedavg", 2)
    (state,) = stored(workshop.states)
    state.unlink()
    monkeypatch.setattr("pflcore.engine.checkpoint.stored", lambda folder: [state] * (folder == workshop.states))
    assert workshop.run("fedavg", 3).resumed_from == 0 and workshop.lines == []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counting(METHODS.get("fedavg")):  # type: ignore[misc]
    """Knows how many rounds there are, and has not asked."""

    def init_server(self, initial: Any, roles: Any, federation: Federation) -> Any:
        assert federation.rounds > 0
        return super().init_server(initial, roles, federation)


def test_a_method_that_uses_the_number_of_rounds_says_so() -> None:
    line = Path(__file__).read_text(encoding="utf-8").splitlines().index("        assert federation.rounds > 0") + 1
    with pytest.raises(UserError) as error:
        run(Counting(), first_fitting(method("fedavg")))
    told = f"test_longer.py:{line}: federation.rounds must be asked for: facts = ('progress',)"
    assert str(error.value).endswith(told)
    asking = type("Asking", (Counting,), {"facts": (PROGRESS,)})
    assert run(asking(), first_fitting(method("fedavg"))).round[-1] == 2


# --- lineages ------------------------------------------------------------------------------------------------------

# What is changed, and whether a state is of another lineage then.
CHANGES: list[tuple[dict[str, Any], bool]] = [
    ({"training": {"rounds": 9}}, False),
    ({"training": {"save_weights": True}}, False),
    ({"training": {"patience": 3}}, False),
    ({"tuned": {"selection": "a"}}, False),
    ({"training": {"lr": 0.9}}, True),
    ({"evaluation": {"every": 7}}, True),
    ({"method": {"knn": 0.5}}, True),
    ({"method": {"also_personal": ["head"]}}, True),
    ({"analyses": []}, True),
    ({"seed": 4}, True),
]


@pytest.mark.parametrize(("change", "other"), CHANGES)
def test_what_a_lineage_depends_on(change: dict[str, Any], other: bool) -> None:
    before = record(method("fedprox"), training())
    parts = {
        field: {**before.get(field, {}), **part} if isinstance(part, dict) else part for field, part in change.items()
    }
    one, two = Run(before), Run({**before, **parts})
    arguments = CODE, {"dataset_hash": "d"}, CPU
    assert run_hash(one, *arguments) != run_hash(two, *arguments)
    assert (lineage_hash(one, *arguments) != lineage_hash(two, *arguments)) == other


def test_a_lineage_depends_on_data_code_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    entry, settings = method("fedavg"), training()
    hashes = {
        lineage(entry, settings),
        lineage(entry, settings, data="e"),
        lineage(entry, settings, "3-noise"),
        lineage(entry, settings, device=torch.device("meta")),
    }
    for place, value in (("torch.__version__", "9.9"), ("torch.backends.cpu.get_cpu_capability", lambda: "AVX9000")):
        with monkeypatch.context() as patch:
            patch.setattr(place, value)
            hashes.add(lineage(entry, settings))
    assert len(hashes) == 6


# --- the stage -----------------------------------------------------------------------------------------------------


def made(folder: Path, name: str, backbone: str = CONVNET, **parts: dict[str, Any]) -> Runner:
    one = runner(folder, name, backbone, ", save_weights: true")
    one.change(**parts)
    return one


def rounds_trained(one: Runner, **changes: Any) -> int:
    """Train as the project that leaves everything; the rounds that it took."""
    seen: list[Progress] = []
    one.train(on_round=seen.append, **changes)
    timing = json.loads((one.project.root / f".pfl/timings/{one.run.id}.json").read_text(encoding="utf-8"))
    assert timing["rounds"] == len(seen)
    return len(seen)


@pytest.mark.parametrize(("name", "backbone"), [("fedavg", CONVNET), ("fedtp", VIT)])
def test_a_longer_run_leaves_the_same_files(name: str, backbone: str, tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", name, backbone, training={"rounds": 7}, evaluation={"window": 2})
    whole.train()
    longer = made(tmp_path / "longer", name, backbone, evaluation={"window": 2})
    assert rounds_trained(longer) == 4
    longer.change(training={"rounds": 7})
    assert rounds_trained(longer) == 3
    assert tree(longer.out) == tree(whole.out) and set(tree(whole.out)) == {"rounds.parquet", "weights.safetensors"}
    assert longer.said == [f"{longer.run.id}: continued from 4 rounds of an earlier run"]
    assert longer.checkpoints() == []


def test_another_way_of_measuring_starts_anew(tmp_path: Path) -> None:
    one = made(tmp_path, "knn_per")
    assert rounds_trained(one) == 4 and rounds_trained(one) == 0
    one.change(method={"knn": 0.8})
    assert rounds_trained(one) == 4


def test_a_method_with_a_schedule_over_all_rounds_starts_anew(tmp_path: Path) -> None:
    one = made(tmp_path, "fedkd")
    assert rounds_trained(one) == 4
    one.change(training={"rounds": 5})
    assert rounds_trained(one) == 5 and one.said == []


def test_a_run_that_diverged_leaves_nothing(tmp_path: Path) -> None:
    one = made(tmp_path, "fedavg", training={"lr": 1e20})
    one.train(checkpoint_every=0.0)
    assert list(one.project.root.glob(".pfl/states/*")) == [] and one.checkpoints() == []
