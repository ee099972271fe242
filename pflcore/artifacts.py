"""Parquet artifacts: compressed with zstd, a schema version in the metadata, written under a temporary name."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pflcore.errors import UserError
from pflcore.files import atomic_path, parse_json

_KEY = b"pfl"


def write_table(path: Path, table: pa.Table, schema: str, /, **meta: Any) -> None:
    """Write an artifact; `schema` is name and version of its columns (``"partition/1"``), `meta` are facts about it."""
    with table_writer(path, table.schema, schema, **meta) as writer:
        writer.write_table(table.replace_schema_metadata(writer.schema.metadata))


@contextmanager
def table_writer(
    path: Path, columns: pa.Schema, schema: str, /, *, plain: tuple[str, ...] = (), **meta: Any
) -> Iterator[pq.ParquetWriter]:
    """Yield a writer for an artifact that is written piece by piece; the columns in `plain` are not compressed."""
    header = json.dumps({"schema": schema, **meta}, sort_keys=True, separators=(",", ":"))
    columns = columns.with_metadata({_KEY: header.encode()})
    with pa.BufferOutputStream() as empty:  # only its schema has the Parquet names of nested columns
        pq.write_table(columns.empty_table(), empty)
        leaves = [leaf.path for leaf in pq.read_metadata(pa.BufferReader(empty.getvalue())).schema]
    codecs = {leaf: "none" if leaf in plain else "zstd" for leaf in leaves}
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, columns, compression=codecs) as writer:
        yield writer


def read_meta(path: Path, schema: str) -> dict[str, Any]:
    """Return the facts in an artifact's metadata, without reading its rows. Raises like :func:`read_table`."""
    return _header(path, _read(path, schema, pq.read_schema).metadata, schema)


def read_table(path: Path, schema: str, columns: list[str] | None = None) -> tuple[pa.Table, dict[str, Any]]:
    """Return an artifact's rows and facts; raise :class:`UserError` if it is missing, damaged or of another schema."""
    table = _read(path, schema, lambda source: pq.read_table(source, columns=columns, partitioning=None))
    return table, _header(path, table.schema.metadata, schema)


def _read(path: Path, schema: str, reader: Any) -> Any:
    if not path.is_file():
        raise UserError(f"{path}: no such {schema.split('/')[0]} artifact; run the stage that makes it")
    try:
        return reader(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error}); delete it and run again") from None


def _header(path: Path, metadata: dict[bytes, bytes] | None, schema: str) -> dict[str, Any]:
    try:
        header: dict[str, Any] = dict(parse_json((metadata or {}).get(_KEY, b"{}")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: its facts are damaged ({error}); delete it and run again") from None
    if (actual := header.pop("schema", "none")) != schema:
        raise UserError(f"{path}: expected the artifact schema {schema}, found {actual}; delete it and run again")
    return header
