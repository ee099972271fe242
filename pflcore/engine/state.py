"""What a run carries from round to round, as parts that can be saved, checked leaf by leaf, and taken up again."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pflcore.data.upload import move
from pflcore.engine.evaluate import PLAIN, Scores
from pflcore.engine.packing import packed_size, packed_views
from pflcore.groups import Tensors
from pflcore.memory import memory_limit
from pflcore.method import Server, below, under


class Stateful(Protocol):
    """A part of a run's state."""

    def state(self) -> Tensors:
        """Everything that the next round needs of this part."""

    def misfit(self, tensors: Tensors) -> str:
        """Why `tensors` cannot be a state of this part; empty when they can."""

    def restore(self, tensors: Tensors) -> None:
        """Continue from a state that fits."""


class Rows(ABC):
    """A part in rows, one per client or round, of which few change at a time.

    Attributes:
        stored: The rows that files beside the newest checkpoint have as they are.
    """

    def __init__(self) -> None:
        self.stored: set[int] = set()

    @abstractmethod
    def keys(self) -> list[int]:
        """The rows that there are."""

    @abstractmethod
    def rows(self, keys: Iterable[int]) -> Tensors:
        """Some of them: names are a row's number, or begin with it and a slash."""

    def state(self) -> Tensors:
        return self.rows(self.keys())

    def changed(self) -> list[int]:
        """Those that are not stored, or no longer as they are now."""
        return [key for key in self.keys() if key not in self.stored]


def join(parts: Mapping[str, Stateful]) -> Tensors:
    """The states of all parts, each name below that of its part."""
    return {f"{part}/{name}": tensor for part, owner in parts.items() for name, tensor in owner.state().items()}


def apart(parts: Mapping[str, Stateful]) -> tuple[Tensors, dict[str, Rows]]:
    """The states of parts without rows as :func:`join` has them, and the parts in rows."""
    rows: dict[str, Rows] = {name: part for name, part in parts.items() if isinstance(part, Rows)}
    return join({name: part for name, part in parts.items() if name not in rows}), rows


def misfit(parts: Mapping[str, Stateful], tensors: Tensors) -> str:
    """Why `tensors` cannot be the state of these parts; empty when they can."""
    for name in tensors:
        if name.partition("/")[0] not in parts:
            return f"{name} is not known"
    reasons = (owner.misfit(below(f"{part}/", tensors)) for part, owner in parts.items())
    return next((reason for reason in reasons if reason), "")


def restore(
    parts: Mapping[str, Stateful], tensors: Tensors, stored: Mapping[str, Collection[int]] | None = None
) -> None:
    """Hand each part its state; `stored` says which rows of a part the checkpoint has that it comes from."""
    for part, owner in parts.items():
        owner.restore(below(f"{part}/", tensors))
        if isinstance(owner, Rows):
            owner.stored = set((stored or {}).get(part, ()))


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
        return under("shared/", self.server.shared) | under("extra/", self.server.extra)

    def misfit(self, tensors: Tensors) -> str:
        return compare(tensors, self.state())

    def restore(self, tensors: Tensors) -> None:
        moved = {name: tensor.to(self.device) for name, tensor in tensors.items()}
        self.server = Server(below("shared/", moved), below("extra/", moved))


class ClientStates(Rows):
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
        super().__init__()
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
        self.stored.discard(client)
        self._trained.add(client)
        own = self._views(client)
        for name, tensor in tensors.items():
            own[name].copy_(tensor)

    def _views(self, client: int) -> Tensors:
        return packed_views(torch.from_numpy(self._packed[client]), self.initial)

    def keys(self) -> list[int]:
        return self.trained()

    def rows(self, keys: Iterable[int]) -> Tensors:
        return {f"{client}/{name}": tensor for client in keys for name, tensor in self[client].items()}

    def misfit(self, tensors: Tensors) -> str:
        clients: dict[str, Tensors] = {}
        for name, tensor in tensors.items():
            client, _, entry = name.partition("/")
            clients.setdefault(client, {})[entry] = tensor
        for client, own in clients.items():
            if not (client.isascii() and client.isdecimal() and int(client) < self.clients):
                return f"there is no client {client}"
            if reason := compare(own, self.initial):
                return f"client {client}: {reason}"
        return ""

    def restore(self, tensors: Tensors) -> None:
        self._trained.clear()
        clients: dict[int, Tensors] = {}
        for name, tensor in tensors.items():
            client, _, entry = name.partition("/")
            clients.setdefault(int(client), {})[entry] = tensor
        for number in sorted(clients):
            self[number] = clients[number]


def _zeros(shape: tuple[int, int], folder: Path | None, *, in_file: bool) -> np.ndarray:
    """Bytes that take room when they are written; rows of a multiple of 64 of them are aligned as tensors are."""
    if in_file:
        # The file has no name, so it is gone with the process, however that ends.
        with TemporaryFile(dir=folder) as file:
            return np.memmap(file, np.uint8, "w+", shape=shape)
    size = shape[0] * shape[1]
    private = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(private, np.uint8, size).reshape(shape)


class History(Rows):
    """The measurements so far: rounds, and the scores of all clients after each.

    Args:
        clients: Number of clients.
        validation: Whether they are also measured on what they hold back for validation.
        width: Numbers of a client's score.
    """

    def __init__(self, clients: int, validation: bool = False, width: int = PLAIN) -> None:
        super().__init__()
        self.clients, self.validation, self.width = clients, validation, width
        self.scores: dict[int, Scores] = {}
        self._figures: dict[int, tuple[Scores, float]] = {}

    def __contains__(self, round_: object) -> bool:
        return round_ in self.scores

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

    def cut(self, last: int) -> None:
        """Forget what was measured after round `last`, and have the rest in order."""
        self.scores = {round_: self.scores[round_] for round_ in sorted(self.scores) if round_ <= last}

    def keys(self) -> list[int]:
        return list(self.scores)

    def rows(self, keys: Iterable[int]) -> Tensors:
        return {str(round_): torch.from_numpy(self.scores[round_].numbers) for round_ in keys}

    def misfit(self, tensors: Tensors) -> str:
        like = torch.empty((2 if self.validation else 1) * self.width, self.clients, dtype=torch.float64)
        for name in tensors:
            if not (name.isascii() and name.isdecimal()):
                return f"there is no round {name}"
        return compare(tensors, dict.fromkeys(tensors, like))

    def restore(self, tensors: Tensors) -> None:
        self.scores = {}
        for name in sorted(tensors, key=int):
            self.scores[int(name)] = Scores.of(tensors[name].numpy())


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
