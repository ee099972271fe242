"""Encoded images to one array of pixels, on all cores."""

from __future__ import annotations

import io
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_all_start_methods, get_context
from threading import Thread

import numpy as np

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import Bytes
from pflcore.errors import UserError

_CHUNK = 64  # images per task: small enough to occupy all cores, large enough to make tasks cheap
_AHEAD = 3  # tasks per process that are read before they are needed
_FEW = 2_000  # images that are decoded sooner than processes are started
_LARGEST = 100_000_000  # pixels of a file that is worth decoding; more is an attack or a mistake
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")


def decode_images(
    count: int,
    shape: tuple[int, int, int],
    read: Callable[[int], bytes | None],
    name: Callable[[int], str],
    what: str,
    *,
    resize: bool = False,
    formats: tuple[str, ...] = _FORMATS,
) -> tuple[Bytes, set[str]]:
    """Decode images: read here, one after the other, and decoded by a process per core.

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
    advance = track(what, count)
    met: set[str] = set()

    def fetch(number: int) -> bytes | None:
        try:
            return read(number)
        except UserError:
            raise
        except Exception as error:  # a reader may look into the image
            raise UserError(f"{name(number)}: not a readable image ({_reason(error, formats)})") from None

    chunks = ([fetch(n) for n in range(start, min(start + _CHUNK, count))] for start in range(0, count, _CHUNK))
    decode = partial(_decode_chunk, shape=shape, resize=resize, formats=formats)
    start = 0
    for decoded, kinds, problem in _spread(decode, chunks, count > _FEW):
        if problem:
            raise UserError(f"{name(start + len(decoded))}: not a readable image ({problem})")
        pixels[start : start + len(decoded)] = decoded
        start += len(decoded)
        advance(len(decoded))
        met |= kinds
    return pixels, met


Decoded = tuple[Bytes, set[str], str]
"""Images in order, their encodings, and why the one after them is unreadable."""


def _decode_chunk(
    images: list[bytes | None], shape: tuple[int, int, int], resize: bool, formats: tuple[str, ...]
) -> Decoded:
    pixels = np.empty((len(images), *shape), np.uint8)
    met: set[str] = set()
    for number, data in enumerate(images):
        try:
            pixels[number], kind = decode_image(data, shape, resize, formats)
        except Exception as error:  # decoders of damaged images raise far more than OSError
            return pixels[:number], met, _reason(error, formats)
        met.add(kind)
    return pixels, met, ""


def _spread(
    decode: Callable[[list[bytes | None]], Decoded], chunks: Iterator[list[bytes | None]], many: bool
) -> Iterator[Decoded]:
    """The decoded chunks in their order. Many are spread over processes: threads would wait for Python's lock."""
    workers = os.cpu_count() or 1
    if not many or workers == 1 or "fork" not in get_all_start_methods():
        yield from map(decode, chunks)
        return
    # Forked, since other ways to start a process would run a caller's script again.
    with ProcessPoolExecutor(workers, get_context("fork"), _end_with, (os.getpid(),)) as pool:
        waiting: deque[Future[Decoded]] = deque()
        try:
            for chunk in chunks:
                waiting.append(pool.submit(decode, chunk))
                if len(waiting) > _AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError("a process that decodes images was killed, perhaps for lack of memory; try again") from None
        finally:
            for future in waiting:
                future.cancel()


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, however that happened."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


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
