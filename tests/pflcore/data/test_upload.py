"""What a round needs of the host reaches the device in one copy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from support.tiny import federation
from torch.utils._python_dispatch import TorchDispatchMode

from pflcore.data.upload import upload

META = torch.device("meta")  # a device that can be copied to, and computes shapes and nothing else


class Copies(TorchDispatchMode):
    """Counts copies from the host to another device, by type."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        made = operation(*arguments, **(options or {}))
        if operation is torch.ops.aten._to_copy.default and arguments[0].device != made.device:
            self.count[made.dtype] += 1
        return made


def test_tensors_of_all_shapes_come_out_as_they_went_in() -> None:
    parts = [torch.arange(6).view(2, 3), torch.tensor(7), torch.arange(2), torch.empty(2, 0, dtype=torch.int64)]
    for one, other in zip(upload(parts, torch.device("cpu")), parts, strict=True):
        assert torch.equal(one, other) and one.shape == other.shape
    assert upload([], META) == []


def test_the_rows_of_all_batches_go_up_at_once() -> None:
    held = federation()
    there = {name: getattr(held, name).to(META) for name in ("inputs", "labels", "mean", "std")}
    parts = [held.train[0][:5], held.train[1][:3], held.train[2][:4]]
    for inputs in (there["inputs"], held.inputs):  # on the device, and on the host
        data = replace(held, **{**there, "inputs": inputs})
        with Copies() as copies:
            batches = list(data.batches(parts))
        assert [len(batch.inputs) for batch in batches] == [5, 3, 4]
        assert copies.count == {torch.int64: 1} | ({} if data.resident else {torch.uint8: 3})
