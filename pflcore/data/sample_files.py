"""The artifact ``dataset/2``: the samples of a dataset as a Parquet file, a row per sample."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pflcore.artifacts import read_meta, read_table, table_writer
from pflcore.data.samples import SPLITS, Attribute, Boxes, Inputs, Rows, Samples
from pflcore.errors import UserError
from pflcore.files import atomic_path, digest_of
from pflcore.memory import memory_limit

SCHEMA = "dataset/2"
GROUP = 64 * 2**20  # bytes of inputs per row group, which are in memory while a large artifact is written or mapped
_PROBE = 4 * 2**20  # bytes of inputs on which compression is tried
_SIDES = ("left", "top", "right", "bottom")
_BOX = pa.struct([("label", pa.int64()), *((side, pa.float32()) for side in _SIDES), ("difficult", pa.bool_())])


def write_samples(path: Path, samples: Samples) -> None:
    """Write the artifact ``dataset/2`` in row groups. Its bytes depend only on `samples`."""
    width = samples.inputs.dtype.itemsize * int(np.prod(samples.inputs.shape[1:]))
    names = ("name", "size", "classes", "class_names", "mean", "std", "source")
    meta: dict[str, Any] = {name: getattr(samples, name) for name in names}
    meta["shape"] = samples.inputs.shape[1:]
    meta["attributes"] = {name: attribute.names for name, attribute in samples.attributes.items()}
    if samples.is_arrays:
        meta["standardise"] = samples.standardise
    columns = {"label": pa.array(samples.labels)}
    columns["split"] = pa.DictionaryArray.from_arrays((~samples.train).astype(np.int8), pa.array(SPLITS))
    for name, attribute in samples.attributes.items():
        values = pa.array(attribute.names, pa.string())
        columns[name] = pa.DictionaryArray.from_arrays(attribute.values.astype(np.int32), values)
    if boxes := samples.boxes:
        sides = [pa.array(np.ascontiguousarray(side)) for side in boxes.corners.T]
        items = pa.StructArray.from_arrays([pa.array(boxes.labels), *sides, pa.array(boxes.difficult)], fields=[*_BOX])
        ends = np.concatenate([[0], np.cumsum(boxes.counts)]).astype(np.int32)
        columns["boxes"] = pa.ListArray.from_arrays(pa.array(ends), items)
    table = pa.table(columns)
    schema = pa.schema([pa.field("input", pa.binary(width)), *table.schema])
    # Compress if that saves a tenth of the first rows; photographs of 32x32 pixels would save a 90th.
    probe = np.ascontiguousarray(samples.inputs[: max(1, _PROBE // max(width, 1))])
    compress = not probe.nbytes or len(pa.compress(probe, codec="zstd", asbytes=True)) < 0.9 * probe.nbytes
    rows = max(1, GROUP // max(width, 1))
    with table_writer(path, schema, SCHEMA, plain=() if compress else ("input",), **meta) as writer:
        for start in range(0, max(len(samples), 1), rows):
            # No copy if the rows are contiguous.
            part = np.ascontiguousarray(samples.inputs[start : start + rows])
            inputs = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(part), [None, pa.py_buffer(part)])
            group = table.slice(start, rows).add_column(0, "input", inputs)
            writer.write_table(group.cast(writer.schema), row_group_size=rows)


def read_samples(path: Path, scratch: Path | None = None) -> Samples:
    """Return the samples in the artifact ``dataset/2``; the caller may write into the arrays.

    Inputs above :func:`pflcore.memory.memory_limit` are decoded once into a file in `scratch` and mapped into memory.
    If `scratch` is None, they are read into memory.
    """
    return _read(path, scratch, with_inputs=True)


def read_facts(path: Path) -> Samples:
    """Return the samples with zeros as inputs, which take no memory; partitions need no inputs."""
    return _read(path, None, with_inputs=False)


@contextmanager
def reading_artifact(path: Path) -> Iterator[None]:
    """Raise errors of the block, which reads an artifact, as one :class:`UserError` that names the file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException, UserError) as error:
        reason = error if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: damaged ({reason}); delete it and run again") from None


