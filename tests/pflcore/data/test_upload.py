"""Tensors go to a device, and from it, in few copies, and arrive as they were."""

from __future__ import annotations

import pytest
import torch
from support.pretend_device import pretend_cuda

from pflcore.data.upload import move, upload


def test_tensors_of_several_types_arrive_in_a_copy_each() -> None:
    states = [
        {"w": torch.arange(6.0).view(2, 3), "steps": torch.tensor(7)},
        {"w": -torch.arange(4.0), "none": torch.empty(0)},
    ]
    with pretend_cuda() as events:
        there = move(states, torch.device("cuda"))
        assert {tensor.device.type for state in there for tensor in state.values()} == {"cuda"}
        assert events["uploads"] == 2
        mixed = [{**there[0], "rest": torch.ones(2)}]
        back = move([*there, *mixed], torch.device("cpu"))
        assert events["downloads"] == 2
    for found, expected in zip(back, [*states, {**states[0], "rest": torch.ones(2)}], strict=True):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert all(found[name].dtype == expected[name].dtype for name in expected)


def test_what_is_there_already_is_not_copied() -> None:
    state = {"w": torch.ones(2)}
    assert move([state], torch.device("cpu"))[0]["w"] is state["w"]
    assert upload([], torch.device("cpu")) == []


@pytest.mark.parametrize("sizes", [((2, 3), (4,)), ((1,), (0,))])
def test_uploads_keep_shapes(sizes: tuple[tuple[int, ...], ...]) -> None:
    parts = [torch.randint(9, size) for size in sizes]
    assert all(torch.equal(one, other) for one, other in zip(upload(parts, torch.device("cpu")), parts, strict=True))
