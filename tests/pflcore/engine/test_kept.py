"""A run continues from where another of its lineage was, and nothing that it leaves behind tells."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.damage import empty, flip, shorten
from support.tiny import backbone, method, result_bytes, run, spied, training

from pflcore.engine import CheckpointFolder, KeptStates, Progress, Result, checkpoint
from pflcore.method import Update
from pflcore.room import Room
from pflcore.settings import Evaluation

NAMES = ("fedavg", "fedtp", "ditto")
QUICK = ["fedavg", *(pytest.param(name, marks=pytest.mark.matrix) for name in NAMES[1:])]
LAST = Evaluation(window=0, curve_every=0)
CURVE = Evaluation(window=0, curve_every=1)
GIB = 2**30


@dataclass
class Workshop:
    """Runs that share what they leave. `trained` has the cohorts of the last one, `lines` what was said."""

    folder: Path
    limit: int = GIB
    lines: list[str] = field(default_factory=list)
    trained: list[list[Update]] = field(default_factory=list)

    def kept(self, measuring: str = "", **changes: Any) -> KeptStates:
        return KeptStates(Room(self.folder, self.limit), "lineage", measuring, self.lines.append, **changes)

    def run(self, rounds: int, name: str = "fedavg", evaluation: Evaluation = LAST, **changes: Any) -> Result:
        self.trained = []
        options = {option: changes.pop(option) for option in ("knn", "finetune_lr") if option in changes}
        entry = spied(method(name, **options), self.trained)
        kept = self.kept(repr(options), every=changes.pop("every", False))
        return once(entry, rounds, evaluation, kept=kept, **changes)

    def states(self) -> list[Path]:
        """The latest first."""
        return checkpoint.stored(self.folder / "lineage")

    def rounds(self) -> list[int]:
        return sorted(map(checkpoint.round_of, self.states()))


def once(entry: Any, rounds: int, evaluation: Evaluation = LAST, **changes: Any) -> Result:
    net = changes.pop("net", None) or backbone("tiny_vit")
    settings = training(rounds=rounds, local_epochs=1, momentum=0.5)
    return run(entry, net, training=settings, evaluation=evaluation, **changes)


def anew(name: str, rounds: int, evaluation: Evaluation = LAST, knn: float = 0.0, **changes: Any) -> dict[str, bytes]:
    """What a run leaves that is trained from its beginning."""
    return result_bytes(once(method(name, knn=knn), rounds, evaluation, **changes))


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


# --- more rounds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_longer_run_trains_what_is_new(name: str, workshop: Workshop) -> None:
    workshop.run(2, name, CURVE)
    result = workshop.run(5, name, CURVE)
    assert (result.resumed_from, result.inherited, len(workshop.trained)) == (2, True, 3)
    assert result_bytes(result) == anew(name, 5, CURVE)
    assert workshop.rounds() == [2, 5] and workshop.lines == []


def test_a_run_that_was_stopped_goes_on_from_its_own_checkpoint(workshop: Workshop, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.round == 4:
            raise InterruptedError

    workshop.run(2)
    with CheckpointFolder(tmp_path / "own", "me", print) as own:
        with pytest.raises(InterruptedError):
            workshop.run(5, checkpoints=own, checkpoint_every=0, on_round=stop)
        result = workshop.run(5, checkpoints=own)
    assert (result.resumed_from, result.inherited) == (3, False) and result_bytes(result) == anew("fedavg", 5)


# --- measured otherwise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUICK)
def test_what_acts_in_measuring_alone_trains_nothing(name: str, workshop: Workshop) -> None:
    workshop.run(3, name, knn=0.2)
    result = workshop.run(3, name, knn=0.7)
    assert workshop.trained == [] and result.resumed_from == 3
    assert result_bytes(result) == anew(name, 3, knn=0.7) != anew(name, 3, knn=0.2)
    assert len(workshop.states()) == 1


# Rounds and evaluation of the first run, those of the second, and the round that the second begins with.
SCHEDULES: list[tuple[tuple[int, Evaluation], tuple[int, Evaluation], int]] = [
    ((4, LAST), (4, CURVE), 0),  # nobody measured rounds 1 to 3
    ((4, CURVE), (4, LAST), 4),
    ((4, LAST), (6, LAST), 4),  # whose measurement is left out
    ((4, Evaluation(every=2, window=4, curve_every=0)), (6, Evaluation(every=2, window=4, curve_every=0)), 4),
    ((4, Evaluation(every=2, window=4, curve_every=0)), (7, Evaluation(every=2, window=7, curve_every=0)), 0),
    ((4, Evaluation(window=0, curve_every=2)), (8, Evaluation(window=0, curve_every=4)), 4),
    ((3, Evaluation(window=0, curve_every=2)), (4, Evaluation(window=0, curve_every=2)), 3),
]


@pytest.mark.parametrize(("first", "second", "begins"), SCHEDULES)
def test_measurements_are_taken_where_they_were_made(
    first: tuple[int, Evaluation], second: tuple[int, Evaluation], begins: int, workshop: Workshop
) -> None:
    workshop.run(first[0], "fedper", first[1])
    result = workshop.run(second[0], "fedper", second[1])
    assert result.resumed_from == begins and len(workshop.trained) == second[0] - begins
    assert result_bytes(result) == anew("fedper", *second)


@pytest.mark.parametrize("name", QUICK)
def test_states_of_all_measured_rounds_can_be_measured_anew(name: str, workshop: Workshop) -> None:
    workshop.run(4, name, CURVE, knn=0.2, every=True)
    assert workshop.rounds() == [1, 2, 3, 4]
    result = workshop.run(5, name, CURVE, knn=0.7)
    assert result.resumed_from == 4 and len(workshop.trained) == 1
    assert result_bytes(result) == anew(name, 5, CURVE, knn=0.7)
    shorter = workshop.run(3, name, LAST, knn=0.2)
    assert workshop.trained == [] and result_bytes(shorter) == anew(name, 3, LAST, knn=0.2)


# --- divergence ----------------------------------------------------------------------------------------------------


def test_a_run_that_diverged_leaves_nothing(workshop: Workshop) -> None:
    wild = replace(training(rounds=4), lr=1e20)
    result = run(method("fedavg"), backbone("convnet"), training=wild, kept=workshop.kept())
    assert result.diverged and workshop.states() == [] and not list(workshop.folder.rglob("*.*"))


def test_a_run_can_diverge_where_it_is_measured_anew(workshop: Workshop) -> None:
    workshop.run(3, "fedbabu", CURVE, every=True)
    wild = {"finetune_lr": 1e30}
    result = workshop.run(3, "fedbabu", Evaluation(window=1, every=1, curve_every=0), **wild)
    assert result.diverged and result.diverged.round == 2 and workshop.trained == []
    again = once(method("fedbabu", **wild), 3, Evaluation(window=1, every=1, curve_every=0))
    assert result_bytes(result) == result_bytes(again)
    assert workshop.rounds() == [1, 2, 3]


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [flip, shorten, empty])
def test_what_is_damaged_is_passed_over(damage: Callable[[Path], None], workshop: Workshop) -> None:
    workshop.run(2)
    workshop.run(4)
    newest = workshop.states()[0]
    damage(newest)
    result = workshop.run(5)
    assert result.resumed_from == 2 and result_bytes(result) == anew("fedavg", 5)
    assert workshop.lines == [f"{newest}: its content does not match its name; passed over"]
    assert workshop.rounds() == [2, 5]


# --- room ----------------------------------------------------------------------------------------------------------


def sizes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_longest_unused_makes_way(workshop: Workshop) -> None:
    workshop.run(1)
    one = sizes(workshop.folder)
    workshop.limit = int(2.5 * one)
    workshop.run(2)
    workshop.run(3)
    assert workshop.rounds() == [2, 3] and sizes(workshop.folder) <= workshop.limit
    workshop.run(2, knn=0.3)  # which uses that of round 2
    other = KeptStates(Room(workshop.folder, workshop.limit), "another lineage", "", workshop.lines.append)
    other.keep(1, {"a": torch.zeros(one // 4 * 3 // 4)})
    assert workshop.rounds() == [2] and sizes(workshop.folder) <= workshop.limit


def test_what_is_larger_than_the_room_is_not_kept(workshop: Workshop) -> None:
    workshop.run(1)
    workshop.limit = 1000
    result = workshop.run(2)
    assert result.inherited and result_bytes(result) == anew("fedavg", 2)
    assert 2 not in workshop.rounds()
    assert [line.partition(": ")[2] for line in workshop.lines] == [
        "round 2 is not kept for longer runs (larger than PFL_KEEP, 1000 bytes)"
    ]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """What a disk does that is full: writing fails in the middle."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_costs_no_result(workshop: Workshop) -> None:
    with files_no_larger_than(2000):
        result = workshop.run(2, executor="sequential")  # what workers share are files too
    assert result_bytes(result) == anew("fedavg", 2)
    assert workshop.states() == [] and list(workshop.folder.rglob("*.part")) == []
    assert len(workshop.lines) == 1 and "round 2 is not kept for longer runs (" in workshop.lines[0]
    assert "\n" not in workshop.lines[0]


@pytest.mark.parametrize(("value", "limit"), [(None, 5 * GIB), ("", 5 * GIB), ("0", 0), ("0.5", GIB // 2)])
def test_the_room_is_what_the_environment_says(
    value: str | None, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PFL_KEEP", raising=False)
    if value is not None:
        monkeypatch.setenv("PFL_KEEP", value)
    assert Room.of(tmp_path) == Room(tmp_path / "kept", limit)
