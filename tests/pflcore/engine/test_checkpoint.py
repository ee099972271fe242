"""A run leaves the same bytes however often it was stopped, and whatever lies in the folder of its checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from support.damage import empty, flip, shorten
from support.tiers import six_of
from support.tiny import (
    backbone,
    first_fitting,
    method,
    result_bytes,
    run,
    training,
)
from torch import Tensor

from pflcore.engine import CheckpointFolder, Progress, Result
from pflcore.engine.state import compare
from pflcore.errors import UserError
from pflcore.methods import METHODS

ROUNDS = 5
SETTINGS: dict[str, Any] = {"training": training(rounds=ROUNDS, momentum=0.5, local_epochs=1)}
TENSORS = {"shared/a": torch.arange(3.0), "shared/n": torch.tensor(2)}


class Stopped(Exception):
    """Stands for anything that ends a process between two rounds."""


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
    entry = method(name)
    with CheckpointFolder(folder, identity, lines.append) as checkpoints:
        try:
            result = run(
                entry,
                first_fitting(entry),
                **SETTINGS,
                checkpoints=checkpoints,
                checkpoint_every=0,
                on_round=stop_in(stop) if stop else None,
            )
        except Stopped:
            return None, lines
    return result, lines


def finish(folder: Path, name: str, resumed_from: int) -> list[str]:
    """Train to the end and compare with the undisturbed run; the lines that were said."""
    result, lines = start(folder, name)
    assert result and result.resumed_from == resumed_from
    assert result_bytes(result) == undisturbed(name)
    return lines


def stored(folder: Path) -> list[Path]:
    """The checkpoints, oldest first."""
    return sorted(folder.glob("round-*"))


def stored_rounds(folder: Path) -> list[int]:
    return [int(path.name.split("-")[1]) for path in stored(folder)]


# --- stopped runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", six_of(METHODS.names()))
def test_a_stopped_run_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    for stop in (2, 3, ROUNDS):
        assert start(tmp_path, name, stop) == (None, [])
    assert finish(tmp_path, name, resumed_from=ROUNDS - 1) == []


def test_a_run_that_had_ended_is_read_back(tmp_path: Path) -> None:
    finish(tmp_path, "fedtp", resumed_from=0)
    assert finish(tmp_path, "fedtp", resumed_from=ROUNDS) == []


@pytest.mark.parametrize(("every", "rounds"), [(0, [4, 5]), (1e9, [])])
def test_the_time_between_checkpoints_changes_no_result(every: float, rounds: list[int], tmp_path: Path) -> None:
    entry = method("fedper")
    with CheckpointFolder(tmp_path, "me", print) as folder:
        result = run(entry, first_fitting(entry), **SETTINGS, checkpoints=folder, checkpoint_every=every)
    assert result_bytes(result) == undisturbed("fedper")
    assert stored_rounds(tmp_path) == rounds


def test_a_round_that_diverged_is_not_stored(tmp_path: Path) -> None:
    settings = training(rounds=4, lr=1e20)
    with CheckpointFolder(tmp_path, "me", print) as folder:
        result = run(method("fedavg"), backbone("convnet"), training=settings, checkpoints=folder, checkpoint_every=0)
    assert result.diverged and stored(tmp_path) == []


# --- damaged and foreign checkpoints -------------------------------------------------------------------------------


DAMAGES = [flip, shorten, empty]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["fedavg", "fedtp", "local"])
def test_a_damaged_checkpoint_is_passed_over(name: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    start(tmp_path, name, stop=4)
    older, newer = stored(tmp_path)
    damage(newer)
    lines = finish(tmp_path, name, resumed_from=2)
    assert lines == [f"{newer}: its content does not match its name; passed over"]
    assert older.name.startswith("round-000002-")


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    start(tmp_path, "fedtp", stop=4, identity="another")
    paths = stored(tmp_path)
    lines = finish(tmp_path, "fedtp", resumed_from=0)
    assert lines == [f"{path}: it belongs to another run; passed over" for path in paths[::-1]]
    assert not set(paths) & set(stored(tmp_path))


def place(folder: Path, content: bytes, round_: int = 7) -> None:
    """A file whose name fits its content."""
    folder.mkdir(exist_ok=True)
    digest = hashlib.sha256(content).hexdigest()[:16]
    (folder / f"round-{round_:06d}-{digest}.safetensors").write_bytes(content)


def header(**facts: Any) -> dict[str, str]:
    return {"pfl": json.dumps(facts)}


fits = partial(compare, expected=TENSORS)

FOREIGN: dict[str, tuple[bytes, str]] = {
    "text": (b"not tensors", "not a checkpoint"),
    "empty": (b"", "not a checkpoint"),
    "huge header": (b"\xff" * 64, "not a checkpoint"),
    "no identity": (save(TENSORS), "it belongs to another run"),
    "no JSON": (save(TENSORS, {"pfl": "{"}), "not a checkpoint"),
    "lacking": (save({"shared/a": TENSORS["shared/a"]}, header(identity="me", round=7)), "shared/n is missing"),
    "shape": (
        save({**TENSORS, "shared/a": torch.ones(4)}, header(identity="me", round=7)),
        r"shared/a is \(4,\) torch.float32, expected \(3,\) torch.float32",
    ),
    "type": (
        save({**TENSORS, "shared/n": torch.tensor(2.0)}, header(identity="me", round=7)),
        r"shared/n is \(\) torch.float32, expected \(\) torch.int64",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_that_is_no_checkpoint_of_this_run_is_passed_over(case: str, tmp_path: Path) -> None:
    content, reason = FOREIGN[case]
    lines: list[str] = []
    with CheckpointFolder(tmp_path, "me", lines.append) as folder:
        folder.save(3, TENSORS)
        place(tmp_path, content)
        checkpoint = folder.load(fits)
    assert checkpoint and checkpoint.round == 3
    assert len(lines) == 1 and "\n" not in lines[0]
    assert re.search(f": {reason}.*; passed over$", lines[0])


# --- the folder ----------------------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    state = {**TENSORS, "personal/3/head.weight": torch.rand(4, 2).t(), "extra/empty": torch.zeros(0)}
    with CheckpointFolder(tmp_path / "made" / "for it", "me", print) as folder:
        assert folder.load(partial(compare, expected=state)) is None
        folder.save(12, state)
        checkpoint = folder.load(partial(compare, expected=state))
    assert checkpoint and checkpoint.round == 12 and checkpoint.tensors.keys() == state.keys()
    for name, tensor in state.items():
        assert checkpoint.tensors[name].dtype == tensor.dtype and torch.equal(checkpoint.tensors[name], tensor)


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path, "me", print) as folder:
        for round_ in (1, 2, 9, 10, 11):
            folder.save(round_, {"shared/a": torch.tensor([float(round_)])})
            assert len(stored(tmp_path)) == min(round_, 2)
    assert stored_rounds(tmp_path) == [10, 11]


def test_clear_leaves_no_checkpoint_and_no_leftover(tmp_path: Path) -> None:
    (tmp_path / ".4711.part").write_bytes(b"half")
    with CheckpointFolder(tmp_path, "me", print) as folder:
        folder.save(1, TENSORS)
        folder.save(2, TENSORS)
        folder.clear()
    assert {path.name for path in tmp_path.iterdir()} <= {"lock"}


def test_a_save_that_fails_leaves_the_checkpoint_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: dict[str, Tensor], path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    with CheckpointFolder(tmp_path, "me", print) as folder:
        folder.save(1, TENSORS)
        monkeypatch.setattr("pflcore.engine.pieces.save_file", full)
        with pytest.raises(OSError, match="no space"):
            folder.save(2, TENSORS)
        checkpoint = folder.load(fits)
    assert checkpoint and checkpoint.round == 1 and stored_rounds(tmp_path) == [1]
    assert list(tmp_path.glob(".*.part")) == []


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a machine that loses its power may keep the name and lose the content, of both that are kept."""
    synced: list[tuple[int, int, list[int]]] = []
    sync = os.fsync

    def noting(file: int) -> None:
        found = os.fstat(file)
        synced.append((found.st_ino, found.st_size, stored_rounds(tmp_path)))
        sync(file)

    monkeypatch.setattr(os, "fsync", noting)
    with CheckpointFolder(tmp_path, "me", print) as folder:
        folder.save(3, TENSORS)
    (path,) = stored(tmp_path)
    assert (path.stat().st_ino, path.stat().st_size, []) in synced


# --- one process at a time -----------------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from pflcore.engine import CheckpointFolder
with CheckpointFolder(Path(sys.argv[1]), "me", print):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another process is training this run") as error:
            start(tmp_path, "fedavg")
        assert str(error.value).startswith(str(tmp_path))
        holder.kill()  # a process that dies holds nothing
    finish(tmp_path, "fedavg", resumed_from=0)
