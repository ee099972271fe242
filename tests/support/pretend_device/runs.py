"""Runs on the pretend GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pflcore.data.federation import FederatedData
from pflcore.engine import Result
from pflcore.engine.dropout import DropoutBits
from pflcore.seeds import sequence


def on_gpu(data: FederatedData) -> FederatedData:
    """The data on the device, samples included."""
    names = ("inputs", "labels", "mean", "std")
    return replace(data, **{name: getattr(data, name).to("cuda") for name in names})


def on_host(result: Result) -> Result:
    """The result with its weights on the host."""
    return replace(result, weights={name: tensor.cpu() for name, tensor in result.weights.items()})


def draw_as_gpus_do(bits: DropoutBits, samples: int, seed: int, *ids: int) -> Tensor:
    """Dropout's numbers on the host as they are drawn on the device, which has another generator than the host."""
    if not bits.per_sample:
        return bits.bits[:0]
    state = int(sequence(seed, "dropout", *ids).generate_state(1, np.uint64)[0]) // 2
    words = torch.empty(-(-bits.per_sample * samples // 4), dtype=torch.int64)
    words.random_(-(2**63), None, generator=torch.Generator().manual_seed(state))
    return words.view(torch.int16)[: bits.per_sample * samples]