def category_codes(table: pa.Table, name: str, categories: Sequence[str]) -> Rows:
    """Return the index in `categories` of each value of a column, int64."""
    codes = pc.index_in(table[name].cast(pa.string()), value_set=pa.array(categories, pa.string()))
    return np.asarray(codes).astype(np.int64)


def _read(path: Path, scratch: Path | None, with_inputs: bool) -> Samples:
    meta = read_meta(path, SCHEMA)
    with reading_artifact(path):
        shape = tuple(int(size) for size in meta["shape"])
        attributes = {name: tuple(values) for name, values in meta["attributes"].items()}
        dtype = np.dtype(np.float32 if "standardise" in meta else np.uint8)
        size = pq.read_metadata(path).num_rows * int(np.prod(shape)) * dtype.itemsize
        mapped = bool(scratch) and size > memory_limit()
        present = pq.read_schema(path).names
        columns = [name for name in present if name != "input" or (with_inputs and not mapped)]
        table, _ = read_table(path, SCHEMA, columns)
        if not with_inputs:
            inputs: Inputs = np.broadcast_to(dtype.type(0), (len(table), *shape))
        elif mapped and scratch:
            inputs = _mapped_inputs(path, scratch, dtype, (len(table), *shape))
        else:
            inputs = np.empty((len(table), *shape), dtype)
            _decode(table, inputs)
        return Samples(
            inputs=inputs,
            labels=table["label"].to_numpy().copy(),  # Arrow memory is read-only
            train=category_codes(table, "split", SPLITS) == 0,
            name=meta["name"],
            class_names=tuple(meta["class_names"]),
            mean=tuple(meta["mean"]),
            std=tuple(meta["std"]),
            source=meta["source"],
            size=meta.get("size"),
            attributes={n: Attribute(category_codes(table, n, values), values) for n, values in attributes.items()},
            boxes=_boxes(table) if "boxes" in present else None,
            standardise=meta.get("standardise", False),
        )


def _boxes(table: pa.Table) -> Boxes:
    lists = table["boxes"].combine_chunks()
    fields = {field.name: lists.flatten().field(field.name).to_numpy(zero_copy_only=False) for field in _BOX}
    corners = np.stack([fields[side] for side in _SIDES], axis=1)
    counts = lists.value_lengths().to_numpy().astype(np.int64)
    return Boxes(counts, fields["label"].copy(), corners, fields["difficult"].astype(np.bool_))


def _mapped_inputs(path: Path, scratch: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Inputs:
    """Return the inputs mapped into memory from a decoded file, which is named by the artifact's hash."""
    decoded = scratch / f"{digest_of(path)[:16]}.npy"
    if not decoded.is_file():
        with atomic_path(decoded) as temporary:
            inputs = np.lib.format.open_memmap(temporary, "w+", dtype, shape)
            start = 0
            for part in pq.ParquetFile(path).iter_batches(columns=["input"]):
                _decode(pa.Table.from_batches([part]), inputs[start : start + len(part)])
                start += len(part)
            inputs.flush()
    # Copy on write, because PyTorch warns about read-only memory.
    mapped: Inputs = np.load(decoded, mmap_mode="c")
    return mapped


def _decode(table: pa.Table, out: Inputs) -> None:
    """Copy the inputs of a table into `out`, which has the same number of rows."""
    size = int(np.prod(out.shape[1:]))
    width = size * out.itemsize
    start = 0
    for chunk in table["input"].chunks:
        stored = np.frombuffer(chunk.buffers()[1], out.dtype, len(chunk) * size, chunk.offset * width)
        out[start : start + len(chunk)] = stored.reshape(len(chunk), *out.shape[1:])
        start += len(chunk)
