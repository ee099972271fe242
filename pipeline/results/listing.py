"""``pfl results list`` and ``show``: what the ledger holds, and what of it is current."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pflcore.errors import UserError
from pflcore.protocols import curve
from pflcore.registry import did_you_mean
from pipeline.compile.compilation import Compilation
from pipeline.ledger.entry import Entry, read_entry
from pipeline.ledger.ledger import Ledger, difference, trusted
from pipeline.ledger.measurements import from_lines

CURRENT = "current"


@dataclass(frozen=True)
class Line:
    """A kept result in a list. `state` is :data:`CURRENT`, or why it is shown nowhere."""

    run: str
    accuracy: str
    obtained: str
    device: str
    seconds: str
    state: str


def lines(ledger: Ledger, compilation: Compilation) -> list[Line]:
    """What a ledger holds, compared with what all specs ask for.

    Args:
        compilation: Of all specs, without the ledger.
    """
    return [_line(path, compilation) for path in ledger.paths()]


def _line(path: Path, compilation: Compilation) -> Line:
    entry = trusted(path)
    if isinstance(entry, str):
        return Line(path.stem, "", "", "", "", entry.partition(": ")[2])
    return Line(
        entry.run.id,
        final_accuracy(entry),
        entry.obtained,
        str(entry.facts["device"]),
        "" if entry.seconds is None else f"{entry.seconds:,.0f}",
        state(entry, compilation),
    )


def state(entry: Entry, compilation: Compilation) -> str:
    """:data:`CURRENT`, or why a kept result stands for nothing that the specs ask for."""
    if entry.run.id not in compilation.runs:
        return "no spec asks for it"
    return difference(entry, compilation.made_by[entry.run.id]) or CURRENT


def final_accuracy(entry: Entry) -> str:
    """The pooled accuracy in percent at the last measurement."""
    last = [line for line in entry.measurements.splitlines() if line.startswith("round ")]
    if entry.facts["diverged"] or not last:
        return "diverged"
    return last[-1].split("accuracy ")[1].split(",")[0]


def find(ledger: Ledger, word: str) -> Entry:
    """A kept result by the id of its run, or by its file. Raises :class:`UserError`, also when it is damaged."""
    paths = {path.stem: path for path in ledger.paths()}
    name = Path(word).stem if word.endswith(".yaml") else word
    if name not in paths:
        raise UserError(f"no kept result {word!r}{did_you_mean(name, list(paths))}; see `pfl results list`")
    return read_entry(paths[name])


def curve_of(entry: Entry) -> list[tuple[int, float, float]]:
    """Round, accuracy in percent and mean loss of each measurement."""
    return [(int(a), float(b), float(c)) for a, b, c in zip(*curve(from_lines(entry.measurements)), strict=True)]
