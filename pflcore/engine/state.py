"""What a run carries from round to round, as parts that can be saved, checked leaf by leaf, and restored."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcore.data.upload import move
from pflcore.engine.checkpoint import compare
from pflcore.engine.evaluation import COLUMNS, Scores
from pflcore.groups import Tensors, add_prefix, strip_prefix
from pflcore.memory import memory_limit
from pflcore.method import Server

_ALIGNMENT = 64  # bytes; what a freshly allocated tensor has


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

    They lie on the host, those of a client in a row of bytes, since tensors of its own would take kilobytes more: in
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
        """Return the clients that have entries of their own."""
        return sorted(self._trained)

    def __getitem__(self, client: int) -> Tensors:
        return self._views(client) if client in self._trained else self.initial

    def update(self, states: Mapping[int, Tensors]) -> None:
        """Set the entries of several clients, from the device in few copies."""
        for client, tensors in zip(states, move(list(states.values()), torch.device("cpu")), strict=True):
            self[client] = tensors

    def __setitem__(self, client: int, tensors: Tensors) -> None:
        if self.initial:
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
        width = self._packed.shape[1]
        for name, rows in tensors.items():
            if rows.dtype != torch.uint8 or rows.shape[1:] != (width,):
                return f"client {name}: {tuple(rows.shape)} {rows.dtype}, expected rows of {width} bytes"
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


def _zeros(shape: tuple[int, int], folder: Path | None, *, in_file: bool) -> NDArray[np.uint8]:
    """Return bytes that take memory when they are written."""
    if in_file:
        # The file has no name, so it is gone with the process, however that ends.
        with TemporaryFile(dir=folder) as file:
            return np.memmap(file, np.uint8, "w+", shape=shape)
    size = shape[0] * shape[1]
    private = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(private, np.uint8, size).reshape(shape)


def packed_size(like: Mapping[str, Tensor]) -> int:
    """Return the bytes that tensors of these shapes and types take in one buffer."""
    return sum(_padded(tensor) for tensor in like.values())


def packed_views(buffer: Tensor, like: Mapping[str, Tensor]) -> Tensors:
    """Return tensors of the names, shapes and types of `like`, one after the other in a uint8 buffer.

    So many pass as one, through shared memory or a mapped file.
    """
    views, start = {}, 0
    for name, tensor in like.items():
        views[name] = buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        start += _padded(tensor)
    return views


def _padded(tensor: Tensor) -> int:
    return -(-max(tensor.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT


class History:
    """The measurements so far: rounds, and the scores of all clients after each.

    Args:
        members: For each client whether it takes part in training.
        splits: 2 where clients are also measured on what they hold back for validation, else 1.
        precise: Whether scores have the mean average precision of a detector.
    """

    def __init__(self, members: NDArray[np.bool_], splits: int = 1, *, precise: bool = False) -> None:
        self.members, self.splits = members, splits
        self.columns = len(COLUMNS) if precise else len(COLUMNS) - 1
        self.scores: dict[int, Scores] = {}
        self._held_back: dict[int, float] = {}  # round → figure of the members on validation samples

    def add(self, round_: int, scores: Scores) -> None:
        """Add the measurement after a round."""
        self.scores[round_] = scores
        if self.splits > 1:
            self._held_back[round_] = scores.figure(self.members, 1)

    def last_figure(self) -> float | None:
        """Return the figure (0..1) of the members in the last measurement, if there is any."""
        return self.scores[max(self.scores)].figure(self.members) if self.scores else None

    def stops_after(self, patience: int | None) -> int | None:
        """Return the round after which training stops early; None as long as it goes on.

        It is a function of the measurements so far, so a run that was interrupted, or that begins where another one
        ended, stops where it would have stopped anyway.

        Args:
            patience: Measurements without a better figure on validation samples that end it; None never does.
        """
        best, waited = -1.0, 0
        for round_ in sorted(self._held_back) if patience else ():
            figure = self._held_back[round_]  # of the same samples in every round
            best, waited = (figure, 0) if figure > best else (best, waited + 1)
            if waited == patience:
                return round_
        return None

    def keep(self, rounds: Iterable[int]) -> None:
        """Forget what was measured after other rounds."""
        wanted = set(rounds)
        self.scores = {round_: scores for round_, scores in self.scores.items() if round_ in wanted}
        self._held_back = {round_: figure for round_, figure in self._held_back.items() if round_ in wanted}

    def state(self) -> Tensors:
        rows = self.splits * self.columns
        return {str(round_): torch.from_numpy(one.values).reshape(rows, -1) for round_, one in self.scores.items()}

    def misfit(self, tensors: Tensors) -> str:
        like = torch.empty(self.splits * self.columns, len(self.members), dtype=torch.float64)
        for name in tensors:
            if not (name.isascii() and name.isdecimal()):
                return f"there is no round {name}"
        return compare(tensors, dict.fromkeys(tensors, like))

    def restore(self, tensors: Tensors) -> None:
        self.scores, self._held_back = {}, {}
        for name in sorted(tensors, key=int):
            values = tensors[name].clone().numpy()
            self.add(int(name), Scores(values.reshape(self.splits, self.columns, len(self.members))))


class Traffic:
    """Bytes that clients sent and received, and how often one took part, over all rounds so far."""

    def __init__(self) -> None:
        self.up = self.down = self.updates = 0

    def add(self, up: int, down: int) -> None:
        """Add one client's round."""
        self.up, self.down, self.updates = self.up + up, self.down + down, self.updates + 1

    def mean(self) -> tuple[int, int]:
        """Return the bytes up and down of a client's round, rounded."""
        return round(self.up / max(1, self.updates)), round(self.down / max(1, self.updates))

    def state(self) -> Tensors:
        return {"bytes": torch.tensor([self.up, self.down, self.updates])}

    def misfit(self, tensors: Tensors) -> str:
        return compare(tensors, self.state())

    def restore(self, tensors: Tensors) -> None:
        self.up, self.down, self.updates = tensors["bytes"].tolist()
