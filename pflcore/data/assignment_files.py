"""Assignments of samples to clients as files: the artifact ``partition/2``, and CSV for people and other tools."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from pflcore.artifacts import read_table, write_table
from pflcore.data.assignment import VALIDATION, Assignment, flat, owners_of
from pflcore.data.noise import Noise
from pflcore.data.sample_files import checking, positions
from pflcore.data.samples import SPLITS
from pflcore.errors import UserError
from pflcore.files import check_plain, csv_rows, write_text

SCHEMA = "partition/2"
HEADER = ("sample", "client", "split")
_WORDS = (*SPLITS, VALIDATION)
MAX_SPLIT_BYTES = 1 << 30  # with ten million samples, a line has about 20 bytes


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Write the artifact ``partition/2``, rows sorted by client, train before test before validation, then sample."""
    sides = assignment.sides()
    samples, clients = (np.concatenate([of(parts) for parts in sides.values()]) for of in (flat, owners_of))
    split = np.repeat(np.arange(len(sides), dtype=np.int8), [sum(map(len, parts)) for parts in sides.values()])
    order = np.lexsort((samples, split, clients))
    table = pa.table(
        {
            "client": pa.array(clients[order].astype(np.int32)),
            "sample": pa.array(samples[order]),
            "split": pa.DictionaryArray.from_arrays(split[order], pa.array(list(sides))),
        }
    )
    facts = {"scheme": assignment.scheme, "clients": assignment.clients, "seed": assignment.seed}
    facts |= {"own_split": assignment.own_split, "novel": list(assignment.novel)}
    noise = dataclasses.asdict(assignment.noise) if assignment.noise else None
    write_table(path, table, SCHEMA, **facts, noise=noise)


def read_assignment(path: Path) -> Assignment:
    """Read the artifact ``partition/2``."""
    table, meta = read_table(path, SCHEMA)
    with checking(path):
        noise = meta.get("noise")
        return Assignment.of(
            np.asarray(table["sample"]),
            np.asarray(table["client"]),
            positions(table, "split", _WORDS),
            meta["clients"],
            meta["scheme"],
            meta["seed"],
            own_split=bool(meta["own_split"]),
            novel=tuple(meta["novel"]),
            noise=Noise(tuple(noise["std"]), bool(noise["released"]), int(noise["seed"])) if noise else None,
        )


def write_split(path: Path, assignment: Assignment) -> None:
    """Write an assignment as CSV, a line per assigned sample, in their order. Novel clients and noise are refused."""
    for name, what in (("novel", "novel clients"), ("noise", "noise on images")):
        if getattr(assignment, name):
            raise UserError(f"partition {assignment.scheme!r} has {what}, of which a split says nothing")
    held = [(word, client, rows) for word, parts in assignment.sides().items() for client, rows in enumerate(parts)]
    lines = sorted((row, client, word) for word, client, rows in held for row in rows.tolist())
    write_text(path, "\n".join([",".join(HEADER), *(f"{row},{client},{word}" for row, client, word in lines)]) + "\n")


def read_split(path: Path, scheme: str, seed: int) -> Assignment:
    """Return the assignment in a CSV file, whose lines can be in any order. An error names the malformed line."""
    check_plain(path)
    if path.stat().st_size > MAX_SPLIT_BYTES:
        raise UserError(f"{path}: larger than any split ({MAX_SPLIT_BYTES:,} bytes)")
    rows, owners, split = np.array(list(_lines(path)), np.int64).reshape(-1, 3).T
    if not len(rows):
        raise UserError(f"{path}: no samples in it; its lines are {','.join(HEADER)}")
    clients = int(owners.max()) + 1
    if clients > len(rows):  # checked before a list is made for each client, as a number may be huge
        raise UserError(
            f"{path}: client {np.setdiff1d(np.arange(len(rows)), owners)[0]} of 0 to {clients - 1} has no samples"
        )
    assignment = Assignment.of(rows, owners, split, clients, scheme, seed, own_split=True)
    for word, parts in assignment.sides().items():
        if empty := [client for client, own in enumerate(parts) if not len(own)]:
            raise UserError(f"{path}: client {empty[0]} of 0 to {clients - 1} has no {word} samples")
    return assignment


def _lines(path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield the sample, the client and the index in `_WORDS` of the split of each line."""
    for where, line in csv_rows(path, ",".join(HEADER), str(path)):
        *numbers, word = line
        small = [one for one in numbers if one.isascii() and one.isdecimal() and len(one) <= 9]
        if len(small) != 2 or len(line) != 3 or word not in _WORDS:
            wanted = f"two whole numbers from 0 on and one of {', '.join(_WORDS)}"
            raise UserError(f"{where}: {','.join(line)[:60]!r} is not {','.join(HEADER)}: {wanted}")
        yield int(small[0]), int(small[1]), _WORDS.index(word)
