"""A ``rounds/2`` table as lines that a person can read and git can compare: per round, what each client got right.

Everything that tables say of a run is computed from counts, so these are as they were measured. Losses of single
clients are not kept; of each round the mean is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pflcore.errors import UserError
from pflcore.protocols import curve

_LINE = re.compile(
    r"(?:(?P<total>test samples)|(?P<novel>novel clients)|last (?P<last>\d+)"
    r"|round (?P<round>\d+), accuracy [\d.]+, loss (?P<loss>\d+(?:\.\d+)?(?:e[+-]?\d+)?)): (?P<numbers>[\d ]+)"
)


def to_lines(rounds: pa.Table, positions: int) -> str:
    """A ``rounds/2`` table as text; "" when nothing was measured.

    Args:
        positions: Predictions per sample; of more than one, those at the last positions have lines of their own.

    Raises:
        UserError: Not all clients were measured in every round, on the same test samples.
    """
    clients = np.unique(rounds["client"].to_numpy())
    if not len(clients):
        return ""
    try:
        matrix = {
            name: rounds[name].to_numpy().reshape(-1, len(clients))
            for name in ("client", "correct", "last_correct", "total")
        }
    except ValueError:
        matrix = {}
    if not matrix or (matrix["client"] != clients).any() or (matrix["total"] != matrix["total"][0]).any():
        raise UserError("its clients were not measured alike in all rounds")
    measured, accuracy, loss = curve(rounds)
    novel = clients[[one == "novel" for one in rounds["population"].to_pylist()[: len(clients)]]]
    lines = [f"test samples: {_words(matrix['total'][0])}"]
    lines += [f"novel clients: {_words(novel)}"] if len(novel) else []
    lines += [
        f"round {round_}, accuracy {percent:.2f}, loss {mean:.7g}: {_words(row)}"
        for round_, percent, mean, row in zip(measured, accuracy, loss, matrix["correct"], strict=True)
    ]
    if positions != 1:
        rows = zip(measured, matrix["last_correct"], strict=True)
        lines += [f"last {round_}: {_words(row)}" for round_, row in rows]
    return "\n".join(lines) + "\n"


def from_lines(text: str) -> pa.Table:
    """The inverse of :func:`to_lines`, with the mean loss of a round for each of its clients.

    Raises:
        UserError: It is no such text.
    """
    try:
        return _table(_parse(text))
    except (ValueError, OverflowError) as error:
        raise UserError(f"a kept result with damaged measurements ({error}); keep the run anew") from None


def _table(parsed: _Parsed) -> pa.Table:
    clients, count = len(parsed.total), len(parsed.correct)
    novel = np.isin(np.arange(clients), parsed.novel).astype(np.int8)
    correct = np.array(list(parsed.correct.values()), np.int64).reshape(count, clients)
    last = np.array(list(parsed.last.values()), np.int64).reshape(count, clients) if parsed.last else correct
    return pa.table(
        {
            "round": pa.array(np.repeat(np.array(list(parsed.correct), np.int32), clients)),
            "client": pa.array(np.tile(np.arange(clients, dtype=np.int32), count)),
            "population": pa.DictionaryArray.from_arrays(np.tile(novel, count), ["test", "novel"]),
            "moment": pa.DictionaryArray.from_arrays(np.zeros(count * clients, np.int8), ["after_aggregation"]),
            "correct": pa.array(correct.ravel()),
            "total": pa.array(np.tile(np.array(parsed.total, np.int64), count)),
            "loss": pa.array(np.repeat(np.array(list(parsed.loss.values()), np.float64), clients)),
            "last_correct": pa.array(last.ravel()),
        }
    )


@dataclass
class _Parsed:
    total: list[int] = field(default_factory=list)
    novel: list[int] = field(default_factory=list)
    correct: dict[int, list[int]] = field(default_factory=dict)
    loss: dict[int, float] = field(default_factory=dict)
    last: dict[int, list[int]] = field(default_factory=dict)


def _parse(text: str) -> _Parsed:
    parsed = _Parsed()
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if not match:
            raise ValueError(f"unexpected line {line[:60]!r}")
        numbers = [int(word) for word in match["numbers"].split()]
        if match["total"]:
            parsed.total = numbers
        elif match["novel"]:
            parsed.novel = numbers
        elif match["last"]:
            parsed.last[int(match["last"])] = numbers
        else:
            parsed.correct[int(match["round"])] = numbers
            parsed.loss[int(match["round"])] = float(match["loss"])
    if any(len(row) != len(parsed.total) for row in (*parsed.correct.values(), *parsed.last.values())):
        raise ValueError(f"a line has not {len(parsed.total)} numbers, one for each client")
    if parsed.last and parsed.last.keys() != parsed.correct.keys():
        raise ValueError("last positions of other rounds than those measured")
    return parsed


def _words(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))
