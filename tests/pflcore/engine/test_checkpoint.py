"""A run leaves the same bytes however often it was stopped, and whatever lies in the folder of its checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from support.damage import empty, flip, shorten
from support.tiny import NormNet, federation, first_fitting, method, result_bytes, run, sampled, spied, training
from torch import Tensor

from pflcore.engine import CheckpointFolder, Progress, Result, checkpoint
from pflcore.engine.checkpoint import compare, join, restore, stored
from pflcore.engine.state import ClientStates
from pflcore.errors import UserError
from pflcore.method import Update

ROUNDS = 5
SETTINGS: dict[str, Any] = {"training": training(rounds=ROUNDS, momentum=0.5, local_epochs=1)}
TENSORS = {"shared/a": torch.arange(3.0), "shared/n": torch.tensor(2)}
# Shared alone, personal groups, a hypernetwork, a second model, the progress, nothing that is shared.
METHODS = ("fedavg", "fedper", "fedtp", "ditto", "fedkd", "local")


class Stopped(BaseException):
    """Stands for anything that ends a process."""


@cache
def undisturbed(name: str) -> dict[str, bytes]:
    entry = method(name)
    return result_bytes(run(entry, first_fitting(entry), **SETTINGS))


def stop_in(round_: int) -> Callable[[Progress], None]:
    def on_round(progress: Progress) -> None:
        if progress.round == round_:
            raise Stopped

    return on_round


def start(folder: Path, name: str, stop: int | None = None, identity: str = "me") -> tuple[Result | None, list[str]]:
    """Train `name` in `folder`, from its newest checkpoint; with `stop`, end in that round, before it is stored."""
    lines: list[str] = []
    entry, on_round = method(name), stop_in(stop) if stop else None
    with CheckpointFolder(folder, identity, lines.append) as checkpoints:
        try:
            where: dict[str, Any] = {"checkpoints": checkpoints, "checkpoint_every": 0, "on_round": on_round}
            return run(entry, first_fitting(entry), **SETTINGS, **where), lines
        except Stopped:
            return None, lines


def finish(folder: Path, name: str, resumed_from: int) -> list[str]:
    """Train to the end and compare with the undisturbed run; the lines that were said."""
    result, lines = start(folder, name)
    assert result and result.resumed_from == resumed_from
    assert result_bytes(result) == undisturbed(name)
    return lines


def rounds_in(folder: Path) -> list[int]:
    return sorted(map(checkpoint.round_of, stored(folder)))


# --- stopped runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_stopped_run_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    for stop in (1, 3, ROUNDS):
        assert start(tmp_path, name, stop) == (None, [])
    assert finish(tmp_path, name, resumed_from=ROUNDS - 1) == []
    assert finish(tmp_path, name, resumed_from=ROUNDS) == [], "a run that had ended is read back"


def test_buffers_survive_a_stop(tmp_path: Path) -> None:
    data = federation((15, 10, 20), (4, 4, 4))
    expected = result_bytes(run(method("fedper"), NormNet(), data, **SETTINGS))
    folder = CheckpointFolder(tmp_path, "me", print)
    with folder, pytest.raises(Stopped):
        run(method("fedper"), NormNet(), data, **SETTINGS, checkpoints=folder, checkpoint_every=0, on_round=stop_in(3))
    with folder:
        result = run(method("fedper"), NormNet(), data, **SETTINGS, checkpoints=folder)
    assert result.resumed_from == 2 and result_bytes(result) == expected


def test_only_rounds_that_were_not_stored_are_trained_again(tmp_path: Path) -> None:
    start(tmp_path, "fedavg", stop=4)
    seen: list[list[Update]] = []
    with CheckpointFolder(tmp_path, "me", print) as checkpoints:
        run(spied(method("fedavg"), seen), first_fitting(method("fedavg")), **SETTINGS, checkpoints=checkpoints)
    cohorts = [sampled(3, round_, 3, SETTINGS["training"]) for round_ in (4, 5)]
    assert [[one.client for one in updates] for updates in seen] == cohorts


@pytest.mark.parametrize(("every", "rounds"), [(0, [4, 5]), (1e9, [5])])
def test_the_time_between_checkpoints_changes_no_result(every: float, rounds: list[int], tmp_path: Path) -> None:
    entry = method("fedper")
    with CheckpointFolder(tmp_path, "me", print) as folder:
        result = run(entry, first_fitting(entry), **SETTINGS, checkpoints=folder, checkpoint_every=every)
    assert result_bytes(result) == undisturbed("fedper") and rounds_in(tmp_path) == rounds


def test_at_most_a_twentieth_of_the_time_goes_into_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)

    def slow(*arguments: Any) -> None:
        nonlocal clock
        clock += 7.0
        save_file(*arguments)

    monkeypatch.setattr(checkpoint, "save_file", slow)
    with CheckpointFolder(tmp_path, "me", print) as folder:
        clock = 59.0
        assert not folder.is_due(60.0) and folder.is_due(0)
        clock = 60.0
        assert folder.is_due(60.0)
        folder.save(1, TENSORS)
        clock = 67 + 139.0
        assert not folder.is_due(60.0) and folder.is_due(0)
        clock = 67 + 140.0
        assert folder.is_due(60.0) and not folder.is_due(200.0)


def test_a_round_that_diverged_is_not_stored(tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path, "me", print) as folder:
        wild = {"training": training(rounds=4, lr=1e20), "checkpoints": folder, "checkpoint_every": 0}
        result = run(method("fedavg"), first_fitting(method("fedavg")), **wild)
    assert result.diverged and stored(tmp_path) == []


# --- damaged and foreign checkpoints -------------------------------------------------------------------------------


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


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    start(tmp_path, "fedtp", stop=4, identity="another")
    paths = stored(tmp_path)
    lines = finish(tmp_path, "fedtp", resumed_from=0)
    assert lines == [f"{path}: it belongs to another run; skipped" for path in paths]
    assert not set(paths) & set(stored(tmp_path))


def header(**facts: Any) -> dict[str, str]:
    return {"pfl": json.dumps({"run": "me", "lineage": "", "round": 7, **facts})}


fits = partial(compare, expected=TENSORS)
FOREIGN: dict[str, tuple[bytes, str]] = {
    "text": (b"not tensors", "not a checkpoint"),
    "empty": (b"", "not a checkpoint"),
    "huge header": (b"\xff" * 64, "not a checkpoint"),
    "no identity": (save(TENSORS), "it belongs to another run"),
    "no round": (save(TENSORS, {"pfl": '{"run": "me"}'}), "not a checkpoint"),
    "lacking": (save({"shared/a": TENSORS["shared/a"]}, header()), "shared/n is missing"),
    "shape": (save({**TENSORS, "shared/a": torch.ones(4)}, header()), r"shared/a is \(4,\) torch.float32, expected"),
    "type": (save({**TENSORS, "shared/n": torch.tensor(2.0)}, header()), r"shared/n is \(\) torch.float32, expected"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_that_is_no_checkpoint_of_this_run_is_skipped(case: str, tmp_path: Path) -> None:
    content, reason = FOREIGN[case]
    lines: list[str] = []
    with CheckpointFolder(tmp_path, "me", lines.append) as folder:
        folder.save(3, TENSORS)
        digest = hashlib.sha256(content).hexdigest()[:16]  # its name fits
        (tmp_path / f"round-000007-{digest}.safetensors").write_bytes(content)
        found = folder.load(fits)
        assert found and found.round == 3
        folder.save(4, TENSORS)
    assert rounds_in(tmp_path) == [3, 4], "it displaces no good one"
    assert len(lines) == 1 and "\n" not in lines[0] and re.search(f": {reason}.*; skipped$", lines[0])


# --- the folder ----------------------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    state = {**TENSORS, "personal/3": torch.rand(4, 2).t(), "extra/empty": torch.zeros(0)}
    with CheckpointFolder(tmp_path / "made" / "for it", "me", print) as folder:
        assert folder.load(partial(compare, expected=state)) is None
        folder.save(12, state)
        for _ in range(2):
            found = folder.load(partial(compare, expected=state))
            assert found and found.round == 12 and found.tensors.keys() == state.keys()
            assert all(torch.equal(found.tensors[name], tensor) for name, tensor in state.items())
            found.tensors["shared/a"].add_(1)  # which the file does not see


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path, "me", print) as folder:
        for round_ in (1, 2, 9, 10, 11, 11):
            folder.save(round_, {"shared/a": torch.tensor([float(round_)])})
            assert len(stored(tmp_path)) == min(round_, 2)
    assert rounds_in(tmp_path) == [10, 11]


def own(value: int) -> dict[str, Tensor]:
    return {"head.weight": torch.full((8, 4), float(value)), "head.count": torch.tensor(value)}


def test_personal_entries_of_a_mapped_file_are_written_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFL_MEMORY", "0")
    clients, again = (ClientStates(own(0), 40, tmp_path) for _ in range(2))
    clients.update({client: own(client) for client in (0, 3, 4, 5, 39)})
    with CheckpointFolder(tmp_path, "me", pytest.fail) as folder:
        folder.save(1, join({"personal": clients}))
        found = folder.load(lambda tensors: "")
        assert clients.on_disk and found and sorted(found.tensors) == ["personal/0", "personal/3", "personal/39"]
        restore({"personal": again}, found.tensors)
    assert again.trained() == [0, 3, 4, 5, 39] and torch.equal(again[39]["head.weight"], own(39)["head.weight"])


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


@pytest.mark.parametrize("last", [False, True])
def test_a_save_that_fails_leaves_the_checkpoint_before_it(
    last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: dict[str, Tensor], path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    lines: list[str] = []
    with CheckpointFolder(tmp_path, "me", lines.append) as folder:
        folder.save(1, TENSORS)
        monkeypatch.setattr(checkpoint, "save_file", full)
        if last:  # nothing is left to be trained
            folder.save_last(2, TENSORS)
        else:
            with pytest.raises(OSError, match="no space"):
                folder.save(2, TENSORS)
        found = folder.load(fits)
    assert found and found.round == 1 and rounds_in(tmp_path) == [1] and list(tmp_path.glob(".*.part")) == []
    assert lines == last * [f"{tmp_path}: the state after round 2 is not kept (no space left)"]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a machine that loses its power may keep the name and lose the content, of both that are kept."""
    synced: list[tuple[int, int, list[int]]] = []
    sync = os.fsync

    def noting(file: int) -> None:
        found = os.fstat(file)
        synced.append((found.st_ino, found.st_size, rounds_in(tmp_path)))
        sync(file)

    monkeypatch.setattr(os, "fsync", noting)
    with CheckpointFolder(tmp_path, "me", print) as folder:
        folder.save(3, TENSORS)
    (path,) = stored(tmp_path)
    assert (path.stat().st_ino, path.stat().st_size, []) in synced


def test_leftovers_are_harmless_and_cleared(tmp_path: Path) -> None:
    start(tmp_path, "fedavg", stop=4)
    (tmp_path / ".4711.part").write_bytes(b"half")
    (tmp_path / "round-notes.txt").write_text("mine")
    assert finish(tmp_path, "fedavg", resumed_from=3) == []
    with CheckpointFolder(tmp_path, "me", print) as folder:
        folder.clear()
    assert {path.name for path in tmp_path.iterdir()} <= {"lock", "round-notes.txt"}


HOLDER = """
import sys
from pathlib import Path
from pflcore.engine import CheckpointFolder
with CheckpointFolder(Path(sys.argv[1]), "me", print):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_LOCK_SECONDS", 0.05)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another process is training this run") as error:
            start(tmp_path, "fedavg")
        assert str(error.value).startswith(str(tmp_path))
        holder.kill()  # a process that dies holds nothing
    monkeypatch.undo()
    finish(tmp_path, "fedavg", resumed_from=0)
