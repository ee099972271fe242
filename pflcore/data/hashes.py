"""Random numbers as hashes of what they are for: the same on every device and in any batch, without a generator."""

from __future__ import annotations

import torch
from torch import Tensor


def mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser: every bit of the result depends on every bit of the argument (Steele et al., 2014)."""
    bits = bits + -0x61C8864680B583EB
    bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    bits = (bits ^ ((bits >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return bits ^ ((bits >> 31) & 0x1FFFFFFFF)


def hashed(ids: Tensor, count: int, key: int) -> Tensor:
    """Return `count` numbers of 64 bits for each id, int64 [..., count]: hashes of (key, id, position)."""
    position = torch.arange(count, device=ids.device)
    return mix(mix(ids[..., None] + mix(torch.tensor(key, device=ids.device))) + position)
