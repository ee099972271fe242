"""Decoding images: the same pixels from one process or many, names of bad images, and what own images look like."""

import io
import os
import signal
from functools import partial

import numpy as np
import pytest
from PIL import Image
from support.mistakes import line_of, refuses

from pflcore.data.preparation import preparing
from pflcore.datasets import _images
from pflcore.datasets._images import DecodeOptions, decode_images


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decode(images, **options):
    named = [(f"image {number}", partial(bytes, data)) for number, data in enumerate(images)]
    return decode_images(named, DecodeOptions((3, 6, 5), **options), "decoding").pixels


RANDOM = np.random.default_rng(0).integers(0, 256, (10, 6, 5, 3), np.uint8)
IMAGES = [saved(Image.fromarray(pixels)) for pixels in RANDOM]


@pytest.mark.parametrize("processes", [1, 2])
def test_order_colours_sizes_and_progress(processes, monkeypatch):
    monkeypatch.setattr(_images, "CHUNK", 2)
    monkeypatch.setattr(_images, "MIN_PARALLEL", 0)
    monkeypatch.setenv("PFL_WORKERS", str(processes))
    large = Image.fromarray(np.random.default_rng(9).integers(0, 256, (12, 10, 3), np.uint8))
    images = [*IMAGES[:8], saved(Image.fromarray(RANDOM[8]).convert("L")), saved(large)]
    seen = []
    with preparing(lambda *step: seen.append(step), None):
        pixels = decode(images, resize=True)
    assert seen == [("decoding", done, 10) for done in range(0, 11, 2)]
    np.testing.assert_array_equal(pixels[:8], RANDOM[:8].transpose(0, 3, 1, 2))
    assert (pixels[8][0] == pixels[8][1]).all()
    small = np.asarray(large.resize((5, 6), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels[9], small)
    other = saved(Image.fromarray(RANDOM[0]), "GIF")
    for bad, reason in ((saved(large), "10x12 instead of 5x6 pixels"), (other, "no PNG or JPEG that Pillow can read")):
        line = line_of(decode, [*IMAGES[:6], bad, IMAGES[0], bad], formats=("PNG", "JPEG"))
        assert line == f"image 6: not a readable image ({reason})"
    monkeypatch.setattr(_images, "MAX_PIXELS", 29)
    refuses("5x6 pixels are more than 29", decode, IMAGES)
    if processes > 1:
        monkeypatch.setattr(_images, "decode_image", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        refuses("a worker process was killed", decode, IMAGES)


def test_own_images_are_as_a_viewer_shows_them():
    ramp, quarter = np.arange(30, dtype=np.uint8).reshape(6, 5) * 8, Image.Exif()
    quarter[274] = 6  # to be shown turned by a quarter
    for data in (
        saved(Image.fromarray(ramp.astype(np.uint16) * 257)),
        saved(Image.fromarray(ramp.astype(np.uint16) * 257), "TIFF"),
        saved(Image.fromarray((ramp / 255).astype(np.float32)), "TIFF"),
        saved(Image.fromarray(np.rot90(ramp).copy()), exif=quarter),
    ):
        assert decode([data], as_shown=True)[0].tolist() == [ramp.tolist()] * 3
    transparent = Image.fromarray(np.stack([ramp, np.where(ramp < 80, 0, 255).astype(np.uint8)], 2))
    np.testing.assert_array_equal(decode([saved(transparent)], as_shown=True)[0, 0], np.where(ramp < 80, 255, ramp))
    cut = saved(Image.fromarray(np.tile(ramp, (9, 9))), "JPEG")
    for data, why in (
        (saved(Image.fromarray(np.full((6, 5), 300, np.float32)), "TIFF"), "its values are not within 0 and 1"),
        (saved(Image.fromarray(ramp.astype(np.int32)), "TIFF"), "its integers are signed or of 32 bits; convert it"),
        (cut[: len(cut) // 2] + bytes(600), "it ends with zeros, as a download that was cut"),
    ):
        refuses(why, decode, [data], as_shown=True)
