"""What a run carries from round to round, as parts that can be saved, checked leaf by leaf, and restored."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pflcore.data.upload import move
from pflcore.engine.evaluate import PLAIN, Scores
from pflcore.engine.packing import packed_size, packed_views
from pflcore.groups import Tensors, add_prefix, strip_prefix
from pflcore.memory import memory_limit
from pflcore.method import Server


class Stateful(Protocol):
    """A part of a run's state."""

    def state(self) -> Tensors:
        """Everything that the next round needs of this part."""

    def misfit(self, tensors: Tensors) -> str:
        """Why `tensors` cannot be a state of this part; empty when they can."""

    def restore(self, tensors: Tensors) -> None:
        """Continue from copies of a state that fits, which may be of a mapped file."""


def join(parts: Mapping[str, Stateful]) -> Tensors:
    """The states of all parts, each name below that of its part."""
    return {f"{part}/{name}": tensor for part, owner in parts.items() for name, tensor in owner.state().items()}


def misfit(parts: Mapping[str, Stateful], tensors: Tensors) -> str:
    """Why `tensors` cannot be the state of these parts; empty when they can."""
    for name in tensors:
        if name.partition("/")[0] not in parts:
            return f"{name} is not known"
    reasons = (owner.misfit(strip_prefix(f"{part}/", tensors)) for part, owner in parts.items())
    return next((reason for reason in reasons if reason), "")


def restore(parts: Mapping[str, Stateful], tensors: Tensors) -> None:
    """Hand each part its state."""
    for part, owner in parts.items():
        owner.restore(strip_prefix(f"{part}/", tensors))


