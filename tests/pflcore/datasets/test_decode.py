"""Decoding images: the same pixels from one process or many, names of bad images, and no process left behind."""

from __future__ import annotations

import io
import os
import signal

import numpy as np
import pytest
from PIL import Image

from pflcore.data.preparation import preparing
from pflcore.datasets import _decode
from pflcore.datasets._decode import decode_images
from pflcore.errors import UserError

SHAPE = (3, 6, 5)


def encoded(number: int, size: tuple[int, int] = (5, 6), kind: str = "PNG", mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def decode(images: list[bytes | None], **options: object) -> np.ndarray:
    pixels, _ = decode_images(len(images), SHAPE, images.__getitem__, lambda n: f"image {n}", "decoding", **options)
    return pixels


@pytest.fixture(params=["one process", "several"])
def spread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_decode, "_CHUNK", 4)
    if request.param == "several":
        monkeypatch.setattr(_decode, "_FEW", 0)
        monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.mark.usefixtures("spread")
def test_order_colours_and_sizes() -> None:
    images: list[bytes | None] = [encoded(n) for n in range(23)]
    images[7], images[9] = encoded(7, mode="L"), encoded(9, size=(10, 12))
    pixels = decode(images, resize=True)
    for n in (0, 3, 4, 22):
        expected = np.random.default_rng(n).integers(0, 256, (6, 5, 3), np.uint8)
        np.testing.assert_array_equal(pixels[n], expected.transpose(2, 0, 1))
    assert (pixels[7][0] == pixels[7][1]).all()
    with Image.open(io.BytesIO(images[9] or b"")) as large:
        small = np.asarray(large.resize((5, 6), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels[9], small)


@pytest.mark.usefixtures("spread")
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"no image", "not PNG or JPEG"),
        (None, "it is null"),
        (encoded(0, size=(6, 6)), "6x6 instead of 5x6 pixels"),
        (encoded(0, kind="GIF"), "not PNG or JPEG"),
    ],
)
def test_the_first_bad_image_is_named(bad: bytes | None, reason: str) -> None:
    images: list[bytes | None] = [encoded(n) for n in range(15)]
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
    monkeypatch.setattr(_decode, "_LARGEST", 29)
    with pytest.raises(UserError, match="5x6 pixels are more than 29"):
        decode([encoded(0)], resize=True)


def test_a_killed_process_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_decode, "_FEW", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    here = os.getpid()

    def die(*_: object) -> object:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("decoded here")

    monkeypatch.setattr(_decode, "decode_image", die)
    with pytest.raises(UserError, match="a process that decodes images was killed"):
        decode([encoded(n) for n in range(10)])
