"""Which client holds which samples, and the artifact ``partition/2`` that stores it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pflcore.artifacts import read_table, write_table
from pflcore.data.noise import Noise
from pflcore.data.sample_files import column, split_column, split_mask
from pflcore.data.samples import Mask, Rows
from pflcore.errors import UserError

SCHEMA = "partition/2"


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
    """

    train: list[Rows]
    test: list[Rows]
    scheme: str
    seed: int
    own_split: bool = False
    novel: tuple[int, ...] = ()
    noise: Noise | None = None

    def __post_init__(self) -> None:
        where = f"partition {self.scheme!r}"
        if len(self.train) != len(self.test):
            raise UserError(f"{where}: {len(self.train)} clients train, {len(self.test)} are tested")
        if self.noise and len(self.noise.std) != self.clients:
            raise UserError(f"{where}: noise of {len(self.noise.std)} clients, but there are {self.clients}")
        if any(not 0 <= client < self.clients for client in self.novel) or self.novel != tuple(sorted(set(self.novel))):
            raise UserError(f"{where}: novel clients {self.novel} must be ascending and within 0..{self.clients - 1}")
        if len(self.novel) == self.clients:
            raise UserError(f"{where}: all {self.clients} clients are novel, none is left to train")

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train)

    @classmethod
    def from_owners(cls, owners: Rows, train: Mask, clients: int, scheme: str, seed: int, **more: Any) -> Assignment:
        """From the owner of every sample.

        Args:
            owners: int64 [n], the client that holds the sample, or -1 for a sample that is not used.
            train: bool [n], true for training samples.
            clients: Number of clients; those without samples get empty arrays.
            more: The other fields.
        """
        used = owners >= 0
        parts = [np.flatnonzero(split & used) for split in (train, ~train)]
        in_train, in_test = (_by_client(owners[rows], rows, clients) for rows in parts)
        return cls(in_train, in_test, scheme, seed, **more)

    def rows(self) -> list[Rows]:
        """For each client its training rows, then its test rows."""
        return [np.concatenate(pair) for pair in zip(self.train, self.test, strict=True)]

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
        sides = [np.ones(count, np.bool_)] * 2 if self.own_split else [train, ~train]
        seen = np.zeros(count, np.int64)
        for split, parts, side in zip(("train", "test"), (self.train, self.test), sides, strict=True):
            rows, owners = _flat(parts), _owners(parts)
            outside = (rows < 0) | (rows >= count)
            for wrong, words in (
                (outside, f"is outside the dataset of {count} samples"),
                (~side[np.where(outside, 0, rows)] if count else outside, f"is not a {split} sample of the dataset"),
            ):
                if wrong.any():
                    first = int(wrong.argmax())
                    raise UserError(f"{where}: client {owners[first]}, {split}: row {rows[first]} {words}")
            held = np.bincount(rows, minlength=count)
            if (held > 1).any():
                row = int((held > 1).argmax())
                clients = ", ".join(map(str, owners[rows == row][:2]))
                raise UserError(f"{where}: row {row} is held {held[row]} times, by clients {clients}")
            seen += held
        if (seen > 1).any():
            raise UserError(f"{where}: row {int((seen > 1).argmax())} is held for training and for test")


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Write the artifact ``partition/2``, rows sorted by client, train before test, then sample."""
    sides = (assignment.train, assignment.test)
    samples = np.concatenate([_flat(parts) for parts in sides])
    clients = np.concatenate([_owners(parts) for parts in sides])
    train = np.repeat([True, False], [sum(map(len, parts)) for parts in sides])
    order = np.lexsort((samples, ~train, clients))
    table = pa.table(
        {
            "client": pa.array(clients[order].astype(np.int32)),
            "sample": pa.array(samples[order]),
            "split": split_column(train[order]),
        }
    )
    noise = assignment.noise
    write_table(
        path,
        table,
        SCHEMA,
        scheme=assignment.scheme,
        clients=assignment.clients,
        seed=assignment.seed,
        own_split=assignment.own_split,
        novel=list(assignment.novel),
        noise=dataclasses.asdict(noise) if noise else None,
    )


def read_assignment(path: Path) -> Assignment:
    """Read the artifact ``partition/2``.

    Raises:
        UserError: The file is missing, damaged, of another schema, or names a client or row that cannot exist.
    """
    table, meta = read_table(path, SCHEMA)
    clients, scheme, seed = meta.get("clients"), meta.get("scheme"), meta.get("seed")
    if not (isinstance(clients, int) and clients > 0 and isinstance(scheme, str) and isinstance(seed, int)):
        raise UserError(f"{path}: damaged metadata {meta}; delete it and run again")
    owners = np.asarray(column(path, table, "client", pa.int32()))
    rows = np.asarray(column(path, table, "sample", pa.int64()))
    train = split_mask(path, table)
    wrong = (owners < 0) | (owners >= clients) | (rows < 0)
    if wrong.any():
        first = int(wrong.argmax())
        raise UserError(
            f"{path}: client {owners[first]}, sample {rows[first]}: clients are 0..{clients - 1}, samples start at 0"
        )
    in_train, in_test = (_by_client(owners[side], rows[side], clients) for side in (train, ~train))
    try:
        noise = meta.get("noise")
        return Assignment(
            in_train,
            in_test,
            scheme,
            seed,
            own_split=bool(meta["own_split"]),
            novel=tuple(meta["novel"]),
            noise=Noise(tuple(noise["std"]), bool(noise["released"]), int(noise["seed"])) if noise else None,
        )
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged metadata ({type(error).__name__}: {error}); delete it and run again"
        ) from None


def _by_client(owners: npt.NDArray[np.integer], rows: Rows, clients: int) -> list[Rows]:
    order = np.lexsort((rows, owners))
    rows = rows[order]
    ends = np.cumsum(np.bincount(owners, minlength=clients)).tolist()
    return [rows[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _flat(parts: list[Rows]) -> Rows:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64, casting="safe", copy=False)


def _owners(parts: list[Rows]) -> Rows:
    return np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
