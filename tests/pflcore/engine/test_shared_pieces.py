"""Checkpoints share what did not change: what is written, what a kill between any two operations leaves, and damage."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.damage import empty, flip, shorten
from torch import Tensor

from pflcore.engine import CheckpointFolder, pieces
from pflcore.engine.checkpoint import write
from pflcore.engine.evaluate import Scores
from pflcore.engine.pieces import Layer, stored_pieces, write_hashed
from pflcore.engine.state import ClientStates, History, Stateful, apart, join, misfit, restore

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


FOREIGN: dict[str, tuple[object, str]] = {
    "no list": ({"personal": "piece"}, "it names files that are none of a checkpoint"),
    "no layers": ({"personal": [["a"]]}, "it names files that are none of a checkpoint"),
    "a path": ({"personal": [["../piece-0123456789abcdef.safetensors"]]}, "it names files that are none of a"),
    "a number": ([3], "it names files that are none of a checkpoint"),
    "missing": (
        {"personal": [["piece-0123456789abcdef.safetensors"]]},
        "piece-0123456789abcdef.safetensors is missing",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_layers_that_are_none_are_passed_over(case: str, tmp_path: Path) -> None:
    layers, reason = FOREIGN[case]
    tmp_path.mkdir(exist_ok=True)
    write_hashed(tmp_path, "round-000007", {}, json.dumps({"identity": "me", "round": 7, "layers": layers}))
    run = Run(tmp_path, 50)
    with run.checkpoints:
        assert run.load() == 0
    (line,) = run.lines
    assert reason in line and line.endswith("; passed over")


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"personal/99/head.count": torch.tensor(1)}, "there is no client 99"),
        ({"personal/1/head.count": torch.tensor(1)}, "client 1: head.weight is missing"),
        ({"personal/x": torch.tensor(1)}, "invalid literal"),
        ({"other/1": torch.tensor(1)}, "other/1 is not known"),
    ],
)
def test_a_piece_of_another_run_is_passed_over(tensors: dict[str, Tensor], reason: str, tmp_path: Path) -> None:
    piece = write_hashed(tmp_path, "piece", tensors)
    write(tmp_path, "me", 7, {}, {"personal": (Layer(frozenset(), (piece.name,)),)})
    run = Run(tmp_path, 50)
    with run.checkpoints:
        assert run.load() == 0
    (line,) = run.lines
    assert reason in line and "\n" not in line
