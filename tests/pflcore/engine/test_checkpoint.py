"""A run leaves the same bytes however often it was stopped, and whatever lies in the folder of its checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file
from support.damage import empty, flip, shorten
from support.tiny import NormNet, backbone, federation, first_fitting, method, result_bytes, run, training
from torch import Tensor

from pflcore.engine import CheckpointFolder, Progress, Result, checkpoint
from pflcore.engine.checkpoint import compare, stored
from pflcore.engine.evaluation import Scores
from pflcore.engine.state import ClientStates, History
from pflcore.errors import UserError
from pflcore.memory import memory_limit

ROUNDS = 5
SETTINGS: dict[str, Any] = {"training": training(rounds=ROUNDS, momentum=0.5, local_epochs=1)}
TENSORS = {"shared/a": torch.arange(3.0), "shared/n": torch.tensor(2)}
# Personal groups, a hypernetwork, buffers; shared alone, a second model, the progress, nothing that is shared.
METHODS = ["fedper", "fedtp", "norms", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("fedavg", "ditto"))]
METHODS += [pytest.param(one, marks=pytest.mark.matrix) for one in ("fedkd", "local")]


class Stopped(BaseException):
    """Stands for anything that ends a process."""


def trained(name: str, **changes: Any) -> Result:
    if name == "norms":
        settings = {"training": replace(SETTINGS["training"], server_optimizer="adam")}
        return run(method("fedper"), NormNet(), federation((15, 10, 20), (4, 4, 4)), **settings, **changes)
    entry = method(name)
    return run(entry, first_fitting(entry), **SETTINGS, **changes)


@cache
def undisturbed(name: str) -> dict[str, bytes]:
    return result_bytes(trained(name))


def start(folder: Path, name: str, stop: int = 0) -> tuple[Result | None, list[str]]:
    """Train `name` in `folder`, from its newest checkpoint; with `stop`, end in that round, before it is stored."""

    def on_round(progress: Progress) -> None:
        if progress.round == stop:
            raise Stopped

    lines: list[str] = []
    with CheckpointFolder(folder, "me", lines.append) as checkpoints, suppress(Stopped):
        return trained(name, checkpoints=checkpoints, checkpoint_every=0, on_round=on_round), lines
    return None, lines


def finish(folder: Path, name: str, resumed_from: int) -> list[str]:
    """Train to the end and compare with the undisturbed run; the lines that were said."""
    result, lines = start(folder, name)
    assert result and result.resumed_from == resumed_from and result_bytes(result) == undisturbed(name)
    return lines


def rounds_in(folder: Path) -> list[int]:
    return sorted(map(checkpoint.round_of, stored(folder)))


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_stopped_run_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    for stop in (1, 3, ROUNDS):
        assert start(tmp_path, name, stop) == (None, [])
    (tmp_path / ".new.part").write_bytes(b"half")
    (tmp_path / "round-notes.txt").write_text("mine")
    assert finish(tmp_path, name, resumed_from=ROUNDS - 1) == []
    assert finish(tmp_path, name, resumed_from=ROUNDS) == [], "a run that had ended is read back"
    with CheckpointFolder(tmp_path, "me", pytest.fail) as folder:
        folder.clear()
    assert {path.name for path in tmp_path.iterdir()} <= {"lock", "round-notes.txt"}


def test_neither_the_time_between_checkpoints_nor_the_place_of_states_changes_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for every, rounds, limit in ((0, [4, 5], "1"), (1e9, [5], "0")):
        monkeypatch.setenv("PFL_MEMORY", limit)
        with CheckpointFolder(tmp_path / limit, "me", pytest.fail) as folder:
            result = trained("fedper", checkpoints=folder, checkpoint_every=every)
        assert result_bytes(result) == undisturbed("fedper") and rounds_in(folder.folder) == rounds
    monkeypatch.setenv("PFL_MEMORY", "0.5")
    assert memory_limit() == 2**29
    for wrong in ("-1", "much", "nan", "1e308"):
        monkeypatch.setenv("PFL_MEMORY", wrong)
        with pytest.raises(UserError, match="PFL_MEMORY"):
            memory_limit()


def test_at_most_a_twentieth_of_the_time_goes_into_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def slow(*given: Any) -> None:
        clock[0] += 7.0
        save_file(*given)

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(checkpoint, "save_file", slow)
    with CheckpointFolder(tmp_path, "me", print) as folder:
        for saved, last, due in ((0, 59.0, False), (0, 60.0, True), (67, 139.0, False), (67, 140.0, True)):
            if saved > clock[0]:
                folder.save(1, TENSORS)
            clock[0] = saved + last
            assert folder.is_due(60.0) == due and folder.is_due(0) and not folder.is_due(200.0)


def test_a_round_that_diverged_is_not_stored(tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path, "me", print) as folder:
        wild = {"training": training(rounds=4, lr=1e20), "checkpoints": folder, "checkpoint_every": 0}
        assert run(method("fedavg"), backbone("convnet"), **wild).diverged and stored(tmp_path) == []


# --- damaged and foreign files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [flip, shorten, empty])
def test_a_damaged_checkpoint_is_skipped(damage: Callable[[Path], None], tmp_path: Path) -> None:
    start(tmp_path, "fedper", stop=4)
    newer, older = stored(tmp_path)
    damage(newer)
    lines = finish(tmp_path, "fedper", resumed_from=2)
    assert lines == [f"{newer}: its content does not match its name; skipped"]
    for path in stored(tmp_path):
        damage(path)
    assert len(finish(tmp_path, "fedper", resumed_from=0)) == 2, "without a good one a run starts anew"
    assert rounds_in(tmp_path) == [4, 5] and not older.exists()


HEADER = {"pfl": json.dumps({"run": "me", "lineage": "", "round": 7})}
FOREIGN: dict[str, tuple[bytes, str]] = {
    "another run": (save(TENSORS, {"pfl": '{"run": "you"}'}), "it belongs to another run"),
    "no round": (save(TENSORS, {"pfl": '{"run": "me"}'}), "not a checkpoint"),
    "lacking": (save({"shared/a": TENSORS["shared/a"]}, HEADER), "shared/n is missing"),
    "shape": (save({**TENSORS, "shared/a": torch.ones(4)}, HEADER), r"shared/a is \(4,\) torch.float32, expected"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_checkpoint_of_another_run_is_refused(case: str, tmp_path: Path) -> None:
    content, reason = FOREIGN[case]
    lines: list[str] = []
    with CheckpointFolder(tmp_path, "me", lines.append) as folder:
        folder.save(3, TENSORS)
        digest = hashlib.sha256(content).hexdigest()[:16]  # its name fits
        (tmp_path / f"round-000007-{digest}.safetensors").write_bytes(content)
        found = folder.load(lambda tensors: compare(tensors, TENSORS))
        assert found and found.round == 3
        folder.save(4, TENSORS)
    assert rounds_in(tmp_path) == [3, 4], "it displaces no good one"
    assert len(lines) == 1 and "\n" not in lines[0] and re.search(f": {reason}.*; skipped$", lines[0])


# --- the folder ------------------------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded_and_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    state = {**TENSORS, "personal/3": torch.rand(4, 2).t(), "extra/empty": torch.zeros(0)}
    with CheckpointFolder(tmp_path / "made" / "for it", "me", pytest.fail) as folder:
        assert folder.load(lambda _: "") is None
        for round_ in (1, 2, 9, 10, 11, 11):
            folder.save(round_, state)
            assert len(stored(folder.folder)) == min(round_, 2)
        for _ in range(2):
            found = folder.load(lambda tensors: compare(tensors, state))
            assert found and found.round == 11
            assert all(torch.equal(found.tensors[name], tensor) for name, tensor in state.items())
            found.tensors["shared/a"].add_(1)  # which the file does not see
    assert rounds_in(folder.folder) == [10, 11]


def kill_at(patch: pytest.MonkeyPatch, when: int) -> None:
    """From the `when`-th operation on files on, none takes place; a file that is being written is half."""
    left = when

    def until(operation: Callable[..., Any], half: bool = False) -> Callable[..., Any]:
        def one(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                if half and left == -1:
                    operation(*arguments, **named)
                    shorten(Path(arguments[1]))
                raise Stopped
            return operation(*arguments, **named)

        return one

    for name in ("replace", "fsync", "unlink"):
        patch.setattr(os, name, until(getattr(os, name)))
    patch.setattr(checkpoint, "save_file", until(save_file, half=True))


def saves(folder: CheckpointFolder, rounds: Iterable[int]) -> int:
    """Store these rounds; the last one of which that begins."""
    last = 0
    with folder:
        try:
            for last in rounds:
                folder.save(last, {"shared/a": torch.full((100,), float(last))})
        except Stopped:
            return last
    return 0


def test_a_kill_between_any_two_operations_loses_one_checkpoint_at_most(tmp_path: Path) -> None:
    when, at = 0, 1
    while at:
        place = tmp_path / str(when)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, when)
            at = saves(CheckpointFolder(place, "me", pytest.fail), range(1, 5))
        with CheckpointFolder(place, "me", pytest.fail) as again:
            found = again.load(lambda tensors: "")
            reached = found.round if found else 0
            assert reached >= (at or 5) - 1
            assert not found or torch.equal(found.tensors["shared/a"], torch.full((100,), float(reached)))
        assert not saves(CheckpointFolder(place, "me", pytest.fail), range(reached + 1, 7))
        assert rounds_in(place) == [5, 6] or reached == 5
        assert {path.name for path in place.iterdir()} <= {"lock", *(path.name for path in stored(place))}
        when += 1
    assert when > 15, "operations of four checkpoints"


def test_a_save_that_fails_leaves_the_one_before_and_one_that_does_not_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: dict[str, Tensor], path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    lines: list[str] = []
    synced: list[tuple[int, int, list[int]]] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((*os.fstat(file)[1:7:5], rounds_in(tmp_path))))
    with CheckpointFolder(tmp_path, "me", lines.append) as folder:
        folder.save(1, TENSORS)
        (path,) = stored(tmp_path)
        assert (path.stat().st_ino, path.stat().st_size, []) in synced
        monkeypatch.setattr(checkpoint, "save_file", full)
        folder.save_last(2, TENSORS)  # nothing is left to be trained
        with pytest.raises(OSError, match="no space"):
            folder.save(2, TENSORS)
        found = folder.load(lambda _: "")
    assert found and found.round == 1 and rounds_in(tmp_path) == [1] and list(tmp_path.glob(".*.part")) == []
    assert lines == [f"{tmp_path}: the state after round 2 is not kept (no space left)"]


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_LOCK_SECONDS", 0.05)
    taken = pytest.raises(UserError, match=f"^{tmp_path}: another process is training this run")
    with CheckpointFolder(tmp_path, "me", print), taken:
        start(tmp_path, "fedavg")


# --- the parts of a state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["1", "0"])
def test_clients_are_saved_by_rows_that_follow_each_other(limit: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PFL_MEMORY", limit)
    initial = {"head.weight": torch.zeros(3, 2), "head.count": torch.tensor(0)}
    clients, again = (ClientStates(initial, 12, tmp_path) for _ in range(2))
    own = {k: {"head.weight": torch.full((3, 2), 1.0 * k), "head.count": torch.tensor(k)} for k in (11, 0, 3, 4, 5)}
    clients.update(own)
    assert clients.on_disk == (limit == "0") and list(tmp_path.iterdir()) == []  # the file has no name
    state = clients.state()
    assert {name: len(rows) for name, rows in state.items()} == {"0": 1, "3": 3, "11": 1}
    again.restore(state)
    assert again.trained() == [0, 3, 4, 5, 11] and again[1] is initial
    for client, tensors in own.items():
        assert all(torch.equal(again[client][name], tensor) for name, tensor in tensors.items())
    assert float(initial["head.weight"].sum()) == 0


def test_measurements_are_restored_by_round() -> None:
    first, second = (History(np.ones(4, bool), 2) for _ in range(2))
    for round_ in (9, 10):
        first.scores[round_] = Scores.join([((round_, 20, 0.5, round_), (1, 5, 0.5, 1))] * 4)
    second.restore(dict(reversed(first.state().items())))
    assert list(second.scores) == [9, 10] and second.last_figure() == 0.5 and second.stops_after(1) == 10
