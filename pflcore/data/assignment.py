"""Which client holds which samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pflcore.data.noise import Noise
from pflcore.data.samples import SPLITS, Mask, Rows
from pflcore.errors import UserError

VALIDATION = "validation"  # what a sample can be held for, beside a dataset's own two sides


@dataclass(frozen=True, eq=False)
class Assignment:
    """The samples of every client.

    Args:
        train: One int64 array per client: ascending rows of the dataset it trains on.
        test: The same for the rows it is tested on.
        scheme: Name of the partition that made it.
        seed: Seed it was made with.
        own_split: Training and test samples were chosen by the partition, whatever the dataset says.
        novel: Clients that take no part in training, ascending.
        noise: What is added to the images, if anything.
        validation: As `train`, the rows that are held back for validation; an empty list where none are.
    """

    train: list[Rows]
    test: list[Rows]
    scheme: str
    seed: int
    own_split: bool = False
    novel: tuple[int, ...] = ()
    noise: Noise | None = None
    validation: list[Rows] = field(default_factory=list)

    def __post_init__(self) -> None:
        where = f"partition {self.scheme!r}"
        if len(self.train) != len(self.test):
            raise UserError(f"{where}: {len(self.train)} clients train, {len(self.test)} are tested")
        if self.validation and len(self.validation) != self.clients:
            raise UserError(f"{where}: {self.clients} clients train, {len(self.validation)} hold back for validation")
        if self.noise and len(self.noise.std) != self.clients:
            raise UserError(f"{where}: noise of {len(self.noise.std)} clients, but there are {self.clients}")
        if any(not 0 <= client < self.clients for client in self.novel) or self.novel != tuple(sorted(set(self.novel))):
            raise UserError(f"{where}: novel clients {self.novel} must be ascending and within 0..{self.clients - 1}")
        if len(self.novel) == self.clients:
            raise UserError(f"{where}: all {self.clients} clients are novel, none is left to train")

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(self.train)

    @classmethod
    def from_owners(
        cls,
        owners: Rows,
        train: Mask,
        clients: int,
        scheme: str,
        seed: int,
        *,
        validation: Mask | None = None,
        **more: Any,
    ) -> Assignment:
        """From the owner of every sample.

        Args:
            owners: int64 [n], the client that holds the sample, or -1 for a sample that is not used.
            train: bool [n], true for training samples.
            clients: Number of clients; those without samples get empty arrays.
            validation: bool [n], true for samples held back for validation, which are no training samples; None for
                none.
            more: The other fields.
        """
        used = owners >= 0
        test = ~train if validation is None else ~(train | validation)
        sides = (train, test) if validation is None else (train, test, validation)
        parts = [np.flatnonzero(side & used) for side in sides]
        in_train, in_test, *held_back = (by_client(owners[rows], rows, clients) for rows in parts)
        return cls(in_train, in_test, scheme, seed, validation=held_back[0] if held_back else [], **more)

    def sides(self) -> dict[str, list[Rows]]:
        """Return what is held for training, for test and, where anything is, for validation."""
        held_back = {VALIDATION: self.validation} if self.validation else {}
        return dict(zip(SPLITS, (self.train, self.test), strict=True)) | held_back

    def rows(self) -> list[Rows]:
        """For each client its training rows, then its test rows.

        What is held back for validation stands where it would as training samples, so that what depends on a sample's
        place is the same with and without.
        """
        train = self.train
        if self.validation:
            train = [np.sort(np.concatenate(pair)) for pair in zip(train, self.validation, strict=True)]
        return [np.concatenate(pair) for pair in zip(train, self.test, strict=True)]

    def check(self, count: int, train: Mask) -> None:
        """Compare with the dataset it refers to.

        Args:
            count: Number of samples of the dataset.
            train: bool [count], true for training samples.

        Raises:
            UserError: A row outside the dataset, a row held twice, or, unless the split is the partition's own, a row
                on the wrong side of it.
        """
        where = f"partition {self.scheme!r}"
        if len(train) != count:
            raise UserError(f"{where}: the mask has {len(train)} entries for {count} samples")
        everything = np.ones(count, np.bool_)
        seen: dict[str, npt.NDArray[np.int64]] = {}
        for split, parts in self.sides().items():
            # Of the dataset's own sides validation is on that of training.
            side, word = (~train, "test") if split == "test" else (train, "train")
            side = everything if self.own_split else side
            rows, owners = flat(parts), owners_of(parts)
            outside = (rows < 0) | (rows >= count)
            for wrong, words in (
                (outside, f"is outside the dataset of {count} samples"),
                (~side[np.where(outside, 0, rows)] if count else outside, f"is not a {word} sample of the dataset"),
            ):
                if wrong.any():
                    first = int(wrong.argmax())
                    raise UserError(f"{where}: client {owners[first]}, {split}: row {rows[first]} {words}")
            held = np.bincount(rows, minlength=count)
            if (held > 1).any():
                row = int((held > 1).argmax())
                clients = ", ".join(map(str, owners[rows == row][:2]))
                raise UserError(f"{where}: row {row} is held {held[row]} times, by clients {clients}")
            for other, those in seen.items():
                if (both := (held > 0) & (those > 0)).any():
                    raise UserError(f"{where}: row {int(both.argmax())} is held for {other} and for {split}")
            seen[split] = held


def by_client(owners: npt.NDArray[np.integer], rows: Rows, clients: int) -> list[Rows]:
    """For each client its rows in ascending order. `owners` and `rows` are of one length."""
    order = np.lexsort((rows, owners))
    rows = rows[order]
    ends = np.cumsum(np.bincount(owners, minlength=clients)).tolist()
    return [rows[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def flat(parts: list[Rows]) -> Rows:
    """Return the rows of all clients in one int64 array, client after client."""
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64, casting="safe", copy=False)


def owners_of(parts: list[Rows]) -> Rows:
    """Return the client of each entry of :func:`flat`."""
    return np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
