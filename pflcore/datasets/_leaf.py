"""LEAF's JSON shards of texts: users, and for each of them windows of 80 characters with the next character."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflcore.data.preparation import track
from pflcore.data.samples import Bytes
from pflcore.datasets._bounds import PARSED, read_data
from pflcore.datasets._text import CHARACTERS, UNKNOWN, Windows, encode
from pflcore.errors import UserError
from pflcore.json_text import parse_json

LENGTH = 80
"""Characters of a text in the shards."""

# LEAF leaves these out between training and test, so that no test target is in a training text.
_GAP = LENGTH - 1


def read_split(train: Sequence[Path], test: Sequence[Path], length: int) -> dict[str, Windows]:
    """Training and test samples of each user from LEAF's shards of either kind.

    Args:
        train, test: The files.
        length: Characters of a sample's text; of longer ones the last are taken.

    Raises:
        UserError: A damaged file, another layout, or a user in two files of a kind.
    """
    parts = [_read_all(paths, length) for paths in (train, test)]
    names = dict.fromkeys([*parts[0], *parts[1]])  # in order, once each
    nothing = np.empty((0, length + 1), np.uint8)
    return {name: (parts[0].pop(name, nothing), parts[1].pop(name, nothing)) for name in names}


def split_all(paths: Sequence[Path], length: int, train_share: float) -> dict[str, Windows]:
    """The same from LEAF's unsplit shards: of each user the first `train_share` of the samples train, the last test.

    As in LEAF's own split, 79 samples between them are left out.
    """
    windows = {}
    for name, rows in _read_all(paths, length).items():
        count = max(1, int(train_share * len(rows)))
        windows[name] = rows[:count], rows[count + _GAP :]
    return windows


def _read_all(paths: Sequence[Path], length: int) -> dict[str, Bytes]:
    """The rows of each user, uint8 [n, length + 1]."""
    found: dict[str, tuple[Path, Bytes]] = {}
    advance = track("reading JSON shards", len(paths))
    for path in paths:
        for name, rows in _read_shard(path, length):
            if name in found:
                raise UserError(f"{path}: user {name!r} is in {found[name][0].name} already; delete one of the files")
            found[name] = path, rows
        advance(1)
    return {name: rows for name, (_, rows) in found.items()}


def _read_shard(path: Path, length: int) -> Iterator[tuple[str, Bytes]]:
    try:
        shard = parse_json(read_data(path, PARSED))
    except ValueError as error:
        raise UserError(f"{path}: not readable JSON ({error}); run LEAF's preprocessing again") from None
    users, counts, data = (_get(shard, key, path) for key in ("users", "num_samples", "user_data"))
    if not isinstance(users, list) or not isinstance(counts, list) or len(users) != len(counts):
        raise UserError(f"{path}: 'users' and 'num_samples' must be lists of one length; use a shard made by LEAF")
    for name, count in zip(users, counts, strict=True):
        if not isinstance(name, str) or not name or not name.isprintable():
            raise UserError(f"{path}: {_show(name)} in 'users' must be a name; use a shard made by LEAF")
        where = f"{path}: user {name!r}"
        texts, targets = (_get(_get(data, name, path), key, where) for key in ("x", "y"))
        if not isinstance(texts, list) or not isinstance(targets, list) or not len(texts) == len(targets) == count:
            raise UserError(f"{where}: 'x' and 'y' must be lists of {_show(count)} texts; use a shard made by LEAF")
        # Copied, as otherwise all characters of the text would stay in memory.
        yield name, _rows(texts, targets, where)[:, -length - 1 :].copy()


def _get(value: Any, key: str, where: Path | str) -> Any:
    if not isinstance(value, dict) or key not in value:
        raise UserError(f"{where}: {key!r} is missing; use a shard made by LEAF")
    return value[key]


def _show(value: Any) -> str:
    return f"{value!a:.60}" if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _rows(texts: list[Any], targets: list[Any], where: str) -> Bytes:
    for row, (text, target) in enumerate(zip(texts, targets, strict=True)):
        for value, characters in ((text, LENGTH), (target, 1)):
            if not isinstance(value, str) or len(value) != characters:
                raise UserError(
                    f"{where}: row {row}: {_show(value)} must be a text of {characters} characters; "
                    "use a shard of LEAF's shakespeare"
                )
    rows = encode("".join(text + target for text, target in zip(texts, targets, strict=True))).reshape(-1, LENGTH + 1)
    unknown = rows == UNKNOWN
    if unknown.any():
        row, position = (int(number) for number in np.argwhere(unknown)[0])
        raise UserError(
            f"{where}: row {row}: {(texts[row] + targets[row])[position]!a} is not one of the {len(CHARACTERS)} "
            "printable ASCII characters; use a shard of LEAF's shakespeare"
        )
    return rows
