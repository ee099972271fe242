"""Measuring on validation samples, and early stopping by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny import backbone, federation, holding_back, method, result_bytes, run

from pflcore.data.assignment import Assignment
from pflcore.data.federation import FederatedData
from pflcore.engine import Result
from pflcore.errors import UserError

DATA = holding_back(federation())
# One model for all, own heads, generated entries, a memory of training samples, tuning before measuring.
METHODS = {"fedavg": {}, "fedper": {}, "fedtp": {}, "knn_per": {"neighbours": 3}, "fedbabu": {}}
COUNTS = ("round", "client", "correct", "total", "last")


def trained(name: str, data: FederatedData = DATA, executor: str = "sequential", **changes: Any) -> Result:
    net = "tiny_vit" if name == "fedtp" else "convnet"
    return run(method(name, **METHODS[name]), backbone(net), data, executor=executor, **changes)


def side(result: Result, validation: bool) -> dict[str, list[float]]:
    """The entries of test or of validation samples."""
    chosen = result.validation == validation
    return {name: getattr(result, name)[chosen].tolist() for name in (*COUNTS, "loss")}


def same(one: dict[str, list[float]], other: dict[str, list[float]]) -> None:
    assert all(one[name] == other[name] for name in COUNTS)
    np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_it_is_what_a_test_of_these_samples_gives(name: str) -> None:
    result = trained(name)
    assert side(result, True)["total"] == [3] * 6 and side(result, False)["total"] == [5, 8, 6] * 2
    same(side(result, False), side(trained(name, replace(DATA, validation=())), False))
    same(side(result, True), side(trained(name, replace(DATA, test=DATA.validation, validation=())), False))


@pytest.mark.parametrize("executor", ["pooled", "stacked"])
@pytest.mark.parametrize("name", METHODS)
def test_executors_agree(name: str, executor: str) -> None:
    one, other = trained(name), trained(name, executor=executor)
    for validation in (False, True):
        same(side(one, validation), side(other, validation))
    assert executor == "stacked" or result_bytes(one) == result_bytes(other)


def test_an_assignment_brings_it_into_training() -> None:
    from support.toy_samples import make_samples

    samples = make_samples(6, 2, 2)
    rows = np.flatnonzero(samples.train), np.flatnonzero(~samples.train)
    held = Assignment([rows[0][:4]], [rows[1]], "by hand", 0, validation=[rows[0][4:]])
    data = FederatedData.from_samples(samples, held, torch.device("cpu"))
    assert data.measured(0).tolist() == [*rows[1], *rows[0][4:]]
    with pytest.raises(UserError, match="a client has no validation samples"):
        FederatedData.from_samples(samples, replace(held, validation=[rows[0][:0]]), torch.device("cpu"))
