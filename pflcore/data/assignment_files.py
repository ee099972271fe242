"""The artifact ``partition/2``: which client holds which samples."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pflcore.artifacts import read_table, write_table
from pflcore.data.assignment import VALIDATION, Assignment, by_client, flat, owners_of
from pflcore.data.noise import Noise
from pflcore.data.sample_files import column
from pflcore.data.samples import SPLITS
from pflcore.errors import UserError

SCHEMA = "partition/2"


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Write the artifact ``partition/2``, rows sorted by client, train before test before validation, then sample."""
    sides = assignment.sides()
    samples = np.concatenate([flat(parts) for parts in sides.values()])
    clients = np.concatenate([owners_of(parts) for parts in sides.values()])
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
        by_client(owners[split == side], rows[split == side], clients) for side in range(split.max(initial=1) + 1)
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
    index = pc.index_in(words, value_set=pa.array([*SPLITS, VALIDATION]))
    if index.null_count:
        raise UserError(
            f"{path}: column 'split' must hold train, test or validation in every row; delete it and run again"
        )
    return np.asarray(index).astype(np.int64)
