"""Decoding of images into one array of pixels, on all cores, and reading of Parquet files with encoded images."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image, ImageOps, UnidentifiedImageError

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import SPLITS, Bytes, Mask, Rows
from pflcore.data.workers import each_part
from pflcore.datasets._files import Read, describe, reading
from pflcore.errors import UserError
from pflcore.files import parse_json
from pflcore.memory import worker_count

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
CHUNK = 64  # images per task
MIN_PARALLEL = 2_000  # fewer images are decoded in one process, which is faster than starting others
MAX_PIXELS = 100_000_000  # per image


class Decoded(NamedTuple):
    """Images as uint8 [n, C, H, W], the formats met, such as ``"PNG"``, and width and height [n, 2] before scaling."""

    pixels: Bytes
    formats: set[str]
    sizes: Rows


class Form(NamedTuple):
    """The form in which images are decoded: channels (1 or 3), height and width.

    Images of another size are scaled (`resize`: bilinear with antialiasing, each side by itself) or refused. `as_shown`
    decodes as a viewer does: rotated by EXIF's orientation, transparent images on white, 16 bits or floats as bytes.
    """

    shape: tuple[int, ...]
    resize: bool = False
    as_shown: bool = False
    formats: tuple[str, ...] = FORMATS


def decode_images(images: Sequence[tuple[str, Read]], form: Form, what: str) -> Decoded:
    """Decode images, each given as its name for messages and a function that returns its bytes, on all cores.

    This process calls the functions. Many images are decoded in processes, as threads would wait for Python's lock.
    `what` is the name of the work in the display of progress.
    """
    pixels = allocate((len(images), *form.shape))
    sizes = np.empty((len(images), 2), np.int64)
    formats: set[str] = set()
    advance = track(what, len(images))
    starts = range(0, len(images), CHUNK)
    chunks = ([(where, read()) for where, read in images[start : start + CHUNK]] for start in starts)
    workers = worker_count() if len(images) >= MIN_PARALLEL else 1
    stop = 0
    for part in each_part(partial(_decode_chunk, form=form), chunks, workers):
        start, stop = stop, stop + len(part.pixels)
        pixels[start:stop] = part.pixels
        sizes[start:stop] = part.sizes
        formats |= part.formats
        advance(stop - start)
    return Decoded(pixels, formats, sizes)


def _decode_chunk(images: list[tuple[str, bytes]], form: Form) -> Decoded:
    pixels = np.empty((len(images), *form.shape), np.uint8)
    sizes = np.empty((len(images), 2), np.int64)
    formats: set[str] = set()
    for number, (where, data) in enumerate(images):
        try:
            pixels[number], kind, sizes[number] = decode_image(data, form)
        except Exception as error:  # decoders raise many kinds of exceptions for damaged images
            if isinstance(error, UnidentifiedImageError):  # its message has a memory address, which varies
                error = ValueError(f"no {' or '.join(form.formats)} that Pillow can read")
            problem = describe(error).replace("cannot be read", "not a readable image")
            raise UserError(f"{where}: {problem}") from None
        formats.add(kind)
    return Decoded(pixels, formats, sizes)


def decode_image(data: bytes, form: Form) -> tuple[Bytes, str, tuple[int, int]]:
    """Return an image as uint8 [C, H, W], its format and its size before scaling. The decoder's exceptions pass."""
    channels, height, width = form.shape
    with Image.open(io.BytesIO(data), formats=form.formats) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width}x{image.height} pixels are more than {MAX_PIXELS:,}")
        kind = str(image.format)
        shown: Image.Image = image
        if form.as_shown:
            # Decoders would show grey in place of zeros.
            if kind == "JPEG" and data.endswith(bytes(512)) and not data.rstrip(b"\0").endswith(b"\xff\xd9"):
                raise ValueError("it ends with zeros, as a download that was cut")
            shown = _as_shown(image)
        size = shown.size
        if not form.resize and size != (width, height):
            raise ValueError(f"{size[0]}x{size[1]} instead of {width}x{height} pixels")
        converted = shown.convert("RGB" if channels == 3 else "L")
        if size != (width, height):
            converted = converted.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(converted).reshape(height, width, channels).transpose(2, 0, 1), kind, size


def _as_shown(image: Image.Image) -> Image.Image:
    """Return an image upright, 16 bits and floats from 0 to 1 scaled to bytes, and a transparent one on white."""
    if image.mode == "I" and image.format == "TIFF":  # in a PPM these are 16 bits
        raise ValueError("its integers are signed or of 32 bits; convert it to 8 bits")
    image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image, np.float64)
        largest = 1 if image.mode == "F" else 2**16 - 1
        if not ((values >= 0) & (values <= largest)).all():
            raise ValueError(f"its values are not within 0 and {largest}; convert it to 8 bits")
        return Image.fromarray(np.rint(values * (255 / largest)).astype(np.uint8))
    if image.has_transparency_data:
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image


