"""The state of a run without its server: personal entries of clients, and measurements."""

import math
import mmap
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcore.data.upload import move
from pflcore.engine.evaluation import COLUMNS, Scored
from pflcore.groups import Tensors
from pflcore.memory import memory_limit
from pflcore.settings import USUAL, View

_ALIGNMENT = 64  # bytes; the alignment of a newly allocated tensor


class ClientStates:
    """The personal entries of the clients that have trained; the others still have the initial ones.

    Entries are on the host, one row of bytes per client, because separate tensors would take kilobytes more. The rows
    are in memory; if the rows of all clients exceed the memory limit, they are in a mapped temporary file, in `folder`
    or in the system's temporary folder. Rows that are not written take no memory.
    """

    def __init__(self, initial: Tensors, clients: int, folder: Path | None) -> None:
        self.initial, self._trained = initial, set[int]()
        shape = clients, packed_size(initial)
        size = math.prod(shape)
        self.on_disk = size > memory_limit()
        if self.on_disk:  # the file has no name, so it disappears when the process ends, even if it is killed
            with TemporaryFile(dir=folder) as file:
                self._packed: NDArray[np.uint8] = np.memmap(file, np.uint8, "w+", shape=shape)
        else:
            private = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._packed = np.frombuffer(private, np.uint8, size).reshape(shape)

    def trained(self) -> list[int]:
        """Return the clients that have trained, in ascending order."""
        return sorted(self._trained)

    def __getitem__(self, client: int) -> Tensors:
        return self._views(client) if client in self._trained else self.initial

    def __setitem__(self, client: int, tensors: Tensors) -> None:
        if self.initial:
            self._trained.add(client)
            views = self._views(client)
            for name, tensor in tensors.items():
                views[name].copy_(tensor)

    def update(self, states: Mapping[int, Tensors]) -> None:
        """Set the entries of several clients; few copies move them from the device."""
        for client, tensors in zip(states, move(list(states.values()), torch.device("cpu")), strict=True):
            self[client] = tensors

    def _views(self, client: int) -> Tensors:
        return packed_views(torch.from_numpy(self._packed[client]), self.initial)

    def state(self) -> Tensors:
        """Return the rows of each run of consecutive clients, named by its first client: views, no copies."""
        runs = (list(run) for _, run in groupby(enumerate(self.trained()), lambda pair: pair[1] - pair[0]))
        return {str(run[0][1]): torch.from_numpy(self._packed[run[0][1] : run[-1][1] + 1]) for run in runs}

    def restore(self, tensors: Tensors) -> None:
        """Set the entries to copies of those of :meth:`state`, which may be mapped from a file."""
        self._trained.clear()
        for name, rows in tensors.items():
            start, end = int(name), int(name) + len(rows)
            self._packed[start:end] = rows.numpy()
            self._trained.update(range(start, end))


def packed_size(like: Mapping[str, Tensor]) -> int:
    """Return the number of bytes of a buffer for tensors with the shapes and types of `like`."""
    return sum(map(_padded, like.values()))


def packed_views(buffer: Tensor, like: Mapping[str, Tensor]) -> Tensors:
    """Return tensors with the names, shapes and types of `like` that are views of a uint8 buffer, one after another."""
    views = {}
    start = 0
    for name, tensor in like.items():
        views[name] = buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        start += _padded(tensor)
    return views


def _padded(tensor: Tensor) -> int:
    return -(-max(tensor.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT


class History:
    """The measurements so far: by measured round, the scores of all clients, and the losses of their local steps.

    A train loss is the mean over a client's local steps in that round; it is NaN for a client that did not train.

    Args:
        members: For each client whether it takes part in training (no novel client, no attacker).
        splits: 2 if clients hold samples back for validation, else 1.
        further: Names of the task's further numbers.
        views: The views that are measured; early stopping uses the first.
    """

    def __init__(
        self,
        members: NDArray[np.bool_],
        splits: int = 1,
        further: Sequence[str] = (),
        views: Sequence[View] = (USUAL,),
    ) -> None:
        self.members, self.splits, self.views = members, splits, tuple(views)
        self.columns = (*COLUMNS, *further)
        # By round the scores and, last, the train losses: (views · splits · columns + 1, clients).
        self.rows: dict[int, NDArray[np.float64]] = {}

    def add(self, round_: int, scores: Scored, train_losses: Mapping[int, float]) -> None:
        """Add the measurement after a round; `train_losses` are of the clients that trained in it."""
        losses = [train_losses.get(client, np.nan) for client in range(len(self.members))]
        self.rows[round_] = np.vstack((scores.reshape(-1, len(losses)), losses))

    def figure(self, round_: int, split: int = 0) -> float:
        """Return the figure (0 to 1) of the members in the usual measurement after a round: the pooled accuracy, or the
        mean of their precisions."""
        scores = self.rows[round_][:-1].reshape(-1, len(self.columns), len(self.members))
        columns = dict(zip(self.columns, scores[split][:, self.members], strict=True))
        precision = columns.get("precision")
        return float(columns["correct"].sum() / columns["total"].sum() if precision is None else np.nanmean(precision))

    def last_figure(self) -> float | None:
        """Return the figure (0 to 1) of the members in the last measurement, or None if there is none."""
        return self.figure(max(self.rows)) if self.rows else None

    def stops_after(self, patience: int | None) -> int | None:
        """Return the round after which training stops early according to the measurements so far, or None.

        Training stops after `patience` measurements in a row without a better figure on validation samples.
        """
        if patience is None:
            return None
        best, waited = -1.0, 0
        for round_ in sorted(self.rows):
            figure = self.figure(round_, 1)  # of validation samples
            best, waited = (figure, 0) if figure > best else (best, waited + 1)
            if waited == patience:
                return round_
        return None

    def state(self) -> Tensors:
        """Return the rows by round, as views."""
        return {str(round_): torch.from_numpy(rows) for round_, rows in self.rows.items()}

    def restore(self, tensors: Tensors) -> None:
        """Set the rows to copies of those of :meth:`state`."""
        self.rows = {round_: tensors[str(round_)].clone().numpy() for round_ in sorted(map(int, tensors))}
