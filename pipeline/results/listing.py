"""``pfl results list`` and ``show``: what the ledger holds, and what of it is current."""

from __future__ import annotations

from dataclasses import dataclass

from pflcore.errors import UserError
from pflcore.protocols import curve
from pflcore.registry import did_you_mean
from pipeline.compile.compilation import Compilation
from pipeline.ledger import Entry, Ledger, difference

CURRENT = "current"


@dataclass(frozen=True)
class Line:
    """A kept result in a list. `state` is :data:`CURRENT`, or why no report shows it."""

    run: str
    accuracy: str
    obtained: str
    device: str
    seconds: str
    state: str


def lines(ledger: Ledger, compilation: Compilation) -> list[Line]:
    """List the runs of a ledger, compared with a compilation of all specs without the ledger."""
    return [_line(entry, compilation) for entry in ledger.entries()]


def _line(entry: Entry, compilation: Compilation) -> Line:
    accuracies = [accuracy for _, accuracy, _ in curve_of(entry)]
    return Line(
        entry.run.id,
        "diverged" if entry.facts["diverged"] or not accuracies else f"{accuracies[-1]:.2f}",
        entry.obtained,
        str(entry.facts["device"]),
        "" if entry.seconds is None else f"{entry.seconds:,.0f}",
        state(entry, compilation),
    )


def state(entry: Entry, compilation: Compilation) -> str:
    """Return :data:`CURRENT`, or why a kept result stands for nothing that the specs ask for."""
    if entry.run.id not in compilation.runs:
        return "no spec asks for it"
    return difference(entry.made_by, compilation.made_by[entry.run.id]) or CURRENT


def find(ledger: Ledger, id_: str) -> Entry:
    """Return a kept result by the id of its run. Raises :class:`UserError`, also when it is damaged."""
    entry = ledger.get(id_)
    if entry is None:
        raise UserError(f"no kept result {id_!r}{did_you_mean(id_, list(ledger.lines))}; see `pfl results list`")
    return entry


def curve_of(entry: Entry) -> list[tuple[int, float, float]]:
    """Return round, accuracy in percent and mean loss of each measurement."""
    return [(int(a), float(b), float(c)) for a, b, c in zip(*curve(entry.rounds()), strict=True)]
