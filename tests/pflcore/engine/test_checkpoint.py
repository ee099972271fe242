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
from support.killing import Kill, Victim
from support.tiers import six_of
from support.tiny import backbone, first_fitting, method, result_bytes, run, training
from torch import Tensor

from pflcore.engine import CheckpointFolder, Progress, Result, pieces
from pflcore.engine.evaluate import Scores
from pflcore.engine.pieces import stored_pieces, write_hashed
from pflcore.engine.state import ClientStates, History, Stateful, apart, compare, join, misfit, restore
from pflcore.errors import UserError
from pflcore.methods import METHODS

# --- checkpoint ------------------------------------------------------------------------------------------------------


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


# --- shared pieces ---------------------------------------------------------------------------------------------------


INITIAL = {"head.weight": torch.zeros(8, 4), "head.count": torch.tensor(0)}


class Killed(BaseException):
    """Stands for the end of a process."""


def own(value: int) -> dict[str, Tensor]:
    return {"head.weight": torch.full((8, 4), float(value)), "head.count": torch.tensor(value)}


class Run:
    """A run's parts in rows, of which so many clients change at a time, and its checkpoints in a folder."""

    def __init__(self, folder: Path, clients: int) -> None:
        self.clients, self.history = ClientStates(INITIAL, clients, None), History(3)
        self.parts: dict[str, Stateful] = {"personal": self.clients, "history": self.history}
        self.lines: list[str] = []
        self.checkpoints = CheckpointFolder(folder, "me", self.lines.append)

    def train(self, clients: Iterable[int], round_: int) -> None:
        self.clients.update({client: own(1000 * round_ + client) for client in clients})
        self.history.scores[round_] = Scores.join([(round_, 20, 0.5, round_)] * 3)

    def save(self, round_: int) -> None:
        self.checkpoints.save(round_, *apart(self.parts))

    def load(self) -> int:
        """Continue from the newest good checkpoint; its round, or 0."""
        found = self.checkpoints.load(lambda tensors: misfit(self.parts, tensors))
        if found:
            restore(self.parts, found.tensors, found.stored)
        return found.round if found else 0

    def same(self, state: dict[str, Tensor]) -> bool:
        mine = join(self.parts)
        return mine.keys() == state.keys() and all(torch.equal(mine[name], state[name]) for name in mine)


def copied(parts: dict[str, Stateful]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in join(parts).items()}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of tensors that have been written, file by file."""
    sizes: list[int] = []

    def note(tensors: dict[str, Tensor], *rest: Any) -> None:
        sizes.append(sum(tensor.nbytes for tensor in tensors.values()))
        save_file(tensors, *rest)

    monkeypatch.setattr(pieces, "save_file", note)
    return sizes


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints have next to no rows themselves, and files few."""
    monkeypatch.setattr(pieces, "OWN", 100)
    monkeypatch.setattr(pieces, "ROWS", 7)


# --- what is written -----------------------------------------------------------------------------------------------


def test_small_states_are_one_file(tmp_path: Path) -> None:
    run = Run(tmp_path, 20)
    with run.checkpoints:
        for round_ in (1, 2, 3):
            run.train(range(20), round_)
            run.save(round_)
    assert len(list(tmp_path.glob("round-*"))) == 2 and stored_pieces(tmp_path) == []


# --- kills ---------------------------------------------------------------------------------------------------------


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
                raise Killed
            return operation(*arguments, **named)

        return one

    for name in ("replace", "fsync", "unlink"):
        patch.setattr(os, name, until(getattr(os, name)))
    patch.setattr(pieces, "save_file", until(save_file, half=True))


def saves(run: Run, states: dict[int, dict[str, Tensor]], rounds: Iterable[int]) -> None:
    """Rounds in which many and few clients change, each of which is stored."""
    for round_ in rounds:
        run.train(range(round_ % 2 * 9, 20 if round_ % 3 else 12), round_)
        states[round_] = copied(run.parts)
        run.save(round_)


