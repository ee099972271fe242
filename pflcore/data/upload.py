"""Small tensors to a device in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The tensors, which are of one type and on the host, on `device`.

    They go as one, from memory that a GPU reads by itself: each copy from elsewhere would wait until it is idle.
    """
    if not parts:
        return []
    flat = torch.cat([part.flatten() for part in parts])
    if device.type == "cuda":
        flat = flat.pin_memory()
    pieces = torch.split(flat.to(device, non_blocking=True), [part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]
