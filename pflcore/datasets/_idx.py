"""The idx format of MNIST: a header with the lengths of the dimensions, then plain bytes."""

from __future__ import annotations

import struct
from math import prod

import numpy as np

from pflcore.data.samples import Bytes
from pflcore.errors import UserError

_UINT8 = 8  # the format's number for unsigned bytes


def parse_idx(data: bytes, dimensions: int, where: str) -> Bytes:
    """A uint8 array with the given number of dimensions; it cannot be written to.

    Args:
        data: The whole file, uncompressed.
        dimensions: How many it must have.
        where: What to call it in messages.

    Raises:
        UserError: Another type or number of dimensions, or another length than the header says.
    """
    start = 4 + 4 * dimensions
    if data[:4] != bytes([0, 0, _UINT8, dimensions]) or len(data) < start:
        raise UserError(
            f"{where}: not an idx file of bytes with {dimensions} dimension{'s' if dimensions > 1 else ''} "
            f"(it begins with {data[:4].hex() or 'nothing'}); get the official file"
        )
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if not prod(shape):
        raise UserError(f"{where}: its header says {'x'.join(map(str, shape))}, nothing; get the official file")
    if len(data) - start != prod(shape):
        raise UserError(
            f"{where}: holds {len(data) - start:,} bytes after its header, which says {prod(shape):,}; "
            "get the official file"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
