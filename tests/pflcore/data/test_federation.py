"""Batches of a federation: fetched ahead, uploaded, of one sample, scaled up, and of texts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.pretend_device import pretend_cuda
from support.tiny import CLASSES, LENGTH, NormNet, backbone, federation, method, run, texts, training
from torch.nn import functional as F

from pflcore.data.assignment import Assignment
from pflcore.data.federation import FederatedData
from pflcore.data.samples import Samples
from pflcore.data.upload import move
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError


def test_batches_are_normalised_scaled_up_and_the_same_when_they_are_fetched_ahead(monkeypatch):
    data = federation()
    large = replace(data, size=16)
    parts = [*map(torch.tensor, ([3, 1], [0], [[5, 6], [7, 8]], [2, 2])), torch.arange(9)]
    expected = (data.inputs[4].double() / 255 - 0.4) / 0.3
    torch.testing.assert_close(data.batch(torch.tensor([4])).inputs[0].double(), expected, rtol=1e-5, atol=1e-6)
    resident = [*data.batches(parts)]
    monkeypatch.setattr(FederatedData, "resident", False)
    for subset in (parts, parts[:1], []):
        assert len([*data.batches(subset)]) == len(subset)
    for rows, expected, other in zip(parts, resident, data.batches(parts), strict=True):
        assert expected.inputs.shape == (*rows.shape, 1, 8, 8) and expected.labels.shape == rows.shape
        assert torch.equal(expected.inputs, other.inputs) and torch.equal(expected.labels, other.labels)
        assert torch.equal(data.batch(rows).inputs, expected.inputs)
        scaled = F.interpolate(expected.inputs.flatten(0, -4), (16, 16), mode="bilinear", align_corners=False)
        assert torch.equal(large.batch(rows).inputs, scaled.view(*rows.shape, 1, 16, 16))
    assert large.shape == (1, 16, 16) and data.shape == (1, 8, 8)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 2)])
def test_arrays_are_standardised_by_the_training_rows_of_clients_that_train(shape, monkeypatch):
    rng, labels, rows = np.random.default_rng(0), np.zeros(20, np.int64), np.arange(20)
    inputs = (rng.standard_normal((20, *shape)) * 7 + 1e3).astype(np.float32)
    inputs[:, 1] = 0.1  # a constant channel
    samples = Samples(inputs, labels, rows < 14, "toy", ("a",), mean=(), std=(), source="", standardise=True)
    sides = [rows[2:7], rows[8:12], rows[1:2]], [rows[14:16], rows[16:19], rows[19:]]
    assignment = Assignment(*sides, "toy", 0, validation=[rows[:1], rows[7:8], rows[12:13]], novel=(2,))
    monkeypatch.setattr("pflcore.data.samples._CHUNK", 2 * inputs[0].size)
    plain = replace(samples, standardise=False)
    data, plain_data = (FederatedData.from_samples(item, assignment, torch.device("cpu")) for item in (samples, plain))
    used = np.moveaxis(inputs[[2, 3, 4, 5, 6, 8, 9, 10, 11]].astype(np.float64), 1, 0).reshape(3, -1)
    scale = used.mean(1), np.where([True, False, True], used.std(1), 1)
    mean, std = (values.reshape(-1, *[1] * (len(shape) - 1)) for values in scale)
    chosen = torch.tensor([[13, 4], [0, 19]])
    np.testing.assert_allclose(data.batch(chosen).inputs, ((inputs - mean) / std)[chosen], rtol=0, atol=5e-5)
    assert torch.equal(plain_data.batch(chosen).inputs, torch.from_numpy(inputs)[chosen])
    assert data.kind == "arrays" and not data.is_text and data.shape == shape and data.example().shape == (1, *shape)


def test_tensors_of_several_types_arrive_in_a_copy_each():
    states = [{"w": torch.arange(6.0).view(2, 3), "steps": torch.tensor(7)}, {"none": torch.empty(0)}]
    with pretend_cuda() as events:
        moved = move(states, torch.device("cuda"))
        assert {tensor.device.type for state in moved for tensor in state.values()} == {"cuda"}
        assert events["uploads"] == 2
        back = move([*moved, {**moved[0], "rest": torch.ones(2)}], torch.device("cpu"))
        assert events["downloads"] == 2
    for actual, expected in zip(back, [*states, {**states[0], "rest": torch.ones(2)}], strict=True):
        assert actual.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(actual[name], tensor) and actual[name].dtype == tensor.dtype


def test_a_client_without_samples_is_named():
    raw = np.zeros((6, 1, 2, 2), np.uint8)
    samples = Samples(raw, np.zeros(6, np.int64), np.arange(6) < 4, "toy", ("a",), mean=(0.5,), std=(0.5,), source="")
    rows, none = np.arange(1), np.arange(0)
    for part, assignment in (
        ("training", Assignment([rows, none], [rows + 4, rows + 5], "toy", 0)),
        ("test", Assignment([rows, rows + 1], [rows + 4, none], "toy", 0)),
        ("validation", Assignment([rows, rows + 1], [rows + 4, rows + 5], "toy", 0, validation=[rows + 2, none])),
    ):
        with pytest.raises(UserError, match=f"^client 1 has no {part} samples; raise the partition's minimum$"):
            FederatedData.from_samples(samples, assignment, torch.device("cpu"))


def trainer(net, *sizes, batch_size=5):
    data = federation(sizes, (2,) * len(sizes))
    model, groups = net.create(data.shape, data.classes, 0)
    return make_trainer(model, groups, data, method("fedavg"), training(batch_size=batch_size), 0)


def test_a_last_batch_of_one_is_left_out_for_batch_norm_only():
    for samples, plain, normed in ((11, [5, 5, 1], [5, 5]), (7, [5, 2], [5, 2]), (3, [3], [3])):
        for net, expected in ((backbone("convnet"), plain), (NormNet(), normed), (backbone("lenet_bn"), normed)):
            result = trainer(net, samples)
            batches = result.local.batches(1, 0)
            assert [len(batch) for batch in batches] == expected * 2  # two epochs
            assert result.local.steps(1, 0) == len(batches)
    for samples, size, why in ((1, 5, "it has a single training sample"), (4, 1, "batch_size is 1")):
        with pytest.raises(UserError, match=f"^client 1 cannot train a model with batch norm, since {why}"):
            trainer(NormNet(), 5, samples, batch_size=size).local.steps(1, 1)


def test_every_character_but_the_first_is_predicted_and_counted():
    raw = np.random.default_rng(0).integers(0, CLASSES, (30, LENGTH + 1), np.uint8)
    labels, rows = raw[:, -1].astype(np.int64), np.arange(30)
    samples = Samples(raw, labels, rows < 20, "letters", tuple("abcd"), mean=(), std=(), source="here")
    assignment = Assignment([rows[:12], rows[12:20]], [rows[20:24], rows[24:]], "natural", 0)
    data = FederatedData.from_samples(samples, assignment, torch.device("cpu"))
    assert data.is_text and data.shape == (LENGTH,) and data.positions == LENGTH and data.classes == CLASSES
    for chosen in (torch.tensor([3, 1]), torch.tensor([[4, 5], [6, 7]])):
        batch = data.batch(chosen)
        assert batch.inputs.dtype == torch.int64 and batch.inputs.tolist() == raw[chosen.numpy()][..., :-1].tolist()
        assert batch.labels.tolist() == raw[chosen.numpy()][..., 1:].tolist()
    assert data.class_counts(1).tolist() == np.bincount(raw[12:20, 1:].reshape(-1), minlength=CLASSES).tolist()
    with pytest.raises(UserError, match=r"^backbone convnet takes images, the dataset is text; use "):
        run(method("fedavg"), backbone("convnet"), texts())
