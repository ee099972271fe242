"""Tiers of tests: which cases of a matrix `make test` tries and which are left to `make test-all`, by one rule."""

import pytest

# Methods that differ in kind: plain averages, own parts, a second model, generated weights, no model that is shared,
# and what is exchanged beside it.
SIX = ("fedavg", "fedper", "ditto", "fedtp", "fedproto", "scaffold")


def first_of_each(cases, ids=lambda *case: None):
    """Parameters for all cases of a matrix; those in which no value occurs for the first time are marked `matrix`.

    So `make test` finds what is wrong with a value, and `make test-all` what is wrong with a combination alone.
    """
    seen, params = set(), []
    for case in cases:
        values = set(enumerate(case))
        params.append(pytest.param(*case, marks=[pytest.mark.matrix] if values <= seen else [], id=ids(*case)))
        seen |= values
    return params


def few_of(cases, few=SIX):
    """Parameters for cases, each a value or a tuple of them, of which those that are not `few` are marked `matrix`."""
    given = [
        (case if isinstance(case, tuple) else (case,), [] if case in few else [pytest.mark.matrix]) for case in cases
    ]
    return [pytest.param(*values, marks=marks) for values, marks in given]
