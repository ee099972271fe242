"""Batches of a federation: fetched ahead, uploaded, of one sample, scaled up, with noise, and of novel clients."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.pretend_device import pretend_cuda
from support.tiny import EXECUTORS, NormNet, backbone, federation, method, result_bytes, run, training
from torch import Tensor

from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.data.sample_files import read_samples, write_samples
from pflcore.data.samples import Samples
from pflcore.data.upload import move
from pflcore.engine import Result, train
from pflcore.engine.client import Trainer
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.settings import Evaluation

# --- federation ------------------------------------------------------------------------------------------------------


class Elsewhere(FederatedData):
    """Says that its images are not on the device."""

    @property
    def resident(self) -> bool:
        return False


def elsewhere(data: FederatedData) -> FederatedData:
    fields = {name: getattr(data, name) for name in FederatedData.__dataclass_fields__}
    return Elsewhere(**fields)


PARTS = [torch.tensor([3, 1]), torch.tensor([0]), torch.tensor([[5, 6], [7, 8]]), torch.tensor([2, 2]), torch.arange(9)]


@pytest.mark.parametrize("parts", [PARTS, PARTS[:1], []])
def test_batches_fetched_ahead_are_the_same(parts: list[Tensor]) -> None:
    data = federation()
    made = [list(one.batches(parts)) for one in (data, elsewhere(data))]
    assert len(made[0]) == len(made[1]) == len(parts)
    for rows, one, other in zip(parts, *made, strict=True):
        assert one.inputs.shape == (*rows.shape, 1, 8, 8) and one.labels.shape == rows.shape
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.labels, other.labels)
        assert torch.equal(data.batch(rows).inputs, elsewhere(data).batch(rows).inputs)


def test_pixels_are_normalised() -> None:
    data = federation()
    expected = (data.inputs[4].double() / 255 - 0.4) / 0.3
    torch.testing.assert_close(data.batch(torch.tensor([4])).inputs[0].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_where_images_are_does_not_matter(executor: str) -> None:
    data = federation()
    one, other = (
        run(method("fedper"), backbone("convnet"), each, executor=executor) for each in (data, elsewhere(data))
    )
    assert result_bytes(one) == result_bytes(other)


# --- a dataset that does not fit into memory -----------------------------------------------------------------------


def samples(**changes: Any) -> Samples:
    rng = np.random.default_rng(0)
    made = Samples(
        inputs=rng.integers(0, 256, (70_000, 1, 3, 2), np.uint8),
        labels=rng.integers(0, 2, 70_000),
        train=rng.random(70_000) < 0.8,
        name="many",
        class_names=("a", "b"),
        mean=(0.5,),
        std=(0.5,),
        source="generated",
    )
    return replace(made, **changes)


def test_a_large_dataset_is_decoded_once_and_mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, scratch = tmp_path / "data.parquet", tmp_path / "decoded"
    write_samples(path, samples())
    assert not isinstance(read_samples(path, scratch).inputs, np.memmap) and not scratch.exists()
    monkeypatch.setenv("PFL_MEMORY", "0")
    mapped = read_samples(path, scratch)
    assert isinstance(mapped.inputs, np.memmap)
    assert np.array_equal(mapped.inputs, samples().inputs) and np.array_equal(mapped.labels, samples().labels)
    (decoded,) = scratch.iterdir()
    written = decoded.stat().st_mtime_ns
    assert np.array_equal(read_samples(path, scratch).inputs, samples().inputs)
    assert decoded.stat().st_mtime_ns == written
    write_samples(path, samples(inputs=255 - samples().inputs))  # another dataset under the same name
    assert np.array_equal(read_samples(path, scratch).inputs, 255 - samples().inputs)


# --- upload ----------------------------------------------------------------------------------------------------------


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


# --- single samples --------------------------------------------------------------------------------------------------


def trainer(net: Backbone, *sizes: int, batch_size: int = 5) -> Trainer:
    data = federation(sizes, (2,) * len(sizes))
    model, groups = net.create(data.shape, data.classes, 0)
    return make_trainer(model, groups, data, method("fedavg"), training(batch_size=batch_size), 0)


@pytest.mark.parametrize(
    ("samples", "plain", "normed"),
    [(11, [5, 5, 1], [5, 5]), (6, [5, 1], [5]), (7, [5, 2], [5, 2]), (10, [5, 5], [5, 5]), (3, [3], [3])],
)
def test_a_last_batch_of_one_is_left_out_for_batch_norm_only(samples: int, plain: list[int], normed: list[int]) -> None:
    for net, expected in ((backbone("convnet"), plain), (NormNet(), normed), (backbone("lenet_bn"), normed)):
        made = trainer(net, samples)
        batches = made.batches(1, 0)
        assert [len(batch) for batch in batches] == expected * 2  # two epochs
        assert made.steps(0) == len(batches)


@pytest.mark.parametrize(
    ("samples", "batch_size", "why"),
    [(1, 5, "it has a single training sample"), (1, 1, "batch_size is 1"), (4, 1, "batch_size is 1")],
)
def test_a_client_of_single_samples_is_one_line(samples: int, batch_size: int, why: str) -> None:
    made = trainer(NormNet(), 5, samples, batch_size=batch_size)
    for call in (lambda: made.steps(1), lambda: made.batches(1, 1)):
        with pytest.raises(UserError, match=f"client 1 cannot train a model with batch norm, since {why}") as error:
            call()
        assert "\n" not in str(error.value)
    assert len(trainer(backbone("convnet"), samples, batch_size=batch_size).batches(1, 0)) == 2 * samples


# --- novel and noise -------------------------------------------------------------------------------------------------


def short_run(data: FederatedData, name: str, executor: str, **changes: object) -> Result:
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
    result = short_run(data, name, "sequential", rounds=6, sample_rate=1.0)
    trained = {int(key.split(".")[1]) for key in result.weights if key.startswith("client.")}
    assert trained == {0, 2}
    assert set(result.client.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("executor", EXECUTORS[1:])
def test_fresh_noise_is_the_same_for_every_executor(executor: str) -> None:
    stds = torch.linspace(0, 2, len(federation().labels))
    data = dataclasses.replace(federation(), noise=stds, noise_seed=5)
    reference = short_run(data, "fedavg", "sequential")
    close(reference, short_run(data, "fedavg", executor))
    np.testing.assert_allclose(short_run(data, "fedavg", executor).loss, reference.loss, rtol=1e-4)
    with pytest.raises(AssertionError):
        close(reference, short_run(dataclasses.replace(data, noise=None), "fedavg", executor))


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
        assert np.isfinite(short_run(large, "fedavg", executor).loss).all()
