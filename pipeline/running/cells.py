"""Cells of tables by the names that command lines have for them: their labels, joined by a comma and a space."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from pflcore.errors import UserError

_LISTED = 12  # names in a message


def cell_name(labels: Mapping[str, str]) -> str:
    """The name of a cell with these labels, such as ``FedAvg, CIFAR-10, 50``."""
    return ", ".join(labels.values())


def cells_meant(patterns: Sequence[str], names: Sequence[str], kind: str = "cell") -> set[str]:
    """Which cells patterns mean, such as ``Fed*, CIFAR-10, 50``; all of them where there is no pattern.

    A name that is written out means this cell alone, whatever its labels have of stars and brackets.

    Args:
        patterns: As in a shell, and told from each other by case.
        names: Of the cells that there are.
        kind: What they are, for the message.

    Raises:
        UserError: A pattern means none of them.
    """
    found = set[str]() if patterns else set(names)
    for pattern in patterns:
        meant = {pattern} & set(names) or {name for name in names if fnmatchcase(name, pattern)}
        if not meant:
            raise UserError(f"no {kind} {pattern!r} {_instead(pattern, names)}")
        found |= meant
    return found


def _instead(pattern: str, names: Sequence[str]) -> str:
    joined = "labels are joined by a comma and a space, * stands for any"
    if near := difflib.get_close_matches(pattern, names, n=1, cutoff=0.6):
        return f"({joined}); did you mean {near[0]!r}?"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"({joined}); there are {', '.join(map(repr, names[:_LISTED]))}{more}"
