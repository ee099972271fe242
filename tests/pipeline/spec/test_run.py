"""Ids: of a run, its federation and its data; what they depend on, and that they never change."""

from __future__ import annotations

import pytest

from pipeline.spec.run import Run

RECORD = {
    "dataset": {"name": "digits", "stand_in": None},
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "clients": 10,
    "seed": 0,
    "backbone": {"name": "convnet", "channels": [8, 16]},
    "method": {"name": "fedavg"},
    "training": {"rounds": 40, "lr": 0.1},
    "evaluation": {"every": 1},
    "profile": "paper",
}


def test_ids_never_change() -> None:
    run = Run(RECORD)
    assert run.id == "fedavg-convnet-digits-c70697d7"
    assert run.federation_id == "digits-dirichlet-n10-s0-d5a4b076"
    assert run.data_id == "digits-302ab2f1"
    again = Run(dict(reversed(RECORD.items())))
    assert (again.id, again.federation_id, again.data_id) == (run.id, run.federation_id, run.data_id)


@pytest.mark.parametrize(
    ("field", "value", "same"),
    [
        ("profile", "smoke", {"federation_id", "data_id"}),
        ("method", {"name": "fedprox", "mu": 0.1}, {"federation_id", "data_id"}),
        ("training", {"rounds": 41, "lr": 0.1}, {"federation_id", "data_id"}),
        ("seed", 1, {"data_id"}),
        ("clients", 20, {"data_id"}),
        ("partition", {"name": "dirichlet", "alpha": 1.0}, {"data_id"}),
        ("dataset", {"name": "digits", "stand_in": 8}, set()),
    ],
)
def test_what_ids_depend_on(field: str, value: object, same: set[str]) -> None:
    before, after = Run(RECORD), Run({**RECORD, field: value})
    ids = ("id", "federation_id", "data_id")
    assert {name for name in ids if getattr(before, name) == getattr(after, name)} == same
