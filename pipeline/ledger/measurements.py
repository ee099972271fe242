"""A ``rounds/2`` table as lines that a person can read and git can compare: per round, what each client got right.

Everything that tables say of a run is computed from counts, so these are as they were measured. Losses of single
clients are not kept; of each round the mean is. What was measured on validation samples has lines like those of test
samples, behind them and with the word ``validation`` before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pflcore.errors import UserError
from pflcore.protocols import curve

_LINE = re.compile(
    r"(?:(?P<side>test|validation) samples|(?P<novel>novel clients)"
    r"|(?P<held_back>validation )?"
    r"(?:last (?P<last>\d+)|round (?P<round>\d+), accuracy [\d.]+, loss (?P<loss>\d+(?:\.\d+)?(?:e[+-]?\d+)?)))"
    r": (?P<numbers>[\d ]+)"
)
_POPULATIONS = ["test", "novel", "validation"]


def to_lines(rounds: pa.Table, positions: int) -> str:
    """A ``rounds/2`` table as text; "" when nothing was measured.

    Args:
        positions: Predictions per sample; of more than one, those at the last positions have lines of their own.

    Raises:
        UserError: Not all clients were measured in every round, on the same samples.
    """
    held_back = pc.equal(rounds["population"].cast(pa.string()), "validation")
    clients = np.unique(rounds["client"].to_numpy())
    if not len(clients):
        return ""
    tested = rounds.filter(pc.invert(held_back))
    novel = clients[[one == "novel" for one in tested["population"].to_pylist()[: len(clients)]]]
    lines = _lines(tested, "test", clients, positions)
    lines[1:1] = [f"novel clients: {_words(novel)}"] if len(novel) else []
    if held_back.to_numpy().any():
        lines += _lines(rounds.filter(held_back), "validation", np.setdiff1d(clients, novel), positions)
    return "\n".join(lines) + "\n"


def _lines(rows: pa.Table, population: str, clients: NDArray[np.integer], positions: int) -> list[str]:
    try:
        matrix = {
            name: rows[name].to_numpy().reshape(-1, len(clients))
            for name in ("client", "correct", "last_correct", "total")
        }
    except ValueError:
        matrix = {}
    if not matrix or (matrix["client"] != clients).any() or (matrix["total"] != matrix["total"][0]).any():
        raise UserError("its clients were not measured alike in all rounds")
    measured, accuracy, loss = curve(rows, population)
    before = "" if population == "test" else f"{population} "
    lines = [f"{population} samples: {_words(matrix['total'][0])}"]
    lines += [
        f"{before}round {round_}, accuracy {percent:.2f}, loss {mean:.7g}: {_words(row)}"
        for round_, percent, mean, row in zip(measured, accuracy, loss, matrix["correct"], strict=True)
    ]
    if positions != 1:
        last = zip(measured, matrix["last_correct"], strict=True)
        lines += [f"{before}last {round_}: {_words(row)}" for round_, row in last]
    return lines


def from_lines(text: str) -> pa.Table:
    """The inverse of :func:`to_lines`, with the mean loss of a round for each of its clients.

    Raises:
        UserError: It is no such text.
    """
    try:
        tested, held_back, novel = _parse(text)
        clients = np.arange(len(tested.total), dtype=np.int32)
        populations = _POPULATIONS if held_back.total else _POPULATIONS[:2]
        table = _table(tested, clients, np.isin(clients, novel).astype(np.int8), populations)
        if not held_back.total:
            return table
        own = np.setdiff1d(clients, novel).astype(np.int32)
        both = pa.concat_tables([table, _table(held_back, own, np.full(len(own), 2, np.int8), populations)])
        return both.take(np.argsort(both["round"].to_numpy(), kind="stable")).combine_chunks()
    except (ValueError, OverflowError) as error:
        raise UserError(f"a kept result with damaged measurements ({error}); keep the run anew") from None


def _table(side: _Side, clients: NDArray[np.int32], population: NDArray[np.int8], populations: list[str]) -> pa.Table:
    """The rows of test or of validation samples, of `clients` whose positions in `populations` are given."""
    side.check(len(clients))
    count = len(side.correct)
    correct = np.array(list(side.correct.values()), np.int64).reshape(count, len(clients))
    last = np.array(list(side.last.values()), np.int64).reshape(count, len(clients)) if side.last else correct
    moments = np.zeros(count * len(clients), np.int8)
    return pa.table(
        {
            "round": pa.array(np.repeat(np.array(list(side.correct), np.int32), len(clients))),
            "client": pa.array(np.tile(clients, count)),
            "population": pa.DictionaryArray.from_arrays(np.tile(population, count), populations),
            "moment": pa.DictionaryArray.from_arrays(moments, ["after_aggregation"]),
            "correct": pa.array(correct.ravel()),
            "total": pa.array(np.tile(np.array(side.total, np.int64), count)),
            "loss": pa.array(np.repeat(np.array(list(side.loss.values()), np.float64), len(clients))),
            "last_correct": pa.array(last.ravel()),
        }
    )


@dataclass
class _Side:
    """The lines about test samples, or those about validation samples."""

    total: list[int] = field(default_factory=list)
    correct: dict[int, list[int]] = field(default_factory=dict)
    loss: dict[int, float] = field(default_factory=dict)
    last: dict[int, list[int]] = field(default_factory=dict)

    def check(self, clients: int) -> None:
        if any(len(row) != clients for row in (self.total, *self.correct.values(), *self.last.values())):
            raise ValueError(f"a line has not {clients} numbers, one for each client")
        if self.last and self.last.keys() != self.correct.keys():
            raise ValueError("last positions of other rounds than those measured")


def _parse(text: str) -> tuple[_Side, _Side, list[int]]:
    """Of test samples, of validation samples, and the novel clients."""
    tested, held_back, novel = _Side(), _Side(), list[int]()
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if not match:
            raise ValueError(f"unexpected line {line[:60]!r}")
        side = held_back if match["held_back"] or match["side"] == "validation" else tested
        numbers = [int(word) for word in match["numbers"].split()]
        if match["side"]:
            side.total = numbers
        elif match["novel"]:
            novel = numbers
        elif match["last"]:
            side.last[int(match["last"])] = numbers
        else:
            side.correct[int(match["round"])] = numbers
            side.loss[int(match["round"])] = float(match["loss"])
    if held_back.total and held_back.correct.keys() != tested.correct.keys():
        raise ValueError("validation in other rounds than those measured")
    return tested, held_back, novel


def _words(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))
