"""Encoded images to one array of pixels, on all cores."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from pflcore.errors import UserError
from pflcore.preparation import allocate, track
from pflcore.samples import Bytes

_CHUNK = 100  # images per task: small enough to occupy all cores, large enough to make tasks cheap
_LARGEST = 100_000_000  # pixels of a file that is worth decoding; more is an attack or a mistake
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")


def decode_images(
    count: int,
    shape: tuple[int, int, int],
    read: Callable[[int], bytes],
    name: Callable[[int], str],
    what: str,
    *,
    resize: bool = False,
    formats: tuple[str, ...] = _FORMATS,
) -> tuple[Bytes, set[str]]:
    """Decode images; threads suffice, as the decoders work outside of Python's lock.

    Args:
        count: How many there are.
        shape: Channels (1 or 3), height and width of the result; colours are converted to fit.
        read: From an image's number to its encoded bytes.
        name: From an image's number to what messages call it.
        what: What a progress display calls the work.
        resize: Scale images of another size (bilinear with antialiasing, each side by itself) instead of refusing them.
        formats: The encodings to accept.

    Returns:
        uint8 [count, C, H, W], and the encodings met, e.g. ``{"PNG"}``.

    Raises:
        UserError: An unreadable image, by its name.
    """
    pixels = allocate((count, *shape))

    def decode(start: int) -> tuple[int, set[str]]:
        met = set()
        stop = min(start + _CHUNK, count)
        for number in range(start, stop):
            try:
                pixels[number], kind = decode_image(read(number), shape, resize, formats)
            except UserError:
                raise
            except Exception as error:  # decoders of damaged images raise far more than OSError
                raise UserError(f"{name(number)}: not a readable image ({_reason(error, formats)})") from None
            met.add(kind)
        return stop - start, met

    advance, met = track(what, count), set()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(decode, start) for start in range(0, count, _CHUNK)]
        for steps, kinds in _results(futures):
            advance(steps)
            met |= kinds
    return pixels, met


def _results(futures: list[Future[tuple[int, set[str]]]]) -> Iterator[tuple[int, set[str]]]:
    """Their results in order; after the first error the rest is not begun."""
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def decode_files(
    paths: Sequence[Path], shape: tuple[int, int, int], what: str, *, resize: bool = True
) -> tuple[Bytes, set[str]]:
    """:func:`decode_images` of files."""
    return decode_images(
        len(paths), shape, lambda n: paths[n].read_bytes(), lambda n: str(paths[n]), what, resize=resize
    )


def decode_image(
    data: bytes | None, shape: tuple[int, int, int], resize: bool, formats: tuple[str, ...] = _FORMATS
) -> tuple[Bytes, str]:
    """One image as uint8 [C, H, W], and its encoding. Raises whatever the decoder does."""
    from PIL import Image

    if data is None:
        raise ValueError("it is null")
    channels, height, width = shape
    with Image.open(io.BytesIO(data), formats=formats) as image:
        if image.width * image.height > _LARGEST:
            raise ValueError(f"{image.width}x{image.height} pixels are more than {_LARGEST:,}")
        if not resize and image.size != (width, height):  # known from the header: nothing huge is decoded
            raise ValueError(f"{image.size[0]}x{image.size[1]} instead of {width}x{height} pixels")
        kind = str(image.format)
        converted = image.convert("RGB" if channels == 3 else "L")
        if converted.size != (width, height):
            converted = converted.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(converted).reshape(height, width, channels).transpose(2, 0, 1), kind


def _reason(error: Exception, formats: tuple[str, ...]) -> str:
    # Pillow names the address of the buffer, which is different each time.
    return f"not {' or '.join(formats)}" if type(error).__name__ == "UnidentifiedImageError" else str(error)
