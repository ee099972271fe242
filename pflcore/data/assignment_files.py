"""Assignments of samples to clients as files: the artifact ``partition/2``, and CSV for people and other tools."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from pflcore.artifacts import read_table, write_table
from pflcore.data.assignment import VALIDATION, Assignment, flat_owners, flat_rows
from pflcore.data.noise import Noise
from pflcore.data.sample_files import category_codes, reading_artifact
from pflcore.data.samples import SPLITS
from pflcore.errors import UserError
from pflcore.files import check_plain, csv_rows, write_text

SCHEMA = "partition/2"
HEADER = ("sample", "client", "split")
_SPLITS = (*SPLITS, VALIDATION)
MAX_SPLIT_BYTES = 1 << 30  # with ten million samples, a line has about 20 bytes


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Write the artifact ``partition/2``, rows sorted by client, train before test before validation, then sample."""
    sides = assignment.sides()
    parts = [rows for parts in sides.values() for rows in parts]
    samples, clients = flat_rows(parts), flat_owners(parts) % assignment.clients
    split = np.repeat(np.arange(len(sides), dtype=np.int8), [sum(map(len, parts)) for parts in sides.values()])
    order = np.lexsort((samples, split, clients))
    columns = {"client": pa.array(clients[order].astype(np.int32)), "sample": pa.array(samples[order])}
    columns["split"] = pa.DictionaryArray.from_arrays(split[order], pa.array(list(sides)))
    facts = {"scheme": assignment.scheme, "clients": assignment.clients, "seed": assignment.seed}
    facts |= {"own_split": assignment.own_split, "novel": list(assignment.novel)}
    noise = dataclasses.asdict(assignment.noise) if assignment.noise else None
    write_table(path, pa.table(columns), SCHEMA, **facts, noise=noise)


def read_assignment(path: Path) -> Assignment:
    """Read the artifact ``partition/2``."""
    table, meta = read_table(path, SCHEMA)
    with reading_artifact(path):
        rows, owners = np.asarray(table["sample"]), np.asarray(table["client"])
        split = category_codes(table, "split", _SPLITS)
        fields = {"own_split": bool(meta["own_split"]), "novel": tuple(meta["novel"])}
        if noise := meta.get("noise"):
            fields["noise"] = Noise(tuple(noise["std"]), bool(noise["released"]), int(noise["seed"]))
        return Assignment.from_rows(rows, owners, split, meta["clients"], meta["scheme"], meta["seed"], **fields)


def write_split(path: Path, assignment: Assignment) -> None:
    """Write an assignment as CSV, a line per sample, in order. Raises :class:`UserError` for novel clients or noise."""
    if assignment.novel or assignment.noise:
        unsupported = "novel clients" if assignment.novel else "noise on images"
        raise UserError(f"partition {assignment.scheme!r} has {unsupported}, of which a split says nothing")
    lines = []
    for split, parts in assignment.sides().items():
        for client, rows in enumerate(parts):
            lines += [(row, client, split) for row in rows.tolist()]
    write_text(path, "".join(f"{','.join(map(str, line))}\n" for line in [HEADER, *sorted(lines)]))


def read_split(path: Path, scheme: str, seed: int) -> Assignment:
    """Return the assignment in a CSV file, whose lines can be in any order. Errors name the malformed line."""
    check_plain(path)
    if path.stat().st_size > MAX_SPLIT_BYTES:
        raise UserError(f"{path}: larger than any split ({MAX_SPLIT_BYTES:,} bytes)")
    rows, owners, split = np.array(list(_lines(path)), np.int64).reshape(-1, 3).T
    if not len(rows):
        raise UserError(f"{path}: no samples in it; its lines are {','.join(HEADER)}")
    clients = int(owners.max()) + 1
    if clients > len(rows):  # checked before a list is made for each client, as a number may be huge
        missing = np.setdiff1d(np.arange(len(rows)), owners)[0]
        raise UserError(f"{path}: client {missing} of 0 to {clients - 1} has no samples")
    assignment = Assignment.from_rows(rows, owners, split, clients, scheme, seed, own_split=True)
    for name, parts in assignment.sides().items():
        if empty := [client for client, client_rows in enumerate(parts) if not len(client_rows)]:
            raise UserError(f"{path}: client {empty[0]} of 0 to {clients - 1} has no {name} samples")
    return assignment


def _lines(path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield the sample, the client and the index in `_SPLITS` of the split of each line."""
    for where, cells in csv_rows(path, ",".join(HEADER), str(path)):
        *numbers, split = cells
        small = all(number.isascii() and number.isdecimal() and len(number) <= 9 for number in numbers)
        if len(cells) != 3 or not small or split not in _SPLITS:
            expected = f"two whole numbers from 0 on and one of {', '.join(_SPLITS)}"
            raise UserError(f"{where}: {','.join(cells)[:60]!r} is not {','.join(HEADER)}: {expected}")
        yield int(numbers[0]), int(numbers[1]), _SPLITS.index(split)
