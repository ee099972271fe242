"""What a GPU is asked to do is what the committed table says, so that a change which adds to it shows in review."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support.launches import WORKLOADS, recorded, rows

CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"


def pinned(library: str) -> str:
    found = re.search(rf"^{library}==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")
@pytest.mark.skipif(torch.__version__.partition("+")[0] != pinned("torch"), reason="counted with another torch")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_launches_and_waits_are_those_of_the_table(workload: str) -> None:
    expected = [row for row in recorded() if row[0] == workload]
    assert rows(workload) == expected, "if it is meant: PYTHONPATH=.:tests python -m support.launches"


def test_the_table_has_no_other_workload() -> None:
    assert list(dict.fromkeys(row[0] for row in recorded())) == list(WORKLOADS)
