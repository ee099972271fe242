"""Parquet tables of encoded images, as public exports of image datasets lay them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pflcore.data.samples import Bytes, Rows, check_labels
from pflcore.datasets._bounds import read_columns
from pflcore.datasets._decode import decode_images
from pflcore.errors import UserError
from pflcore.json_text import parse_json
from pflcore.reading import check_plain

_NAMED = 12  # of the columns, where others are expected


def read_images(
    path: Path, shape: tuple[int, int, int], image: str, labels: Mapping[str, int]
) -> tuple[Bytes, Rows, set[str]]:
    """Decode a table with a column of PNG or JPEG images and columns of labels, on all cores.

    Args:
        path: The Parquet file.
        shape: Channels (1 or 3), height and width; colours are converted to fit.
        image: Column of ``struct<bytes: binary, ...>``.
        labels: Columns of integers, and how many classes each has.

    Returns:
        pixels uint8 [n, C, H, W], labels int64 [n, columns], and the encodings met, e.g. ``{"PNG"}``.

    Raises:
        UserError: A damaged file, another layout, a wrong label, or an unreadable image; the last two with the row.
    """
    check_plain(path)
    try:
        _check_layout(path, pq.read_schema(path), image, labels)
        table = read_columns(path, [image, *labels])
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error})") from None
    encoded = table[image].combine_chunks().field("bytes")
    numbers = []
    for label, classes in labels.items():
        if nulls := table[label].null_count:
            raise UserError(f"{path}: column {label!r} holds {nulls} nulls")
        numbers.append(table[label].to_numpy().astype(np.int64))
        check_labels(numbers[-1], classes, str(path))

    pixels, formats = decode_images(
        len(encoded),
        shape,
        lambda row: encoded[row].as_py(),
        lambda row: f"{path}: row {row}",
        f"decoding {path.name}",
        formats=("PNG", "JPEG"),
    )
    return pixels, np.stack(numbers, 1), formats


def _check_layout(path: Path, schema: pa.Schema, image: str, labels: Iterable[str]) -> None:
    types = {field.name: field.type for field in schema}
    has = _described(schema)
    kind = types.get(image)
    if kind is None or not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        raise UserError(f"{path}: needs a column {image!r} of struct<bytes: binary>, has {has}")
    for label in labels:
        if label not in types or not pa.types.is_integer(types[label]):
            raise UserError(f"{path}: needs a column {label!r} of integers, has {has}")


@dataclass(frozen=True, eq=False)
class ImageTable:
    """The columns of one table of somebody's own images, as they are in the file.

    Args:
        images: Encoded images, large_binary [n], in chunks.
        labels: One integer or one text for each image.
        class_names: Names for the integers, where the file has them.
        domains: One text for each image; empty when no such column was asked for.
    """

    path: Path
    images: pa.ChunkedArray
    labels: list[int] | list[str]
    class_names: tuple[str, ...]
    domains: list[str]


def read_own_table(path: Path, image: str, label: str, domain: str | None) -> ImageTable:
    """Read a table whose layout is known only by the names of its columns.

    Args:
        path: The Parquet file.
        image: Column of encoded images: binary, or a struct with a binary field ``bytes``.
        label: Column of integers, or of text, plain or as a dictionary. Names of the integers are taken from the
            metadata that exports of the Hugging Face library ``datasets`` carry.
        domain: Column of text or integers, or None.

    Raises:
        UserError: A damaged file, a missing column, one of another type, or one with nulls or without rows.
    """
    check_plain(path)
    try:
        schema = pq.read_schema(path)
        _check_own_layout(path, schema, image, label, domain)
        columns = list(dict.fromkeys(name for name in (image, label, domain) if name is not None))
        table = read_columns(path, columns)
        images = table[image]
        if pa.types.is_struct(images.type):
            images = pc.struct_field(images, "bytes")
        images = images.cast(pa.large_binary())
        values = {name: _plain(table[name]).to_pylist() for name in columns if name != image}
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise UserError(f"{path}: not a readable Parquet file ({error})") from None
    for name, column in values.items():
        if None in column:
            raise UserError(f"{path}: column {name!r} holds {column.count(None)} nulls")
    if not len(images):
        raise UserError(f"{path}: holds no images; remove it or export it again")
    domains = [str(value) for value in values[domain]] if domain is not None else []
    return ImageTable(path, images, values[label], _class_names(path, schema, label), domains)


def _described(schema: pa.Schema) -> str:
    """The first columns and their types, as far as a person reads."""
    columns = [f"{field.name:.40}: {field.type!s:.60}" for field in schema]
    return ", ".join(columns[:_NAMED]) + (f" and {len(columns) - _NAMED:,} more" if len(columns) > _NAMED else "")


def _check_own_layout(path: Path, schema: pa.Schema, image: str, label: str, domain: str | None) -> None:
    types = {field.name: field.type for field in schema}
    has = _described(schema)
    kind = types.get(image)
    if kind is not None and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if kind is None or not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise UserError(f"{path}: needs a column {image!r} of binary or struct<bytes: binary>, has {has}")
    for name in (label, domain):
        if name is not None:
            kind = types.get(name)
            if kind is not None and pa.types.is_dictionary(kind):
                kind = kind.value_type
            if kind is None or not (
                pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
            ):
                raise UserError(f"{path}: needs a column {name!r} of integers or text, has {has}")


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _class_names(path: Path, schema: pa.Schema, label: str) -> tuple[str, ...]:
    """The names of the integers in the metadata of a Hugging Face export; empty without such metadata."""
    try:
        names = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or len(set(names)) < len(names):
        raise UserError(f"{path}: the metadata's names for column {label!r} are not distinct texts; export it again")
    return tuple(names)
