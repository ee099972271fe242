"""Names of cells on command lines."""

from __future__ import annotations

import re

import pytest

from pflcore.errors import UserError
from pipeline.running.cells import cell_name, cells_meant

NAMES = ["FedAvg, 50", "FedAvg, 100", "FedOFA, 50", "FedOFA*, 50", "k[N], 50"]


@pytest.mark.parametrize(
    ("patterns", "meant"),
    [
        ([], NAMES),
        (["FedAvg, *"], ["FedAvg, 50", "FedAvg, 100"]),
        (["FedOFA*, 50"], ["FedOFA*, 50"]),  # a name that is written out, and not a pattern
        (["FedOFA*"], ["FedOFA, 50", "FedOFA*, 50"]),
        (["k[N], 50", "FedAvg, 1??"], ["FedAvg, 100", "k[N], 50"]),
        (["*, 50"], ["FedAvg, 50", "FedOFA, 50", "FedOFA*, 50", "k[N], 50"]),
    ],
)
def test_what_patterns_mean(patterns: list[str], meant: list[str]) -> None:
    assert sorted(cells_meant(patterns, NAMES)) == sorted(meant)
    assert cell_name({"method": "FedOFA*", "clients": "50"}) in NAMES


@pytest.mark.parametrize(
    ("pattern", "names", "end"),
    [
        ("FedAgv, 50", NAMES, "; did you mean 'FedAvg, 50'?"),
        ("fedofa*, 50", NAMES, "; did you mean 'FedOFA*, 50'?"),
        ("x", NAMES[1:3], "; there are 'FedAvg, 100', 'FedOFA, 50'"),
        ("x", [f"n{number}" for number in range(1000)], ", 'n11' and 988 more"),
    ],
)
def test_what_none_is_meant_by(pattern: str, names: list[str], end: str) -> None:
    with pytest.raises(UserError, match=rf"^no kept cell '{re.escape(pattern)}' \(.*\)(;.*|){re.escape(end)}$"):
        cells_meant([names[0], pattern], names, "kept cell")
