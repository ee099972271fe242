"""Bounds on what is read: a small file may claim, or unpack to, more than any machine has, and a pipe never ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pflcore.errors import UserError
from pflcore.memory import memory_limit
from pflcore.reading import read_file

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_IMAGE = 2**28
"""Bytes of an encoded image that is worth reading."""

LARGEST_TEXT = 2**24
"""Bytes of a list of images, or of one image's annotation, that is worth reading."""

PARSED = 8
"""How many times the bytes of a text or of JSON its parts take in memory, about."""

_ROWS = 256  # of a table that are unpacked before it is seen how large they are
_RATIO = 1_032  # by which deflate, and what MATLAB and HDF5 files are packed with, shrinks at most


def read_image(path: Path) -> bytes:
    """The content of an image file. Raises as :func:`pflcore.reading.read_file`."""
    return read_file(path, LARGEST_IMAGE, "any image has")


def read_list(path: Path) -> bytes:
    """The content of a list of images, or of an image's annotation. Raises as :func:`pflcore.reading.read_file`."""
    return read_file(path, LARGEST_TEXT, "such a text has")


def read_data(path: Path, times: int = 1) -> bytes:
    """The content of a file of samples, which take so many `times` its bytes when they are read.

    Raises as :func:`pflcore.reading.read_file`; ``$PFL_MEMORY`` says how much there is room for.
    """
    return read_file(path, memory_limit() // times, "there is room for, which PFL_MEMORY (in GiB) says")


def check_room(path: Path, size: int, what: str) -> None:
    """Raises :class:`UserError` where `what` in a file takes more bytes than half of the memory has."""
    if size > (limit := memory_limit()):
        raise UserError(
            f"{path}: {what} takes {size:,} bytes, more than the {limit:,} there is room for; set PFL_MEMORY (in GiB)"
        )


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
