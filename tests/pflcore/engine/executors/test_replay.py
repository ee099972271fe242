"""Replaying a recorded step: on CUDA the same numbers as calling it, without CUDA simply a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.tiny import assert_states_close, backbone, federation, method, run, training
from torch import Tensor

from pflcore.engine.executors.replay import Replay, _copy, _leaves, _signature

TREE = ({"model": {"a": torch.ones(2), "b": torch.ones(1, dtype=torch.int64)}, "momenta": {}}, torch.zeros(3))
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_without_cuda_a_function_is_called() -> None:
    replay = Replay(torch.device("cpu"))
    assert not replay.on
    assert replay(lambda one, two: (one, two), 1, 2) == (1, 2)


def test_a_copy_is_of_the_same_structure_and_shares_nothing() -> None:
    copied = _copy(TREE)
    assert _signature(copied) == _signature(TREE)
    for one, other in zip(_leaves(copied), _leaves(TREE), strict=True):
        assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()


@pytest.mark.parametrize(
    "other",
    [
        ({"model": {"a": torch.ones(3), "b": torch.ones(1, dtype=torch.int64)}, "momenta": {}}, torch.zeros(3)),
        ({"model": {"a": torch.ones(2), "b": torch.ones(1)}, "momenta": {}}, torch.zeros(3)),
        ({"model": {"c": torch.ones(2), "b": torch.ones(1, dtype=torch.int64)}, "momenta": {}}, torch.zeros(3)),
        ({"model": {"a": torch.ones(2)}, "momenta": {"b": torch.ones(1, dtype=torch.int64)}}, torch.zeros(3)),
    ],
)
def test_signatures_tell_shapes_types_names_and_nesting_apart(other: Any) -> None:
    assert _signature(other) != _signature(TREE)


@needs_cuda
@pytest.mark.parametrize(("name", "net"), [("fedavg", "convnet"), ("fedtp", "tiny_vit"), ("fedper", "tiny_vit")])
def test_recorded_steps_agree_with_called_ones(name: str, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for graphs in ("1", "0"):
        monkeypatch.setenv("PFL_GRAPHS", graphs)
        settings = training(rounds=3, local_epochs=4, momentum=0.5)
        results.append(run(method(name), backbone(net), federation(device="cuda"), training=settings))
    assert_states_close(results[0].weights, results[1].weights)


@needs_cuda
def test_recording_starts_after_a_few_calls_and_outputs_belong_to_the_caller() -> None:
    def double(x: Tensor) -> tuple[Tensor]:
        return (x * 2,)

    replay = Replay(torch.device("cuda"))
    made = [replay(double, torch.full((4,), float(index), device="cuda"))[0] for index in range(6)]
    assert replay.on and len(replay._recordings) == 1
    assert [float(one.sum()) for one in made] == [8.0 * index for index in range(6)]
