"""Numbers as reports print them, and the marks beside them."""

from __future__ import annotations

from pipeline.report.frame import Value
from pipeline.spec.metrics import BYTES, COUNT, PERCENT

MINUS = "\N{MINUS SIGN}"
MISPRINT = "§"
"""Marks a published value that the paper contradicts itself."""
UNPLANNED = "†"
"""Marks a published value for which no run is planned."""
TIED = "‡"
"""Marks a value that cannot be told apart from the best of its column."""
BESIDE = "/"
"""Between the mean over the last measurements and the value after the last round."""
NO_VALUE = "—"


def format_value(value: Value | None, decimals: int) -> str:
    """Return ``90.31±0.26``, ``90.31`` without a deviation; of a quantity ``45.18 K`` or ``45.60 MB``; "" for None."""
    if value is None or value.printed:
        return value.printed if value else ""
    mean = _scaled(value.mean, decimals, value.unit)
    return mean if value.std is None else f"{mean}±{_scaled(value.std, decimals, value.unit)}"


def signed(difference: float, decimals: int, unit: str = PERCENT) -> str:
    """Return ``+0.80`` or ``−0.80``; of a quantity ``+0.26 K``."""
    return (MINUS if difference < 0 else "+") + _scaled(abs(difference), decimals, unit)


def printed_rank(rank: float) -> str:
    """Return ``2`` or ``2.5``; a mean of ranks with at most two decimals."""
    return f"{rank:.2f}".rstrip("0").rstrip(".")


def _scaled(number: float, decimals: int, unit: str) -> str:
    """Return it in thousands, millions, … where the unit is of that kind; below a thousand such a number is whole."""
    if unit not in (COUNT, BYTES):
        return f"{number:.{decimals}f}"
    scale = next((power for power in (12, 9, 6, 3) if round(number / 10**power, decimals) >= 1), 0)
    prefix = {0: "", 3: "k" if unit == BYTES else "K", 6: "M", 9: "G", 12: "T"}[scale]
    digits = f"{number / 10**scale:,.{decimals if scale else 0}f}"
    return f"{digits} {prefix}{BYTES if unit == BYTES else ''}".rstrip()