def test_a_kill_between_any_two_operations_loses_one_checkpoint_at_most(no_room: None, tmp_path: Path) -> None:
    when, over = 0, False
    while not over:
        folder, states = tmp_path / str(when), {0: dict[str, Tensor]()}
        run = Run(folder, 20)
        with run.checkpoints, pytest.MonkeyPatch.context() as patch:
            kill_at(patch, when)
            try:
                saves(run, states, range(1, 4))
                over = True
            except Killed:
                pass
        again = Run(folder, 20)
        with again.checkpoints:
            found = again.load()
            assert found >= max(states) - 1 and again.same(states[found]) and again.lines == []
            saves(again, states, range(found + 1, 5))
        last = Run(folder, 20)
        with last.checkpoints:
            assert last.load() == 4 and last.same(states[4])
            assert len(list(folder.glob("round-*"))) == 2
            listed = {name for path in folder.glob("round-*") for name in stored_names(path)}
            assert {path.name for path in stored_pieces(folder)} == listed, "nothing that nobody needs"
            last.checkpoints.clear()
        assert {path.name for path in folder.iterdir()} <= {"lock"}
        when += 1
    assert when > 25, "operations of three checkpoints"


def stored_names(path: Path) -> set[str]:
    """What a checkpoint says that it needs."""
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    layers = json.loads(header["__metadata__"]["pfl"])["layers"]
    return {name for several in layers.values() for names in several for name in names}


# --- damage --------------------------------------------------------------------------------------------------------


def two_checkpoints(folder: Path) -> Run:
    """After rounds 1 and 2: the second has a layer more, and shares the others."""
    run = Run(folder, 50)
    with run.checkpoints:
        run.train(range(50), 1)
        run.save(1)
        run.train(range(3), 2)
        run.save(2)
    return run


@pytest.mark.parametrize("damage", [flip, shorten, empty, Path.unlink])
def test_a_damaged_piece_is_passed_over(no_room: None, damage: Callable[[Path], None], tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    older, newer = sorted(tmp_path.glob("round-*"))
    (piece,) = [
        name for name in stored_names(newer) - stored_names(older) if b'"personal/0/' in (tmp_path / name).read_bytes()
    ]
    damage(tmp_path / piece)
    again = Run(tmp_path, 50)
    with again.checkpoints:
        assert again.load() == 1
        why = f"{piece} is missing" if damage is Path.unlink else f"{piece}: its content does not match its name"
        assert again.lines == [f"{newer}: {why}; passed over"]
        again.save(2)
        assert not newer.exists() and older.exists()


FOREIGN_LAYERS: dict[str, tuple[object, str]] = {
    "no list": ({"personal": "piece"}, "it names files that are none of a checkpoint"),
    "no layers": ({"personal": [["a"]]}, "it names files that are none of a checkpoint"),
    "a path": ({"personal": [["../piece-0123456789abcdef.safetensors"]]}, "it names files that are none of a"),
    "a number": ([3], "it names files that are none of a checkpoint"),
    "missing": (
        {"personal": [["piece-0123456789abcdef.safetensors"]]},
        "piece-0123456789abcdef.safetensors is missing",
    ),
}


@pytest.mark.parametrize("case", FOREIGN_LAYERS)
def test_layers_that_are_none_are_passed_over(case: str, tmp_path: Path) -> None:
    layers, reason = FOREIGN_LAYERS[case]
    tmp_path.mkdir(exist_ok=True)
    write_hashed(tmp_path, "round-000007", {}, json.dumps({"identity": "me", "round": 7, "layers": layers}))
    run = Run(tmp_path, 50)
    with run.checkpoints:
        assert run.load() == 0
    (line,) = run.lines
    assert reason in line and line.endswith("; passed over")


# --- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_run_killed_while_it_writes_ends_with_the_same_bytes(tmp_path: Path) -> None:
    victim = Victim(tmp_path, "fedper", rounds=12)
    expected, _ = victim.undisturbed()
    assert {"rounds.parquet", "weights.safetensors"} < expected.keys()
    trial = victim.killed([Kill("checkpoint", at=3, alone=True), Kill("artifact")], expected)
    assert trial.faults == []
    assert trial.hits and trial.resumed[0] >= 3  # how many more there are depends on the machine's mood
