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
from pflcore.data.workers import parallel_map
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


class DecodeOptions(NamedTuple):
    """How images are decoded: the shape is channels (1 or 3), height and width.

    Images of another size are scaled (`resize`: bilinear with antialiasing, each side by itself) or refused. `as_shown`
    decodes as a viewer does: rotated by EXIF's orientation, transparent images on white, 16 bits or floats as bytes.
    """

    shape: tuple[int, ...]
    resize: bool = False
    as_shown: bool = False
    formats: tuple[str, ...] = FORMATS


def decode_images(images: Sequence[tuple[str, Read]], options: DecodeOptions, task: str) -> Decoded:
    """Decode images, each given as its name for messages and a function that returns its bytes, on all cores.

    This process calls the functions. Many images are decoded in processes, as threads would wait for Python's lock.
    `task` is the name in the display of progress.
    """
    pixels = allocate((len(images), *options.shape))
    sizes = np.empty((len(images), 2), np.int64)
    formats: set[str] = set()
    advance = track(task, len(images))
    starts = range(0, len(images), CHUNK)
    chunks = ([(where, read()) for where, read in images[start : start + CHUNK]] for start in starts)
    workers = worker_count() if len(images) >= MIN_PARALLEL else 1
    stop = 0
    for part in parallel_map(partial(_decode_chunk, options=options), chunks, workers):
        start, stop = stop, stop + len(part.pixels)
        pixels[start:stop] = part.pixels
        sizes[start:stop] = part.sizes
        formats |= part.formats
        advance(stop - start)
    return Decoded(pixels, formats, sizes)


def _decode_chunk(images: list[tuple[str, bytes]], options: DecodeOptions) -> Decoded:
    pixels = np.empty((len(images), *options.shape), np.uint8)
    sizes = np.empty((len(images), 2), np.int64)
    formats: set[str] = set()
    for number, (where, data) in enumerate(images):
        try:
            pixels[number], format_name, sizes[number] = decode_image(data, options)
        except Exception as error:  # decoders raise many kinds of exceptions for damaged images
            if isinstance(error, UnidentifiedImageError):  # its message has a memory address, which varies
                error = ValueError(f"no {' or '.join(options.formats)} that Pillow can read")
            problem = describe(error).replace("cannot be read", "not a readable image")
            raise UserError(f"{where}: {problem}") from None
        formats.add(format_name)
    return Decoded(pixels, formats, sizes)


def decode_image(data: bytes, options: DecodeOptions) -> tuple[Bytes, str, tuple[int, int]]:
    """Return an image as uint8 [C, H, W], its format and its size before scaling. The decoder's exceptions pass."""
    channels, height, width = options.shape
    with Image.open(io.BytesIO(data), formats=options.formats) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width}x{image.height} pixels are more than {MAX_PIXELS:,}")
        format_name = str(image.format)
        cut = format_name == "JPEG" and data.endswith(bytes(512)) and not data.rstrip(b"\0").endswith(b"\xff\xd9")
        if cut and options.as_shown:  # decoders would show grey in place of the zeros
            raise ValueError("it ends with zeros, as a download that was cut")
        picture = _as_shown(image) if options.as_shown else image
        size = picture.size
        if not options.resize and size != (width, height):
            raise ValueError(f"{size[0]}x{size[1]} instead of {width}x{height} pixels")
        picture = picture.convert("RGB" if channels == 3 else "L")
        if size != (width, height):
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(picture).reshape(height, width, channels).transpose(2, 0, 1), format_name, size


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
    """Return whether a file name is that of an image, and not of a hidden file, as some systems add to images."""
    return not file.startswith(".") and file.lower().endswith(SUFFIXES)


@dataclass(frozen=True, eq=False)
class EncodedImages:
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
) -> tuple[list[EncodedImages], Mask]:
    """Read ``train*.parquet``, then files with a prefix in `test`; return the tables and the mask of training rows."""
    files, paths = sorted(folder.glob("*.parquet")), dict[Path, None]()  # an ordered set
    for prefix in ("train", *test):
        matches = [path for path in files if path.name.startswith(prefix)]
        if not matches and prefix != "train" and test != SPLITS[1:]:
            raise UserError(f"{folder}: no {prefix}*.parquet here; put it there, or change 'test'")
        paths |= dict.fromkeys(matches)
    _check_shards(folder, {path.name for path in paths})
    tables = [read_table(path, image, columns) for path in paths]
    train = [table.path.name.startswith("train") for table in tables for _ in range(len(table.images))]
    return tables, np.array(train, bool)


def _check_shards(folder: Path, names: set[str]) -> None:
    """Raise :class:`UserError` if a file of a series such as ``train-00000-of-00003.parquet`` is missing."""
    series: dict[tuple[str, int], dict[int, str]] = {}
    for name in sorted(names):
        if match := re.match(r"(.*)[-_](\d+)[-_]of[-_](\d+)", name):
            series.setdefault((match[1], int(match[3])), {})[int(match[2])] = name
    for (_, count), shards in series.items():
        start = 1 if 0 not in shards and count in shards else 0  # some exports count from 1
        for number in range(start, max(start + count, *shards)):
            if number not in shards:
                name = min(shards.values())
                raise UserError(f"{folder}: part {number} of {count} is missing beside {name}; get it, too")


def read_table(path: Path, image: str, columns: Sequence[str]) -> EncodedImages:
    """Read a Parquet file with a column `image` of encoded images and `columns` of integers or texts, the labels first.

    Images are binary, or structs with a binary field ``bytes``. Booleans are read as the texts ``false`` and ``true``.
    Names of integer labels are taken from the metadata that the Hugging Face library ``datasets`` exports.
    """
    data: dict[str, pa.ChunkedArray] = {}
    with reading(path):
        schema = pq.read_schema(path)
        table = pq.read_table(path, columns=list({image, *columns} & {*schema.names}), partitioning=None)
        for name in (image, *columns):
            column = table[name] if table.column_names.count(name) == 1 else pa.chunked_array([], pa.null())
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            elif name == image and pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
                column = pc.struct_field(column, "bytes")
            elif name != image and pa.types.is_boolean(column.type):
                column = column.cast(pa.string())
            if name == image:
                valid, expected = str(column.type) in ("binary", "large_binary"), "binary or struct<bytes: binary>"
            else:
                is_text = str(column.type) in ("string", "large_string")
                valid, expected = is_text or pa.types.is_integer(column.type), "integers or text"
            if not valid or column.null_count:
                actual = ", ".join(f"{field.name:.40}: {field.type!s:.60}" for field in list(schema)[:12])
                raise UserError(f"{path}: needs a column {name!r} of {expected}, without nulls, has {actual}")
            data[name] = column
    if not table.num_rows:
        raise UserError(f"{path}: holds no images; remove it or export it again")
    names = _class_names(path, schema.metadata or {}, columns[0])
    return EncodedImages(path, data[image], {name: data[name].to_pylist() for name in columns}, names)


def _class_names(path: Path, metadata: dict[bytes, bytes], label: str) -> tuple[str, ...]:
    """Return the class names of an integer column from an export's metadata; an empty tuple if it has none."""
    try:
        names = parse_json(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    printable = isinstance(names, list) and all(isinstance(name, str) and name.isprintable() for name in names)
    if not printable or len(set(names)) < len(names):
        problem = f"are {repr(names)[:80]}, not distinct printable texts"
        raise UserError(f"{path}: the names of {label!r} {problem}; export it again")
    return tuple(names)
