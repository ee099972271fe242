"""Named tensors as views of one run of bytes, so that many pass as one: through shared memory or a mapped file."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pflcore.groups import Tensors

_ALIGNMENT = 64  # bytes; what a freshly allocated tensor has


def packed_size(like: Mapping[str, Tensor]) -> int:
    """Bytes that tensors of these shapes and types take."""
    return sum(_padded(tensor) for tensor in like.values())


def packed_views(buffer: Tensor, like: Mapping[str, Tensor]) -> Tensors:
    """Tensors of the names, shapes and types of `like`, one after the other in a uint8 buffer."""
    views, start = {}, 0
    for name, tensor in like.items():
        views[name] = buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        start += _padded(tensor)
    return views


def _padded(tensor: Tensor) -> int:
    return -(-max(tensor.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
