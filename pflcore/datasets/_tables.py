"""Parquet tables of encoded images, as public exports of image datasets lay them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pflcore.datasets._files import Read, reading
from pflcore.errors import UserError
from pflcore.json_text import parse_json

NAMED_COLUMNS = 12  # in a message


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Columns of a table, as they are in the file.

    Args:
        path: The Parquet file.
        images: Encoded images, large_binary [n], in chunks.
        columns: Integers or texts, one for each image, by the name of their column.
        class_names: Names of the integers of the first of these columns, where the file has them.
    """

    path: Path
    images: pa.ChunkedArray
    columns: dict[str, list[int] | list[str]]
    class_names: tuple[str, ...]

    def readers(self) -> list[tuple[str, Read]]:
        """Return what messages call each image, and what gives its bytes."""
        values = (value for chunk in self.images.chunks for value in chunk)
        return [(f"{self.path}: row {row}", partial(_bytes, value)) for row, value in enumerate(values)]


def _bytes(value: pa.Scalar) -> bytes:
    return bytes(value.as_buffer())


def read_table(path: Path, image: str, columns: Sequence[str]) -> ImageTable:
    """Read a Parquet file of images.

    Args:
        path: The file.
        image: Column of encoded images: binary, or a struct with a binary field ``bytes``.
        columns: Columns of integers or texts, the labels first. Names of integer labels are taken from the metadata
            that exports of the Hugging Face library ``datasets`` carry.

    Raises:
        UserError: A damaged file, a missing column, one of another type, or one with nulls or without rows.
    """
    with reading(path):
        schema = pq.read_schema(path)
        _check_types(path, schema, image, columns)
        table = pq.read_table(path, columns=list(dict.fromkeys([image, *columns])), partitioning=None)
        images = table[image]
        if pa.types.is_struct(images.type):
            images = pc.struct_field(images, "bytes")
        found = ImageTable(
            path,
            images.cast(pa.large_binary()),
            {name: table[name].to_pylist() for name in columns},
            _class_names(path, schema, columns[0]),
        )
    nulls = {image: found.images.null_count} | {name: values.count(None) for name, values in found.columns.items()}  # type: ignore[arg-type]
    for name, count in nulls.items():
        if count:
            raise UserError(f"{path}: column {name!r} holds {count} nulls")
    if not table.num_rows:
        raise UserError(f"{path}: holds no images; remove it or export it again")
    return found


def _check_types(path: Path, schema: pa.Schema, image: str, columns: Sequence[str]) -> None:
    types = {field.name: field.type for field in schema}
    has = ", ".join(f"{name:.40}: {kind!s:.60}" for name, kind in list(types.items())[:NAMED_COLUMNS])
    kind = types.get(image, pa.null())
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise UserError(f"{path}: needs a column {image!r} of binary or struct<bytes: binary>, has {has}")
    for name in columns:
        kind = types.get(name, pa.null())
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise UserError(f"{path}: needs a column {name!r} of integers or text, has {has}")


def _class_names(path: Path, schema: pa.Schema, label: str) -> tuple[str, ...]:
    """Return the names of the integers in the metadata of a Hugging Face export; nothing without such metadata."""
    try:
        names = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or len(set(names)) < len(names):
        raise UserError(f"{path}: the metadata's names for column {label!r} are not distinct texts; export it again")
    return tuple(names)
