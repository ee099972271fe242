"""What a GPU is asked to do is what the committed table says, so that a change which adds to it shows in review."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.launches import WORKLOADS, recorded, rows

from pflcore.data.federation import Batch, FederatedData

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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")
def test_one_more_look_at_the_device_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = FederatedData.batch

    def looked_at(data: FederatedData, *args: Any) -> Batch:
        made = batch(data, *args)
        assert made.labels.max().item() < data.classes
        return made

    monkeypatch.setattr(FederatedData, "batch", looked_at)
    added = set(rows("ConvNet FedAvg")) - set(recorded())
    assert {("ConvNet FedAvg", f"{how} step", "waits", "all", 1) for how in ("called", "replayed")} <= added


def test_the_table_has_no_other_workload() -> None:
    assert list(dict.fromkeys(row[0] for row in recorded())) == list(WORKLOADS)
