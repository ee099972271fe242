"""Parquet tables of encoded images, as public exports of image datasets lay them out."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pflcore.errors import UserError
from pflcore.samples import Pixels, Rows, check_labels

_CHUNK = 500  # images per task: small enough to occupy all cores, large enough to make tasks cheap


def read_images(
    path: Path, shape: tuple[int, int, int], classes: int, image: str = "img", label: str = "label"
) -> tuple[Pixels, Rows, set[str]]:
    """Decode a table with a column of PNG or JPEG images and a column of labels, on all cores.

    Args:
        path: The Parquet file.
        shape: Channels (1 or 3), height and width that every image must have; colours are converted to fit.
        classes: Number of classes.
        image: Column of ``struct<bytes: binary, ...>``.
        label: Column of integers.

    Returns:
        pixels uint8 [n, C, H, W], labels int64 [n], and the encodings met, e.g. ``{"PNG"}``.

    Raises:
        UserError: A damaged file, another layout, a wrong label, or an unreadable image; the last two with the row.
    """
    try:
        _check_layout(path, pq.read_schema(path), image, label)
        table = pq.read_table(path, columns=[image, label], partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error})") from None
    encoded = table[image].combine_chunks().field("bytes")
    if nulls := table[label].null_count:
        raise UserError(f"{path}: column {label!r} holds {nulls} nulls")
    labels = table[label].to_numpy().astype(np.int64)
    check_labels(labels, classes, str(path))

    pixels = np.empty((len(encoded), *shape), np.uint8)

    def decode(start: int) -> set[str]:
        formats = set()
        for row, data in enumerate(encoded[start : start + _CHUNK].to_pylist(), start):
            try:
                pixels[row], kind = _decode(data, shape)
            except Exception as error:  # decoders of damaged images raise far more than OSError
                raise UserError(f"{path}: row {row}: not a readable image ({_reason(error)})") from None
            formats.add(kind)
        return formats

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        formats = set().union(*pool.map(decode, range(0, len(encoded), _CHUNK)))
    return pixels, labels, formats


def _check_layout(path: Path, schema: pa.Schema, image: str, label: str) -> None:
    types = {field.name: field.type for field in schema}
    has = ", ".join(f"{name}: {kind}" for name, kind in types.items())
    kind = types.get(image)
    if kind is None or not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        raise UserError(f"{path}: needs a column {image!r} of struct<bytes: binary>, has {has}")
    if label not in types or not pa.types.is_integer(types[label]):
        raise UserError(f"{path}: needs a column {label!r} of integers, has {has}")


def _decode(data: bytes | None, shape: tuple[int, int, int]) -> tuple[Pixels, str]:
    from PIL import Image

    if data is None:
        raise ValueError("it is null")
    channels, height, width = shape
    with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
        if image.size != (width, height):  # known from the header: a huge image is refused before it is decoded
            raise ValueError(f"{image.size[0]}x{image.size[1]} instead of {width}x{height} pixels")
        values = np.asarray(image.convert("RGB" if channels == 3 else "L"))
        return values.reshape(height, width, channels).transpose(2, 0, 1), str(image.format)


def _reason(error: Exception) -> str:
    # Pillow names the address of the buffer, which is different each time.
    return "neither PNG nor JPEG" if type(error).__name__ == "UnidentifiedImageError" else str(error)
