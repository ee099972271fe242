"""Batches: the same whether images are on the device, or on the host and fetched ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny import EXECUTORS, backbone, federation, method, result_bytes, run
from torch import Tensor

from pflcore.data.federation import FederatedData
from pflcore.data.sample_files import read_samples, write_samples
from pflcore.data.samples import Samples


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
