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
        has = ", ".join(f"{field.name:.40}: {field.type!s:.60}" for field in list(schema)[:NAMED_COLUMNS])
        for name, kinds in {
            image: "binary or struct<bytes: binary>",
            **dict.fromkeys(columns, "integers or text"),
        }.items():
            if not _suits(schema, name, is_image=name == image):
                raise UserError(f"{path}: needs a column {name!r} of {kinds}, has {has}")
        table = pq.read_table(path, columns=list(dict.fromkeys([image, *columns])), partitioning=None)
        images = table[image]
        if pa.types.is_struct(images.type):
            images = pc.struct_field(images, "bytes")
        images, values = images.cast(pa.large_binary()), {name: table[name].to_pylist() for name in columns}
        nulls = {image: images.null_count} | {name: table[name].null_count for name in columns}
    if lacking := [name for name, count in nulls.items() if count]:
        raise UserError(f"{path}: column {lacking[0]!r} holds {nulls[lacking[0]]} nulls")
    if not table.num_rows:
        raise UserError(f"{path}: holds no images; remove it or export it again")
    return ImageTable(path, images, values, _class_names(path, schema, columns[0]))


def _suits(schema: pa.Schema, name: str, is_image: bool) -> bool:
    if len(schema.get_all_field_indices(name)) != 1:
        return False
    kind = schema.field(name).type
    if is_image:
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _class_names(path: Path, schema: pa.Schema, label: str) -> tuple[str, ...]:
    """Return the names of the integers in the metadata of a Hugging Face export; nothing without such metadata."""
    try:
        names = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or len(set(names)) < len(names):
        raise UserError(f"{path}: the metadata's names for column {label!r} are not distinct texts; export it again")
    return tuple(names)
