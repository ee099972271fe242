"""What probes give, as text that reads well in a diff: a line for each quantity, and when two of them agree.

Numbers that were computed in floating point have a point in them, and agree within a tolerance; all others are exact.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping

from pflcore.errors import UserError

Numbers = dict[str, str]
"""Quantity → its values, with spaces between them."""

TOLERANCE = 2e-5  # of the largest number of a line; docs/architecture.md has what it was chosen by
_HEADER = ["probe", "quantity", "values"]
_FLOOR = 1e-6  # a line whose numbers are all smaller is compared as if one were as large as this


def shown(values: Iterable[float]) -> str:
    """Numbers that were computed in floating point, to seven digits."""
    return " ".join(f"{value:#.7g}" for value in values)


def deviation(quantity: str, one: str, other: str) -> float:
    """By how much `other` deviates, relative to the largest number in `one`; infinitely where it may not at all.

    Counts of correct predictions may differ by one in all, as a sample may lie between two classes.
    """
    pairs = list(zip(one.split(), other.split(), strict=False))
    if len(one.split()) != len(other.split()):
        return math.inf
    if quantity.startswith("correct"):
        return math.inf if sum(abs(int(a) - int(b)) for a, b in pairs) > 1 else 0.0
    computed = [(float(a), float(b)) for a, b in pairs if "." in a and "." in b]
    if any(a != b for a, b in pairs if not ("." in a and "." in b)):
        return math.inf
    scale = max([_FLOOR, *(abs(a) for a, _ in computed)])
    return max((abs(a - b) for a, b in computed), default=0.0) / scale


def differences(recorded: Numbers, found: Numbers, tolerance: float) -> dict[str, float]:
    """Quantity → deviation, of those that do not agree or that only one of them has; the largest first."""
    quantities = {**recorded, **found}
    by = {name: deviation(name, recorded.get(name, ""), found.get(name, "")) for name in quantities}
    return dict(sorted(((name, size) for name, size in by.items() if size > tolerance), key=lambda item: -item[1]))


def to_text(numbers: Mapping[str, Numbers]) -> str:
    """CSV of probe, quantity and values."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_HEADER)
    writer.writerows([probe, name, values] for probe, own in numbers.items() for name, values in own.items())
    return file.getvalue()


def from_text(text: str, where: str) -> dict[str, Numbers]:
    """What :func:`to_text` wrote. Raises :class:`UserError` for anything else."""
    rows = list(csv.reader(io.StringIO(text)))
    if not rows or rows[0] != _HEADER or any(len(row) != len(_HEADER) for row in rows):
        raise UserError(f"{where}: merged or edited by hand; take one that was committed and type `pfl probe`")
    numbers: dict[str, Numbers] = {}
    for probe, name, values in rows[1:]:
        numbers.setdefault(probe, {})[name] = values
    return numbers