def is_image(file: str) -> bool:
    """Return whether a file name is that of an image; hidden files, which some systems put beside images, are not."""
    return not file.startswith(".") and file.lower().endswith(SUFFIXES)


@dataclass(frozen=True, eq=False)
class ImageTable:
    """A table of encoded images, and columns of integers or texts by name.

    `class_names` are the names of the integers in the first column; empty if the file does not state them.
    """

    path: Path
    images: pa.ChunkedArray
    columns: dict[str, list[int] | list[str]]
    class_names: tuple[str, ...]

    def readers(self) -> list[tuple[str, Read]]:
        """Return for each image its name for messages and a function that returns its bytes."""
        return [(f"{self.path}: row {row}", image.as_py) for row, image in enumerate(self.images)]


def read_tables(
    folder: Path, image: str, columns: Sequence[str], test: Sequence[str] = SPLITS[1:]
) -> tuple[list[ImageTable], Mask]:
    """Read ``train*.parquet``, then files with a prefix in `test`; return the tables and the mask of training rows."""
    here = sorted(folder.glob("*.parquet"))
    named = {prefix: [path for path in here if path.name.startswith(prefix)] for prefix in ("train", *test)}
    if test != SPLITS[1:] and (missing := [prefix for prefix in test if not named[prefix]]):
        raise UserError(f"{folder}: no {missing[0]}*.parquet here; put it there, or change 'test'")
    paths = list(dict.fromkeys(path for own in named.values() for path in own))
    _check_shards(folder, {path.name for path in paths})
    tables = [read_table(path, image, columns) for path in paths]
    train = [table.path.name.startswith("train") for table in tables for _ in range(len(table.images))]
    return tables, np.array(train, bool)


def _check_shards(folder: Path, names: set[str]) -> None:
    """Raise :class:`UserError` if a file of a series such as ``train-00000-of-00003.parquet`` is missing."""
    parts = [part for name in sorted(names) if (part := re.match(r"(.*)[-_](\d+)[-_]of[-_](\d+)", name))]
    groups: dict[tuple[str, int], dict[int, str]] = {}
    for part in parts:
        groups.setdefault((part[1], int(part[3])), {})[int(part[2])] = part.string
    for (_, count), here in groups.items():
        start = int(0 not in here and count in here)  # some exports count from 1
        missing = next((number for number in range(start, max(start + count, *here)) if number not in here), None)
        if missing is not None:
            raise UserError(f"{folder}: part {missing} of {count} is missing beside {min(here.values())}; get it, too")


def read_table(path: Path, image: str, columns: Sequence[str]) -> ImageTable:
    """Read a Parquet file with a column `image` of encoded images and `columns` of integers or texts, the labels first.

    Images are binary, or structs with a binary field ``bytes``. Booleans are read as the texts ``false`` and ``true``.
    Names of integer labels are taken from the metadata that the Hugging Face library ``datasets`` exports.
    """
    cells: dict[str, pa.ChunkedArray] = {}
    with reading(path):
        schema = pq.read_schema(path)
        known = [name for name in {image, *columns} if name in schema.names]
        table = pq.read_table(path, columns=known, partitioning=None)
        for name in (image, *columns):
            cell = table[name] if table.column_names.count(name) == 1 else pa.chunked_array([], pa.null())
            if pa.types.is_struct(cell.type) and name == image and cell.type.get_field_index("bytes") >= 0:
                cell = pc.struct_field(cell, "bytes")
            elif pa.types.is_dictionary(cell.type):
                cell = cell.cast(cell.type.value_type)
            elif pa.types.is_boolean(cell.type) and name != image:
                cell = cell.cast(pa.string())
            suits = str(cell.type) in (("binary", "large_binary") if name == image else ("string", "large_string"))
            suits |= name != image and pa.types.is_integer(cell.type)
            if not suits or cell.null_count:
                what = "binary or struct<bytes: binary>" if name == image else "integers or text"
                has = ", ".join(f"{field.name:.40}: {field.type!s:.60}" for field in list(schema)[:12])
                raise UserError(f"{path}: needs a column {name!r} of {what}, without nulls, has {has}")
            cells[name] = cell
    if not table.num_rows:
        raise UserError(f"{path}: holds no images; remove it or export it again")
    names = _class_names(path, schema.metadata or {}, columns[0])
    return ImageTable(path, cells[image], {name: cells[name].to_pylist() for name in columns}, names)


def _class_names(path: Path, metadata: dict[bytes, bytes], label: str) -> tuple[str, ...]:
    """Return the class names of an integer column from an export's metadata; an empty tuple if it has none."""
    try:
        names = parse_json(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    texts = isinstance(names, list) and all(isinstance(name, str) and name.isprintable() for name in names)
    if not texts or len(set(names)) < len(names):
        found = repr(names)[:80]
        raise UserError(f"{path}: the names of {label!r} are {found}, not distinct printable texts; export it again")
    return tuple(names)
