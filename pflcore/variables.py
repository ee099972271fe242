"""Environment variables that are numbers; None for one that is not set."""

from __future__ import annotations

import os

from pflcore.errors import UserError


def whole_number(variable: str) -> int | None:
    """Return how many of something are wanted. Raises :class:`UserError` where it is none from 1 to 9999."""
    wanted = os.environ.get(variable)
    if not wanted:
        return None
    if not (wanted.isascii() and wanted.isdecimal() and len(wanted) <= 4 and int(wanted) > 0):
        raise UserError(f"{variable} = {wanted!r} must be a whole number from 1 to 9999")
    return int(wanted)


def number_of(unit: str, variable: str) -> float | None:
    """Return how much is wanted, 0 or more. Raises :class:`UserError` where it is no such number."""
    wanted = os.environ.get(variable)
    if not wanted:
        return None
    try:
        number = float(wanted)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e12:
        raise UserError(f"{variable} = {wanted!r} must be a number of {unit}, 0 or more")
    return number
