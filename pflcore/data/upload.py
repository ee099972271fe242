"""Copies of many tensors to a device, or from it, in few transfers."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def upload(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return host tensors of one type on `device`."""
    if not parts:
        return []
    # One copy from pinned memory, because each copy from pageable memory waits until the GPU is idle.
    flat = torch.cat([part.flatten() for part in parts])
    return _split((flat.pin_memory() if device.type == "cuda" else flat).to(device, non_blocking=True), parts)


def move(states: Sequence[Mapping[str, Tensor]], device: torch.device) -> list[dict[str, Tensor]]:
    """Return the named tensors on `device`, with one copy per type; tensors already there are not copied."""
    moved = [dict(state) for state in states]
    by_dtype: dict[torch.dtype, list[tuple[dict[str, Tensor], str]]] = {}
    for state in moved:
        for name, tensor in state.items():
            if tensor.device.type != device.type:
                by_dtype.setdefault(tensor.dtype, []).append((state, name))
    for entries in by_dtype.values():
        parts = [state[name] for state, name in entries]
        if device.type == "cpu":
            copies = _split(torch.cat([part.flatten() for part in parts]).cpu(), parts)
        else:
            copies = upload(parts, device)
        for (state, name), copy in zip(entries, copies, strict=True):
            state[name] = copy
    return moved


def _split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    pieces = torch.split(flat, [part.numel() for part in like])
    return [piece.view(part.shape) for piece, part in zip(pieces, like, strict=True)]