def compare(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """The first difference in name, shape or type; empty when there is none."""
    for name, tensor in expected.items():
        if name not in found:
            return f"{name} is missing"
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            is_, should = (f"{tuple(one.shape)} {one.dtype}" for one in (found[name], tensor))
            return f"{name} is {is_}, expected {should}"
    return next((f"{name} is not known" for name in found if name not in expected), "")


class ServerState:
    """The server: shared entries, and whatever else the method keeps."""

    def __init__(self, server: Server, device: torch.device) -> None:
        self.server = server
        self.device = device

    def state(self) -> Tensors:
        return add_prefix("shared/", self.server.shared) | add_prefix("extra/", self.server.extra)

    def misfit(self, tensors: Tensors) -> str:
        return compare(tensors, self.state())

    def restore(self, tensors: Tensors) -> None:
        moved = {name: tensor.to(self.device, copy=True) for name, tensor in tensors.items()}
        self.server = Server(strip_prefix("shared/", moved), strip_prefix("extra/", moved))


class ClientStates:
    """The personal entries of the clients that have trained; the others still have the initial ones.

    They rest on the host, those of a client in a row of bytes, since tensors of its own would take kilobytes more: in
    memory, or, when those of all clients would take more than the limit, in a temporary file that is mapped into
    memory, of which the system keeps as much in memory as there is room for. Rows that nobody has written take none.

    Args:
        initial: The personal entries that every client begins with.
        clients: Number of clients.
        folder: Where a temporary file goes; None is the system's place for such files.

    Attributes:
        on_disk: Whether the entries are in a file.
    """

    def __init__(self, initial: Tensors, clients: int, folder: Path | None) -> None:
        self.initial = initial
        self.clients = clients
        self._trained: set[int] = set()
        size = packed_size(initial)
        self.on_disk = size * clients > memory_limit()
        self._packed = _zeros((clients, size), folder, in_file=self.on_disk)

    def trained(self) -> list[int]:
        """The clients that have entries of their own."""
        return sorted(self._trained)

    def __getitem__(self, client: int) -> Tensors:
        return self._views(client) if client in self._trained else self.initial

    def update(self, states: Mapping[int, Tensors]) -> None:
        """The entries of several clients, from the device in few copies."""
        for client, tensors in zip(states, move(list(states.values()), torch.device("cpu")), strict=True):
            self[client] = tensors

    def __setitem__(self, client: int, tensors: Tensors) -> None:
        if not self.initial:
            return
        self._trained.add(client)
        own = self._views(client)
        for name, tensor in tensors.items():
            own[name].copy_(tensor)

    def _views(self, client: int) -> Tensors:
        return packed_views(torch.from_numpy(self._packed[client]), self.initial)

    def state(self) -> Tensors:
        """Return the rows of clients that follow each other, named by the first: views of what there is, no copies."""
        return {str(start): torch.from_numpy(self._packed[start:end]) for start, end in _spans(self.trained())}

    def misfit(self, tensors: Tensors) -> str:
        for name, rows in tensors.items():
            if rows.dtype != torch.uint8 or rows.shape[1:] != self._packed.shape[1:]:
                return (
                    f"client {name}: {tuple(rows.shape)} {rows.dtype}, expected rows of {self._packed.shape[1]} bytes"
                )
            if not (name.isascii() and name.isdecimal() and int(name) + len(rows) <= self.clients):
                return f"there is no client {name}"
        return ""

    def restore(self, tensors: Tensors) -> None:
        self._trained.clear()
        for name, rows in tensors.items():
            start, end = int(name), int(name) + len(rows)
            self._packed[start:end] = rows.numpy()
            self._trained.update(range(start, end))

    def entries(self, tensors: Tensors, client: int) -> Tensors:
        """Return one client's entries in a state that fits; none when it has not trained."""
        for name, rows in tensors.items():
            if 0 <= client - int(name) < len(rows):
                return packed_views(rows[client - int(name)].clone(), self.initial)
        return {}


def _spans(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield where ascending numbers begin to follow each other, and one more than where they end."""
    start = end = -1
    for number in numbers:
        if number != end:
            if end > start:
                yield start, end
            start = number
        end = number + 1
    if end > start:
        yield start, end


def _zeros(shape: tuple[int, int], folder: Path | None, *, in_file: bool) -> np.ndarray:
    """Bytes that take room when they are written; rows of a multiple of 64 of them are aligned as tensors are."""
    if in_file:
        # The file has no name, so it is gone with the process, however that ends.
        with TemporaryFile(dir=folder) as file:
            return np.memmap(file, np.uint8, "w+", shape=shape)
    size = shape[0] * shape[1]
    private = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(private, np.uint8, size).reshape(shape)


class History:
    """The measurements so far: rounds, and the scores of all clients after each.

    Args:
        clients: Number of clients.
        validation: Whether they are also measured on what they hold back for validation.
        width: Numbers of a client's score.
    """

    def __init__(self, clients: int, validation: bool = False, width: int = PLAIN) -> None:
        self.clients, self.validation, self.width = clients, validation, width
        self.scores: dict[int, Scores] = {}
        self._figures: dict[int, tuple[Scores, float]] = {}

    def figure(self, round_: int, clients: np.ndarray) -> float | None:
        """That of some clients on validation samples, the same clients in every call; None where there are none.

        Each is computed once: who looks for the best one after every round would compute all of them again.
        """
        scores = self.scores[round_].validation
        if scores is None:
            return None
        known = self._figures.get(round_)
        if not known or known[0] is not scores:
            known = self._figures[round_] = scores, scores.figure(clients)
        return known[1]

    def keep(self, rounds: Iterable[int]) -> None:
        """Forget what was measured after other rounds."""
        self.scores = {round_: self.scores[round_] for round_ in rounds if round_ in self.scores}

    def state(self) -> Tensors:
        return {str(round_): torch.from_numpy(scores.numbers) for round_, scores in self.scores.items()}

    def misfit(self, tensors: Tensors) -> str:
        like = torch.empty((2 if self.validation else 1) * self.width, self.clients, dtype=torch.float64)
        for name in tensors:
            if not (name.isascii() and name.isdecimal()):
                return f"there is no round {name}"
        return compare(tensors, dict.fromkeys(tensors, like))

    def restore(self, tensors: Tensors) -> None:
        self.scores = {}
        for name in sorted(tensors, key=int):
            self.scores[int(name)] = Scores.of(tensors[name].clone().numpy())


class Traffic:
    """Bytes that clients sent and received, and how often one took part, over all rounds so far."""

    def __init__(self) -> None:
        self.up = self.down = self.updates = 0

    def add(self, up: int, down: int) -> None:
        """One client's round."""
        self.up, self.down, self.updates = self.up + up, self.down + down, self.updates + 1

    def mean(self) -> tuple[int, int]:
        """Bytes up and down of a client's round, rounded."""
        return round(self.up / max(1, self.updates)), round(self.down / max(1, self.updates))

    def state(self) -> Tensors:
        return {"bytes": torch.tensor([self.up, self.down, self.updates])}

    def misfit(self, tensors: Tensors) -> str:
        return compare(tensors, self.state())

    def restore(self, tensors: Tensors) -> None:
        self.up, self.down, self.updates = tensors["bytes"].tolist()
