"""Environment variables that are numbers."""

from __future__ import annotations

import os

from pflcore.errors import UserError

_MOST = 1e12  # of anything that is measured; what is counted has up to four digits


def whole_number(variable: str) -> int | None:
    """How many of something are wanted; None for a variable that is not set.

    Raises:
        UserError: It is none from 1 to 9999.
    """
    wanted = os.environ.get(variable)
    if not wanted:
        return None
    if not (wanted.isascii() and wanted.isdecimal() and len(wanted) <= 4 and int(wanted) > 0):
        raise UserError(f"{variable} = {wanted!r} must be a whole number from 1 to 9999")
    return int(wanted)


def number_of(unit: str, variable: str) -> float | None:
    """How much is wanted, 0 or more; None for a variable that is not set.

    Raises:
        UserError: It is no such number.
    """
    wanted = os.environ.get(variable)
    if not wanted:
        return None
    try:
        number = float(wanted)
    except ValueError:
        number = -1.0
    if not 0 <= number <= _MOST:
        raise UserError(f"{variable} = {wanted!r} must be a number of {unit}, 0 or more")
    return number
