"""Who holds which samples as a CSV file that people and other tools read and write: ``sample,client,split``."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pflcore.data.assignment import VALIDATION, Assignment, by_client
from pflcore.data.samples import SPLITS
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.reading import check_plain

HEADER = ("sample", "client", "split")
_WORDS = (*SPLITS, VALIDATION)
_MOST = 1 << 30  # bytes; a row of ten million samples takes 20
_DIGITS = 9


def write_split(path: Path, assignment: Assignment) -> None:
    """Write an assignment, a line per sample held, in the order of samples.

    Raises:
        UserError: It says more than that: which clients are novel, or noise on their images.
    """
    for name, what in (("novel", "novel clients"), ("noise", "noise on images")):
        if getattr(assignment, name):
            raise UserError(f"partition {assignment.scheme!r} has {what}, of which a split says nothing")
    lines = [
        (row, client, word)
        for word, held in assignment.sides().items()
        for client, rows in enumerate(held)
        for row in rows.tolist()
    ]
    words = [",".join(HEADER), *(f"{row},{client},{word}" for row, client, word in sorted(lines))]
    write_text(path, "\n".join(words) + "\n")


def read_split(path: Path, scheme: str, seed: int) -> Assignment:
    """The assignment in a file, whatever the order of its lines.

    Raises:
        UserError: With the line that is wrong; or a sample is held twice, or a client has none for training or test.
    """
    check_plain(path)
    if path.stat().st_size > _MOST:
        raise UserError(f"{path}: larger than any split ({_MOST:,} bytes)")
    table = np.array(list(_lines(path)), np.int64).reshape(-1, 3)
    rows, owners, split = table.T
    if not len(rows):
        raise UserError(f"{path}: no samples in it; its lines are {','.join(HEADER)}")
    first, counts = np.unique(rows, return_counts=True)
    if (counts > 1).any():
        raise UserError(f"{path}: sample {first[counts > 1][0]} is held more than once")
    clients = int(owners.max()) + 1
    sides = [by_client(owners[split == side], rows[split == side], clients) for side in range(len(_WORDS))]
    for word, parts in zip(_WORDS, sides, strict=True):
        empty = [client for client, own in enumerate(parts) if not len(own)]
        if empty and (word != VALIDATION or len(empty) < clients):
            raise UserError(f"{path}: client {empty[0]} of 0 to {clients - 1} has no {word} samples")
    train, test, held_back = sides
    validation = held_back if len(held_back[0]) else []
    return Assignment(train, test, scheme, seed, own_split=True, validation=validation)


def hash_of(path: Path) -> str:
    """``sha256:<64 hex digits>`` of a file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _lines(path: Path) -> Iterator[tuple[int, int, int]]:
    """Sample, client and the number of the split, of each line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            if tuple(word.strip() for word in next(reader, [])) != HEADER:
                raise UserError(f"{path}:1: must be {','.join(HEADER)}")
            for line in reader:
                *numbers, word = (field.strip() for field in line) if line else ("",)
                small = [one for one in numbers if one.isascii() and one.isdecimal() and len(one) <= _DIGITS]
                if len(small) != 2 or len(line) != 3 or word not in _WORDS:
                    raise UserError(
                        f"{path}:{reader.line_num}: {','.join(line)[:60]!r} is not sample,client,split: two whole "
                        f"numbers from 0 on and one of {', '.join(_WORDS)}"
                    )
                yield int(small[0]), int(small[1]), _WORDS.index(word)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not a CSV file ({error})") from None
