"""Tiers of tests: which cases of a matrix `make test` tries and which are left to `make test-all`, by one rule."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet

Case = Sequence[Any]


def first_of_each(
    cases: Iterable[Case], by: Callable[..., Iterable[Hashable]] | None = None, ids: Callable[..., str] | None = None
) -> list[ParameterSet]:
    """Parameters for all cases of a matrix; those in which no value occurs for the first time are marked `matrix`.

    So `make test` finds what is wrong with a value, and `make test-all` what is wrong with a combination alone. `by`
    gives the values of a case that count, by default its parameters, and `ids` its name.
    """
    seen: set[tuple[int, Hashable]] = set()
    params = []
    for case in cases:
        values = set(enumerate(by(*case) if by else case))
        marks = [pytest.mark.matrix] if values <= seen else []
        seen |= values
        params.append(pytest.param(*case, marks=marks, id=ids(*case) if ids else None))
    return params


# Methods that differ in kind: plain averages, own parts, a second model, generated weights, no model that is shared,
# and what is exchanged beside it.
SIX = ("fedavg", "fedper", "ditto", "fedtp", "fedproto", "scaffold")


def six_of(names: Iterable[str]) -> list[ParameterSet]:
    """Parameters for names of methods, all but :data:`SIX` marked `matrix`."""
    return [pytest.param(name, id=name, marks=[] if name in SIX else [pytest.mark.matrix]) for name in names]


def quick(params: Iterable[ParameterSet]) -> list[Case]:
    """The cases that :func:`first_of_each` leaves to `make test`."""
    return [param.values for param in params if not param.marks]
