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
    found = []
    for entry in ledger.entries():
        points, asked = curve_of(entry), entry.run.id in compilation.runs
        accuracy = "diverged" if entry.facts["diverged"] or not points else f"{points[-1][1]:.2f}"
        state = difference(entry.made_by, compilation.made_by[entry.run.id]) if asked else "no spec asks for it"
        seconds = "" if entry.seconds is None else f"{entry.seconds:,.0f}"
        found.append(Line(entry.run.id, accuracy, entry.obtained, entry.facts["device"], seconds, state or CURRENT))
    return found


def find(ledger: Ledger, id_: str) -> Entry:
    """Return a kept result by the id of its run. Raises :class:`UserError`, also when it is damaged."""
    if entry := ledger.get(id_):
        return entry
    raise UserError(f"no kept result {id_!r}{did_you_mean(id_, list(ledger.lines))}; see `pfl results list`")


def curve_of(entry: Entry) -> list[tuple[int, float, float]]:
    """Return round, accuracy in percent and mean loss of each measurement."""
    return [(int(a), float(b), float(c)) for a, b, c in zip(*curve(entry.rounds()), strict=True)]
