"""Bounds on what is read: a small file may claim, or unpack to, more than any machine has, and a pipe never ends."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pflcore.errors import UserError
from pflcore.memory import memory_limit

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_IMAGE = 2**28
"""Bytes of an encoded image that is worth reading."""

_ROWS = 256  # of a table that are unpacked before it is seen how large they are
_RATIO = 1_032  # by which deflate, and what MATLAB and HDF5 files are packed with, shrinks at most


def read_image(path: Path) -> bytes:
    """The content of an image file. Raises :class:`UserError` for what is no plain file, or larger than any image."""
    try:
        found = path.stat()  # of what a link leads to
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"{path}: no plain file, but a folder, a pipe or a device; move it away")
        if found.st_size > LARGEST_IMAGE:
            raise UserError(
                f"{path}: {found.st_size:,} bytes are more than any image has ({LARGEST_IMAGE:,}); move it away"
            )
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_columns(path: Path, columns: Sequence[str]) -> pa.Table:
    """Some columns of a Parquet file, unpacked a few rows at a time, as far as half of the memory has room for them.

    Raises:
        UserError: They do; ``$PFL_MEMORY`` says how much that is.
        pa.ArrowException, OSError: The file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    limit, taken, batches = memory_limit(), 0, []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS, columns=list(columns), use_threads=False):
            taken += batch.nbytes
            if taken > limit:
                raise UserError(
                    f"{path}: {path.stat().st_size:,} bytes that unpack to more than the {limit:,} there is room for; "
                    "split the file, or set PFL_MEMORY (in GiB)"
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=None if batches else file.schema_arrow).select(list(columns))


def check_claim(path: Path, size: int, what: str) -> None:
    """Raises :class:`UserError` where `what` in a packed file claims more bytes than it can possibly unpack to."""
    if size > _RATIO * path.stat().st_size:
        raise UserError(f"{path}: {what} claims {size:,} bytes, more than the file can hold; get the official file")
