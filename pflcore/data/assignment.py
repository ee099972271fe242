"""Which client holds which samples, and the artifact ``partition/2`` that stores it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pflcore.artifacts import read_table, write_table
from pflcore.data.noise import Noise
from pflcore.data.sample_files import SPLITS, column
from pflcore.data.samples import Mask, Rows
from pflcore.errors import UserError

SCHEMA = "partition/2"

_VALIDATION = "validation"  # what column `split` says beside the words of a dataset's


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
        """Number of clients."""
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
        in_train, in_test, *held_back = (_by_client(owners[rows], rows, clients) for rows in parts)
        return cls(in_train, in_test, scheme, seed, validation=held_back[0] if held_back else [], **more)

    def sides(self) -> dict[str, list[Rows]]:
        """What is held for training, for test and, where anything is, for validation."""
        held_back = {_VALIDATION: self.validation} if self.validation else {}
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
            rows, owners = _flat(parts), _owners(parts)
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


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Write the artifact ``partition/2``, rows sorted by client, train before test before validation, then sample."""
    sides = assignment.sides()
    samples = np.concatenate([_flat(parts) for parts in sides.values()])
    clients = np.concatenate([_owners(parts) for parts in sides.values()])
    split = np.repeat(np.arange(len(sides), dtype=np.int8), [sum(map(len, parts)) for parts in sides.values()])
    order = np.lexsort((samples, split, clients))
    table = pa.table(
        {
            "client": pa.array(clients[order].astype(np.int32)),
            "sample": pa.array(samples[order]),
            "split": pa.DictionaryArray.from_arrays(split[order], pa.array(list(sides))),
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
    split = _splits(path, table)
    wrong = (owners < 0) | (owners >= clients) | (rows < 0)
    if wrong.any():
        first = int(wrong.argmax())
        raise UserError(
            f"{path}: client {owners[first]}, sample {rows[first]}: clients are 0..{clients - 1}, samples start at 0"
        )
    in_train, in_test, *held_back = (
        _by_client(owners[split == side], rows[split == side], clients) for side in range(split.max(initial=1) + 1)
    )
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
            validation=held_back[0] if held_back else [],
        )
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged metadata ({type(error).__name__}: {error}); delete it and run again"
        ) from None


def _splits(path: Path, table: pa.Table) -> npt.NDArray[np.int64]:
    """For every row of an artifact which side it is held for, in the order of :meth:`Assignment.sides`."""
    words = table["split"].cast(pa.string()) if "split" in table.column_names else pa.nulls(1, pa.string())
    index = pc.index_in(words, value_set=pa.array([*SPLITS, _VALIDATION]))
    if index.null_count:
        raise UserError(
            f"{path}: column 'split' must hold train, test or validation in every row; delete it and run again"
        )
    return np.asarray(index).astype(np.int64)


def _by_client(owners: npt.NDArray[np.integer], rows: Rows, clients: int) -> list[Rows]:
    order = np.lexsort((rows, owners))
    rows = rows[order]
    ends = np.cumsum(np.bincount(owners, minlength=clients)).tolist()
    return [rows[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _flat(parts: list[Rows]) -> Rows:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64, casting="safe", copy=False)


def _owners(parts: list[Rows]) -> Rows:
    return np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
