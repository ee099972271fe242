"""Numbers as reports print them."""

from __future__ import annotations

from pipeline.report.table.measured import Value

MINUS = "\N{MINUS SIGN}"

ACCURACY = "accuracy (%)"
"""What heads a column of accuracies, or stands at their axis."""

TIED = "‡"
"""Marks a value that cannot be told apart from the best of its column."""


def format_value(value: Value, decimals: int) -> str:
    """``90.31±0.26``, or ``90.31`` without a deviation."""
    mean = f"{value.mean:.{decimals}f}"
    return mean if value.std is None else f"{mean}±{value.std:.{decimals}f}"


def signed(difference: float, decimals: int) -> str:
    """``+0.80`` or ``−0.80``."""
    return f"{difference:+.{decimals}f}".replace("-", MINUS)
