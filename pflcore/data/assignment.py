"""The assignment of samples to clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pflcore.data.noise import Noise
from pflcore.data.samples import SPLITS, Mask, Rows
from pflcore.errors import UserError

Integers = npt.NDArray[np.integer]
VALIDATION = "validation"  # a third side, which only partitions have


@dataclass(frozen=True, eq=False)
class Assignment:
    """The samples of every client."""

    train: list[Rows]  # one int64 array per client: ascending rows of the dataset
    test: list[Rows]
    scheme: str  # name of the partition
    seed: int
    own_split: bool = False  # whether the partition, not the dataset, chose training and test samples
    novel: tuple[int, ...] = ()  # clients that take no part in training, ascending
    noise: Noise | None = None  # noise on the images
    validation: list[Rows] = field(default_factory=list)  # rows for validation, as `train`; empty if there are none

    def __post_init__(self) -> None:
        if len(self.novel) == self.clients:
            raise UserError(f"partition {self.scheme!r}: all clients are novel; at least one has to train")

    @property
    def clients(self) -> int:
        return len(self.train)

    @classmethod
    def from_rows(
        cls, rows: Rows, owners: Integers, split: Integers, clients: int, scheme: str, seed: int, **fields: Any
    ) -> Assignment:
        """Return the assignment of some rows of a dataset, each with its client and its side: 0 for training, 1 for
        test, 2 for validation. `fields` are further fields of the class."""
        train, test, validation = (by_client(owners[split == side], rows[split == side], clients) for side in range(3))
        return cls(train, test, scheme, seed, validation=validation if (split == 2).any() else [], **fields)

    def sides(self) -> dict[str, list[Rows]]:
        """Return the clients' rows by side: ``train``, ``test`` and, if there is validation, ``validation``."""
        sides = dict(zip(SPLITS, (self.train, self.test), strict=True))
        return sides | {VALIDATION: self.validation} if self.validation else sides

    def rows(self) -> list[Rows]:
        """Return the training and validation rows of each client, ascending, followed by its test rows."""
        train = self.train
        if self.validation:  # merged, as noise depends on the position and is the same without validation
            train = [np.sort(np.concatenate(pair)) for pair in zip(train, self.validation, strict=True)]
        return [np.concatenate(pair) for pair in zip(train, self.test, strict=True)]

    def check(self, train: Mask) -> None:
        """Raise :class:`UserError` for a row outside a dataset with the mask `train`, on a wrong side, or repeated."""
        where, count = f"partition {self.scheme!r}", len(train)
        for split, parts in self.sides().items():
            rows, owners = flat_rows(parts), flat_owners(parts)
            checks = [((rows < 0) | (rows >= count), f"is outside the dataset of {count} samples")]
            if not self.own_split:  # validation rows come from the dataset's training samples
                side, wrong_side = ("test", train) if split == "test" else ("train", ~train)
                checks.append((np.isin(rows, np.flatnonzero(wrong_side)), f"is not a {side} sample of the dataset"))
            for wrong, problem in checks:
                if wrong.any():
                    first = int(wrong.argmax())
                    raise UserError(f"{where}: client {owners[first]}, {split}: row {rows[first]} {problem}")
        parts = [*self.train, *self.test, *self.validation]
        rows, owners = flat_rows(parts), flat_owners(parts) % self.clients
        counts = np.bincount(rows, minlength=count)
        if (counts > 1).any():
            row = int((counts > 1).argmax())
            clients = ", ".join(map(str, owners[rows == row][:2]))
            raise UserError(f"{where}: row {row} is held {counts[row]} times, by clients {clients}")


def by_client(owners: Integers, rows: Rows, clients: int) -> list[Rows]:
    """Return the rows of each client in ascending order; ``owners[i]`` is the client of ``rows[i]``."""
    order = np.lexsort((rows, owners))
    return np.split(rows[order], np.cumsum(np.bincount(owners, minlength=clients))[:-1])


def flat_rows(parts: list[Rows]) -> Rows:
    """Return the rows of all clients as one int64 array, ordered by client."""
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64, casting="safe", copy=False)


def flat_owners(parts: list[Rows]) -> Rows:
    """Return the client of each entry of :func:`flat_rows`."""
    return np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
