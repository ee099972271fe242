"""Training with novel clients and with noise that is drawn anew: whatever the executor."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.tiny import (
    EXECUTORS,
    backbone,
    federation,
    method,
    training,
)

from pflcore.data.federation import FederatedData
from pflcore.engine import Result, train
from pflcore.methods.fedper import FedPer
from pflcore.settings import Evaluation


def run(data: FederatedData, name: str, executor: str, **changes: object) -> Result:
    return train(
        data=data,
        backbone=backbone("convnet"),
        method=method(name),
        training=training(**changes),
        evaluation=Evaluation(every=1, window=100),
        seed=3,
        executor=executor,
    )


def close(one: Result, other: Result) -> None:
    for name, tensor in one.weights.items():
        torch.testing.assert_close(other.weights[name], tensor, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["fedper", "local"])
def test_novel_clients_never_train_and_are_measured(name: str) -> None:
    data = dataclasses.replace(federation(), novel=frozenset({1}))
    result = run(data, name, "sequential", rounds=6, sample_rate=1.0)
    trained = {int(key.split(".")[1]) for key in result.weights if key.startswith("client.")}
    assert trained == {0, 2}
    assert set(result.client.tolist()) == {0, 1, 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everybody(FedPer):
    """FedPer in which all clients take part in each round, whoever was sampled."""

    def participants(self, sampled: Sequence[int], clients: int) -> Sequence[int]:
        return range(clients)


def test_a_method_cannot_let_novel_clients_train() -> None:
    data = dataclasses.replace(federation(), novel=frozenset({1}))
    result = train(
        data=data,
        backbone=backbone("convnet"),
        method=Everybody(),
        training=training(rounds=2, sample_rate=0.4),
        evaluation=Evaluation(every=1, window=100),
        seed=3,
        executor="sequential",
    )
    assert {int(key.split(".")[1]) for key in result.weights if key.startswith("client.")} == {0, 2}


@pytest.mark.parametrize("executor", EXECUTORS[1:])
def test_fresh_noise_is_the_same_for_every_executor(executor: str) -> None:
    stds = torch.linspace(0, 2, len(federation().labels))
    data = dataclasses.replace(federation(), noise=stds, noise_seed=5)
    reference = run(data, "fedavg", "sequential")
    close(reference, run(data, "fedavg", executor))
    np.testing.assert_allclose(run(data, "fedavg", executor).loss, reference.loss, rtol=1e-4)
    with pytest.raises(AssertionError):
        close(reference, run(dataclasses.replace(data, noise=None), "fedavg", executor))


def test_images_are_scaled_up_batch_by_batch() -> None:
    plain = federation()
    large = dataclasses.replace(plain, size=16)
    assert large.shape == (1, 16, 16) and plain.shape == (1, 8, 8)
    rows = torch.tensor([[3, 5], [1, 2]])
    batch = large.batch(rows)
    assert batch.inputs.shape == (2, 2, 1, 16, 16)
    expected = torch.nn.functional.interpolate(
        plain.batch(rows.flatten()).inputs, (16, 16), mode="bilinear", align_corners=False
    )
    assert torch.equal(batch.inputs.flatten(0, 1), expected)
    for executor in EXECUTORS:
        assert np.isfinite(run(large, "fedavg", executor).loss).all()
