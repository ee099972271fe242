"""Encoded images to one array of pixels, on all cores."""

from __future__ import annotations

import io
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from threading import Thread
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import Bytes, Rows
from pflcore.datasets._files import Read, describe
from pflcore.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
CHUNK = 64  # images per task
AHEAD = 32  # tasks that are read before those before them are decoded
MIN_PARALLEL = 2_000  # images that are decoded sooner than processes are started
MAX_PIXELS = 100_000_000  # of a file


class Decoded(NamedTuple):
    """Images as uint8 [n, C, H, W], encodings as ``"PNG"``, width and height [n, 2] before scaling.

    With a `problem`, the image after the last one is unreadable for that reason.
    """

    pixels: Bytes
    formats: set[str]
    sizes: Rows
    problem: str = ""


class Form(NamedTuple):
    """What images are decoded to: channels (1 or 3), height and width.

    Those of another size are scaled (`resize`: bilinear with antialiasing, each side by itself) or refused. `as_shown`:
    as a viewer shows them, turned by EXIF's orientation, transparent ones on white, 16 bits or floats scaled to bytes.
    """

    shape: tuple[int, ...]
    resize: bool = False
    as_shown: bool = False
    formats: tuple[str, ...] = FORMATS


def decode_images(images: Sequence[tuple[str, Read]], form: Form, what: str) -> Decoded:
    """Decode images: what messages call each, and what gives its bytes. They are read here, and decoded on each core.

    `what` is how a progress display calls the work.
    """
    pixels, sizes = allocate((len(images), *form.shape)), np.empty((len(images), 2), np.int64)
    advance, formats, done = track(what, len(images)), set[str](), 0
    for part in _decoded(images, partial(_decode_chunk, form=form)):
        rows = slice(done, done + len(part.pixels))
        if part.problem:
            raise UserError(f"{images[rows.stop][0]}: {part.problem}")
        pixels[rows], sizes[rows], done = part.pixels, part.sizes, rows.stop
        formats |= part.formats
        advance(len(part.pixels))
    return Decoded(pixels, formats, sizes)


def _decoded(images: Sequence[tuple[str, Read]], decode: Callable[[list[bytes]], Decoded]) -> Iterator[Decoded]:
    """Yield the decoded chunks in order. Many are spread over processes: threads would wait for Python's lock."""
    chunks = ([read() for _, read in images[start : start + CHUNK]] for start in range(0, len(images), CHUNK))
    if len(images) < MIN_PARALLEL or (os.cpu_count() or 1) == 1:
        yield from map(decode, chunks)
        return
    # Forked, since other ways to start a process would run a caller's script again.
    with ProcessPoolExecutor(None, get_context("fork"), _end_with, (os.getpid(),)) as pool:
        pending: deque[Future[Decoded]] = deque()
        try:
            for chunk in chunks:
                pending.append(pool.submit(decode, chunk))
                if len(pending) > AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise UserError("a process that decodes images was killed, perhaps for lack of memory; try again") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, however that happened."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _decode_chunk(images: list[bytes], form: Form) -> Decoded:
    pixels, sizes = np.empty((len(images), *form.shape), np.uint8), np.empty((len(images), 2), np.int64)
    formats: set[str] = set()
    for number, data in enumerate(images):
        try:
            pixels[number], kind, sizes[number] = decode_image(data, form)
        except Exception as error:  # decoders of damaged images raise far more than OSError
            if isinstance(error, UnidentifiedImageError):  # which names an address, another one each time
                error = ValueError(f"not {' or '.join(form.formats)}")
            problem = describe(error, data).replace("cannot be read", "not a readable image")
            return Decoded(pixels[:number], formats, sizes[:number], problem)
        formats.add(kind)
    return Decoded(pixels, formats, sizes)


def decode_image(data: bytes, form: Form) -> tuple[Bytes, str, tuple[int, int]]:
    """Decode one image to uint8 [C, H, W], its encoding and its size. Raise whatever the decoder does."""
    channels, height, width = form.shape
    with Image.open(io.BytesIO(data), formats=form.formats) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width}x{image.height} pixels are more than {MAX_PIXELS:,}")
        kind = str(image.format)
        shown: Image.Image = _with_bytes(ImageOps.exif_transpose(image)) if form.as_shown else image
        size = shown.size
        if not form.resize and size != (width, height):
            raise ValueError(f"{size[0]}x{size[1]} instead of {width}x{height} pixels")
        converted = shown.convert("RGB" if channels == 3 else "L")
        if size != (width, height):
            converted = converted.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(converted).reshape(height, width, channels).transpose(2, 0, 1), kind, size


def _with_bytes(image: Image.Image) -> Image.Image:
    """Scale 16 bits, and floats from 0 to 1, to bytes, and lay a transparent image on white."""
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
    """Return whether a file is an image by its name; hidden files, such as a system's notes on one, are not."""
    return not file.startswith(".") and file.lower().endswith(SUFFIXES)
