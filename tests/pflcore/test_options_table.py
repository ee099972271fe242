"""Options are a promise: another default trains another model, and another bound refuses what a spec says.

After a change that is meant: ``PYTHONPATH=.:tests python -m support.options``, and commit the table with the edit. An
entry that is not in it yet may have any options.
"""

from __future__ import annotations

from dataclasses import make_dataclass

import pytest
from support.options import FILE, classes, rows
from support.recorded import recorded

from pflcore.errors import UserError
from pflcore.options import check_options, option


def test_options_are_those_of_the_table() -> None:
    known = recorded(FILE)
    listed = {name for name, *_ in known}
    found = [row for row in rows() if row[0] in listed]
    assert found == known, sorted(set(found) ^ set(known))
    assert len(listed) > 60 and listed <= set(classes())


@pytest.mark.parametrize(
    ("bound", "inside", "outside"),
    [({"ge": 2}, 2, 1.99), ({"gt": 2}, 2.01, 2), ({"le": 2}, 2, 2.01), ({"lt": 2}, 1.99, 2)],
    ids=["ge", "gt", "le", "lt"],
)
def test_what_a_bound_means(bound: dict[str, float], inside: float, outside: float) -> None:
    words = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}[next(iter(bound))]
    entry = make_dataclass("One", [("x", float, option(0.0, help="A number.", **bound))])
    check_options(entry(inside))
    for wrong in (outside, float("nan")):
        with pytest.raises(UserError, match=rf"One\.x = .* must be {words} 2"):
            check_options(entry(wrong))
