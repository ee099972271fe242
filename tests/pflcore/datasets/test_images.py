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

SHAPE = (3, 6, 5)


def encoded(number: int, size: tuple[int, int] = (5, 6), kind: str = "PNG", mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def decode(images: list[bytes], **options: Any) -> np.ndarray:
    named = [(f"image {number}", partial(bytes, data)) for number, data in enumerate(images)]
    return decode_images(named, Form(SHAPE, **options), "decoding").pixels


@pytest.fixture(params=["one process", "several"])
def spread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_images, "CHUNK", 4)
    if request.param == "several":
        monkeypatch.setattr(_images, "MIN_PARALLEL", 0)
        monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.mark.usefixtures("spread")
def test_order_colours_and_sizes() -> None:
    images: list[bytes] = [encoded(n) for n in range(23)]
    images[7], images[9] = encoded(7, mode="L"), encoded(9, size=(10, 12))
    pixels = decode(images, resize=True)
    for n in (0, 3, 4, 22):
        expected = np.random.default_rng(n).integers(0, 256, (6, 5, 3), np.uint8)
        np.testing.assert_array_equal(pixels[n], expected.transpose(2, 0, 1))
    assert (pixels[7][0] == pixels[7][1]).all()
    with Image.open(io.BytesIO(images[9])) as large:
        small = np.asarray(large.resize((5, 6), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels[9], small)


@pytest.mark.usefixtures("spread")
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"no image", "not PNG or JPEG"),
        (encoded(0, size=(6, 6)), "6x6 instead of 5x6 pixels"),
        (encoded(0, kind="GIF"), "not PNG or JPEG"),
    ],
)
def test_the_first_bad_image_is_named(bad: bytes, reason: str) -> None:
    images: list[bytes] = [encoded(n) for n in range(15)]
    images[6] = images[13] = bad
    with pytest.raises(UserError) as error:
        decode(images, formats=("PNG", "JPEG"))
    assert str(error.value) == f"image 6: not a readable image ({reason})"


@pytest.mark.usefixtures("spread")
def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    with preparing(lambda *step: told.append(step), None):
        decode([encoded(n) for n in range(10)])
    assert told == [("decoding", 0, 10), ("decoding", 4, 10), ("decoding", 8, 10), ("decoding", 10, 10)]


def test_a_huge_image_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_images, "MAX_PIXELS", 29)
    with pytest.raises(UserError, match="5x6 pixels are more than 29"):
        decode([encoded(0)], resize=True)


def test_a_killed_process_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_images, "MIN_PARALLEL", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    here = os.getpid()

    def die(*_: object) -> object:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("decoded here")

    monkeypatch.setattr(_images, "decode_image", die)
    with pytest.raises(UserError, match="a process that decodes images was killed"):
        decode([encoded(n) for n in range(10)])


RAMP = np.arange(30, dtype=np.uint8).reshape(6, 5) * 8


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned() -> bytes:
    note = Image.Exif()
    note[274] = 6  # to be shown turned by a quarter
    return saved(Image.fromarray(np.rot90(RAMP).copy()), "PNG", exif=note)


@pytest.mark.parametrize(
    "data",
    [
        saved(Image.fromarray(RAMP.astype(np.uint16) * 257), "PNG"),
        saved(Image.fromarray(RAMP.astype(np.int32) * 257), "TIFF"),
        saved(Image.fromarray((RAMP / 255).astype(np.float32)), "TIFF"),
        turned(),
    ],
    ids=["16 bits", "32 bits", "floats", "turned"],
)
def test_own_images_are_as_a_viewer_shows_them(data: bytes) -> None:
    assert decode([data], as_shown=True)[0].tolist() == [RAMP.tolist()] * 3


def test_what_is_transparent_is_white() -> None:
    picture = Image.fromarray(np.stack([RAMP, np.where(RAMP < 80, 0, 255).astype(np.uint8)], 2))
    shown = decode([saved(picture, "PNG")], as_shown=True)[0, 0]
    np.testing.assert_array_equal(shown, np.where(RAMP < 80, 255, RAMP))


def test_values_that_no_viewer_shows_are_refused() -> None:
    data = saved(Image.fromarray(np.full((6, 5), 300, np.float32)), "TIFF")
    with pytest.raises(UserError, match="its values are not within 0 and 1; convert it to 8 bits"):
        decode([data], as_shown=True)


def test_a_pointer_of_git_lfs_is_named() -> None:
    with pytest.raises(UserError, match="image 0: a pointer of git LFS; `git lfs pull` gets the content"):
        decode([b"version https://git-lfs.github.com/spec/v1\n"])
