"""When the numbers of two probes agree, and how they are written down."""

from __future__ import annotations

import math

import pytest

from pflcore.errors import UserError
from pipeline.probe.numbers import deviation, differences, from_text, shown, to_text


def test_floats_are_shown_with_a_point_and_to_seven_digits() -> None:
    assert shown([1.0, 0.123456789, -3e-9, 2e20]) == "1.000000 0.1234568 -3.000000e-09 2.000000e+20"


@pytest.mark.parametrize(
    ("quantity", "one", "other", "expected"),
    [
        ("loss", "2.0 0.1", "2.0 0.1", 0.0),
        ("loss", "2.0 0.1", "2.0 0.102", 0.001),  # of the largest number of the line
        ("loss", "2.0 0.1", "-2.0 0.1", 2.0),
        ("loss", "0.0 0.0", "0.0 1e-9", math.inf),  # a number without a point is exact
        ("loss", "0.0 0.0", "0.0 0.000000001", 0.001),
        ("loss", "1.0", "1.0 1.0", math.inf),
        ("loss", "1.0", "nan", math.inf),
        ("loss", "nan", "nan", 0.0),
        ("samples", "3+4 abc", "3+4 abc", 0.0),
        ("samples", "3+4 abc", "3+5 abc", math.inf),
        ("correct, round 1", "3 4 5", "3 5 5", 0.0),  # one sample between two classes
        ("correct, round 1", "3 4 5", "2 5 5", math.inf),
        ("correct, round 1", "3 4 5", "3 6 5", math.inf),
    ],
)
def test_deviation(quantity: str, one: str, other: str, expected: float) -> None:
    assert deviation(quantity, one, other) == pytest.approx(expected)


def test_differences_are_the_largest_first_and_know_what_is_missing() -> None:
    known = {"loss": "1.0", "state": "2.0", "same": "a", "gone": "b"}
    found = {"loss": "1.1", "state": "2.4", "same": "a", "new": "c"}
    assert list(differences(known, found, 0.05)) == ["gone", "new", "state", "loss"]
    assert list(differences(known, found, 0.15)) == ["gone", "new", "state"]


def test_text_and_back() -> None:
    numbers = {"a, b": {"loss, round 1": "1.0 2.0", "diverged": "None"}, "c": {"data": "1"}}
    text = to_text(numbers)
    assert text.splitlines()[1] == '"a, b","loss, round 1",1.0 2.0'
    assert from_text(text, "here") == numbers


@pytest.mark.parametrize("text", ["", "<<<<<<< ours\n", "probe,quantity,values\n=======\n"])
def test_a_merged_file_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^here: merged or edited by hand"):
        from_text(text, "here")
