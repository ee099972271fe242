"""LEAF's JSON shards of texts: users, and for each of them windows of 80 characters with the next character."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflcore.data.preparation import track
from pflcore.data.samples import Bytes
from pflcore.datasets._files import reading
from pflcore.datasets._text import CHARACTERS, UNKNOWN, Windows, encode_text
from pflcore.memory import memory_limit
from pflcore.reading import read_file

LENGTH = 80
"""Characters of a text in the shards."""

PARSED_SIZE = 8
"""How many times the bytes of JSON its parts take in memory, about."""

# LEAF leaves these out between training and test, so that no test target is in a training text.
_GAP = LENGTH - 1


def read_split(train: Sequence[Path], test: Sequence[Path], length: int) -> dict[str, Windows]:
    """Return training and test samples of each user from LEAF's shards of either kind.

    Args:
        train, test: The files.
        length: Characters of a sample's text; of longer ones the last are taken.

    Raises:
        UserError: A damaged file, another layout, or a user in two files of a kind.
    """
    parts = [_read_shards(paths, length) for paths in (train, test)]
    names = dict.fromkeys([*parts[0], *parts[1]])  # in order, once each
    nothing = np.empty((0, length + 1), np.uint8)
    return {name: (parts[0].get(name, nothing), parts[1].get(name, nothing)) for name in names}


def split_all(paths: Sequence[Path], length: int, train_share: float) -> dict[str, Windows]:
    """Return the same from LEAF's unsplit shards: the first `train_share` of a user's samples train, the last test.

    As in LEAF's own split, 79 samples between them are left out.
    """
    windows = {}
    for name, rows in _read_shards(paths, length).items():
        count = max(1, int(train_share * len(rows)))
        windows[name] = rows[:count], rows[count + _GAP :]
    return windows


def _read_shards(paths: Sequence[Path], length: int) -> dict[str, Bytes]:
    """Return the rows of each user, uint8 [n, length + 1]."""
    found: dict[str, Bytes] = {}
    advance = track("reading JSON shards", len(paths))
    for path in paths:
        with reading(path, "use shards made by LEAF's preprocessing of shakespeare"):
            shard = json.loads(read_file(path, memory_limit() // PARSED_SIZE))
            for name, count in zip(shard["users"], shard["num_samples"], strict=True):
                if name in found:
                    raise ValueError(f"user {name!r} is there already")
                user = shard["user_data"][name]
                # Copied, as otherwise all characters of the text would stay in memory.
                found[str(name)] = _rows(user["x"], user["y"], count, name)[:, -length - 1 :].copy()
        advance(1)
    return found


def _rows(texts: list[str], targets: list[str], count: int, name: str) -> Bytes:
    if not len(texts) == len(targets) == count:
        raise ValueError(f"user {name!r} must have {count} texts and as many next characters")
    if any(len(text) != LENGTH or len(target) != 1 for text, target in zip(texts, targets, strict=True)):
        raise ValueError(f"the texts of user {name!r} must have {LENGTH} characters and one more each")
    rows = encode_text("".join(map("".join, zip(texts, targets, strict=True)))).reshape(-1, LENGTH + 1)
    if (rows == UNKNOWN).any():
        raise ValueError(f"user {name!r} says more than the {len(CHARACTERS)} printable ASCII characters")
    return rows
