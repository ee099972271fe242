"""Decoding images: the same pixels from one process or many, names of bad images, and no process left behind."""

from __future__ import annotations

import io
import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pflcore.data.preparation import preparing
from pflcore.datasets import _images
from pflcore.datasets._images import Form, decode_images
from pflcore.errors import UserError


def encoded(number: int, size: tuple[int, int] = (5, 6), kind: str = "PNG", mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return saved(Image.fromarray(pixels).convert(mode), kind)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decode(images: list[bytes], **options: Any) -> np.ndarray:
    named = [(f"image {number}", partial(bytes, data)) for number, data in enumerate(images)]
    return decode_images(named, Form((3, 6, 5), **options), "decoding").pixels


def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode with two processes, however few images there are."""
    monkeypatch.setattr(_images, "MIN_PARALLEL", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.mark.parametrize("several", [False, True])
def test_order_colours_sizes_and_progress(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_images, "CHUNK", 4)
    if several:
        spread(monkeypatch)
    images = [encoded(n) for n in range(10)]
    images[7], images[9] = encoded(7, mode="L"), encoded(9, size=(10, 12))
    seen: list[tuple[str, int, int]] = []
    with preparing(lambda *step: seen.append(step), None):
        pixels = decode(images, resize=True)
    assert seen == [("decoding", 0, 10), ("decoding", 4, 10), ("decoding", 8, 10), ("decoding", 10, 10)]
    for n in (0, 3, 4, 8):
        expected = np.random.default_rng(n).integers(0, 256, (6, 5, 3), np.uint8)
        np.testing.assert_array_equal(pixels[n], expected.transpose(2, 0, 1))
    assert (pixels[7][0] == pixels[7][1]).all()
    with Image.open(io.BytesIO(images[9])) as large:
        small = np.asarray(large.resize((5, 6), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels[9], small)
    for bad, reason in (
        (encoded(0, size=(6, 6)), "6x6 instead of 5x6 pixels"),
        (encoded(0, kind="GIF"), "not PNG or JPEG"),
    ):
        with pytest.raises(UserError) as error:
            decode([*images[:6], bad, images[0], bad], formats=("PNG", "JPEG"))
        assert str(error.value) == f"image 6: not a readable image ({reason})"


def test_few_images_are_read_ahead_of_those_that_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    spread(monkeypatch)
    monkeypatch.setattr(_images, "CHUNK", 1)
    monkeypatch.setattr(_images, "AHEAD", 3)
    read: list[int] = []
    data = encoded(0)

    def reader(number: int) -> bytes:
        read.append(number)
        return data

    images = [(f"image {number}", partial(reader, number)) for number in range(12)]
    done = []
    for _ in _images._decoded(images, partial(_images._decode_chunk, form=Form((3, 6, 5)))):
        done.append(len(read))
    assert done == [4, 5, 6, 7, 8, 9, 10, 11, 12, 12, 12, 12]


def test_a_killed_process_and_a_huge_image_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_images, "MAX_PIXELS", 29)
    with pytest.raises(UserError, match="5x6 pixels are more than 29"):
        decode([encoded(0)], resize=True)
    spread(monkeypatch)
    monkeypatch.setattr(_images, "decode_image", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(UserError, match="a process that decodes images was killed"):
        decode([encoded(n) for n in range(10)])


RAMP = np.arange(30, dtype=np.uint8).reshape(6, 5) * 8
QUARTER = Image.Exif()
QUARTER[274] = 6  # to be shown turned by a quarter


def test_own_images_are_as_a_viewer_shows_them() -> None:
    for data in (
        saved(Image.fromarray(RAMP.astype(np.uint16) * 257)),
        saved(Image.fromarray(RAMP.astype(np.int32) * 257), "TIFF"),
        saved(Image.fromarray((RAMP / 255).astype(np.float32)), "TIFF"),
        saved(Image.fromarray(np.rot90(RAMP).copy()), exif=QUARTER),
    ):
        assert decode([data], as_shown=True)[0].tolist() == [RAMP.tolist()] * 3
    transparent = Image.fromarray(np.stack([RAMP, np.where(RAMP < 80, 0, 255).astype(np.uint8)], 2))
    np.testing.assert_array_equal(decode([saved(transparent)], as_shown=True)[0, 0], np.where(RAMP < 80, 255, RAMP))
    with pytest.raises(UserError, match="its values are not within 0 and 1; convert it to 8 bits"):
        decode([saved(Image.fromarray(np.full((6, 5), 300, np.float32)), "TIFF")], as_shown=True)
