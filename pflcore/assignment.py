"""Which client holds which samples, and the artifact ``partition/1`` that stores it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pflcore.artifacts import read_table, write_table
from pflcore.errors import UserError
from pflcore.samples import Mask, Rows, column, split_column, split_mask

SCHEMA = "partition/1"


@dataclass(frozen=True, eq=False)
class Assignment:
    """The samples of every client.

    Args:
        train: One int64 array per client: ascending rows of the dataset it trains on.
        test: The same for the rows it is tested on.
        scheme: Name of the partition that made it.
        seed: Seed it was made with.
    """

    train: list[Rows]
    test: list[Rows]
    scheme: str
    seed: int

    def __post_init__(self) -> None:
        if len(self.train) != len(self.test):
            raise UserError(f"partition {self.scheme!r}: {len(self.train)} clients train, {len(self.test)} are tested")

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train)

    @classmethod
    def from_owners(cls, owners: Rows, train: Mask, clients: int, scheme: str, seed: int) -> Assignment:
        """From the owner of every sample.

        Args:
            owners: int64 [n], the client that holds the sample, or -1 for a sample that is not used.
            train: bool [n], true for training samples.
            clients: Number of clients; those without samples get empty arrays.
        """
        used = owners >= 0
        parts = [np.flatnonzero(split & used) for split in (train, ~train)]
        in_train, in_test = (_by_client(owners[rows], rows, clients) for rows in parts)
        return cls(in_train, in_test, scheme, seed)

    def check(self, count: int, train: Mask) -> None:
        """Compare with the dataset it refers to.

        Args:
            count: Number of samples of the dataset.
            train: bool [count], true for training samples.

        Raises:
            UserError: A row outside the dataset, a row held twice, or a row on the wrong side of the split.
        """
        where = f"partition {self.scheme!r}"
        if len(train) != count:
            raise UserError(f"{where}: the mask has {len(train)} entries for {count} samples")
        for split, parts, side in (("train", self.train, train), ("test", self.test, ~train)):
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


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Write the artifact ``partition/1``, rows sorted by client, train before test, then sample."""
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
    write_table(path, table, SCHEMA, scheme=assignment.scheme, clients=assignment.clients, seed=assignment.seed)


def read_assignment(path: Path) -> Assignment:
    """Read the artifact ``partition/1``.

    Raises:
        UserError: The file is missing, damaged, of another schema, or names a client or row that cannot exist.
    """
    table, meta = read_table(path, SCHEMA)
    clients, scheme, seed = meta.get("clients"), meta.get("scheme"), meta.get("seed")
    if not (isinstance(clients, int) and clients > 0 and isinstance(scheme, str) and isinstance(seed, int)):
        raise UserError(f"{path}: damaged metadata {meta}; run `dvc repro`")
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
    return Assignment(in_train, in_test, scheme, seed)


def _by_client(owners: npt.NDArray[np.integer], rows: Rows, clients: int) -> list[Rows]:
    order = np.lexsort((rows, owners))
    rows = rows[order]
    ends = np.cumsum(np.bincount(owners, minlength=clients)).tolist()
    return [rows[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _flat(parts: list[Rows]) -> Rows:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64, casting="safe", copy=False)


def _owners(parts: list[Rows]) -> Rows:
    return np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
