"""Generated samples with the dimensions of a real dataset, for runs that test whether everything works."""

import colorsys
from typing import Any

import numpy as np

from pflcore.data.preparation import allocate
from pflcore.data.samples import ARRAYS, TEXT, Boxes, Bytes, Inputs, Rows, Samples
from pflcore.datasets._base import Dataset
from pflcore.seeds import generator

_GRID = 4  # blocks along each side of a class's pattern
_OVERLAP = 3.5  # distance of class centres in units of the spread within a class, over sqrt(2)
_UNKNOWN = 16  # a size that the dataset states as 0, because it is known only after loading
_CHUNK = 2**22  # pixels drawn at a time
_FOLLOWERS = 3  # characters that can follow a character


def stand_in_counts(train: int) -> tuple[int, int]:
    """Return the numbers of training and test samples of a stand-in; the latter is a quarter, but at least one."""
    return train, max(train // 4, 1)


def stand_in(dataset: Dataset, train: int, test: int, seed: int = 0, with_images: bool = True) -> Samples:
    """Generate random samples of a dataset's shape and classes: learnable, but not perfectly; training rows come first.

    An image is the sum of a coarse pattern of its class, another one, so that classes overlap at any size, and pixel
    noise. An array mixes such patterns of 16 numbers, plus noise. A text is a random walk in which few characters can
    follow a character. Images with boxes show shapes; the class of the largest is the label. Labels of images and
    arrays are balanced within training and test rows. Without `with_images`, these are 0, which takes no memory.
    """
    rng = generator(seed, f"stand-in {dataset.name}")
    names = dataset.class_names or tuple(f"class {number}" for number in range(10))
    boxes = None
    inputs: Inputs
    if dataset.kind == TEXT:
        inputs = _texts(train + test, dataset.shape[0] + 1, len(names), rng)
        labels = inputs[:, -1].astype(np.int64)
    else:
        labels = np.concatenate([rng.permutation(np.arange(count) % len(names)) for count in (train, test)])
        shape = tuple(side or _UNKNOWN for side in dataset.shape)
        black = np.float32(0) if dataset.kind == ARRAYS else np.uint8(0)
        inputs = np.broadcast_to(black, (len(labels), *shape))
        boxes = _random_boxes(labels, len(names), rng) if dataset.detects else None
        if with_images and dataset.kind == ARRAYS:
            inputs = _arrays(labels, len(names), shape, rng)
        elif with_images:
            inputs = _draw_shapes(boxes, shape, rng) if boxes else _images(labels, len(names), shape, rng)
    source = f"stand-in: generated, not {dataset.name} (seed {seed})"
    mask = np.arange(len(labels)) < train
    fields: dict[str, Any] = {"boxes": boxes, "standardise": dataset.standardise}
    fields["attributes"] = dataset.generate_attributes(labels, rng)
    return Samples(inputs, labels, mask, dataset.name, names, *dataset.normalisation, source, **fields)


def _images(labels: Rows, classes: int, shape: tuple[int, ...], rng: np.random.Generator) -> Bytes:
    channels, height, width = shape
    centres = rng.standard_normal((classes, channels, _GRID, _GRID))
    spread = np.sqrt(centres[0].size) / _OVERLAP
    blocks = centres[labels] + spread * rng.standard_normal((len(labels), *centres.shape[1:]))
    blocks /= np.sqrt(1 + spread**2)
    rows, columns = np.arange(height) * _GRID // height, np.arange(width) * _GRID // width
    images = allocate((len(labels), *shape))
    step = max(1, _CHUNK // int(np.prod(shape)))
    for start in range(0, len(labels), step):
        part = blocks[start : start + step, :, rows][:, :, :, columns] * 45
        part += rng.normal(127.5, 8, part.shape)
        images[start : start + step] = np.clip(np.rint(part), 0, 255)
    return images


def _arrays(labels: Rows, classes: int, shape: tuple[int, ...], rng: np.random.Generator) -> Inputs:
    """Draw float32 [n, ...]: linear mixtures of 16 hidden numbers, whose means depend on the class, plus noise."""
    hidden = _GRID**2
    centres = rng.standard_normal((classes, hidden), np.float32)
    factors = centres[labels] + hidden**0.5 / _OVERLAP * rng.standard_normal((len(labels), hidden), np.float32)
    weights = rng.standard_normal((hidden, int(np.prod(shape))), np.float32)
    mixed: Inputs = rng.standard_normal((len(labels), weights.shape[1]), np.float32)
    for column, row in zip(factors.T, weights, strict=True):  # a matrix product rounds differently on other processors
        mixed += column[:, None] * row
    return mixed.reshape(len(labels), *shape)


def _texts(count: int, length: int, characters: int, rng: np.random.Generator) -> Bytes:
    followers = rng.integers(0, characters, (characters, _FOLLOWERS), np.uint8)
    texts = np.empty((count, length), np.uint8)
    texts[:, 0] = rng.integers(0, characters, count)
    for position in range(1, length):
        texts[:, position] = followers[texts[:, position - 1], rng.integers(0, _FOLLOWERS, count)]
    return texts


def _random_boxes(labels: Rows, classes: int, rng: np.random.Generator) -> Boxes:
    """Draw one to three objects for each image, none difficult; the first is the largest and has the image's label."""
    counts = rng.integers(1, 4, len(labels))
    first = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    object_labels = rng.integers(0, classes, int(counts.sum()))
    sizes = rng.uniform(0.15, 0.3, (len(object_labels), 2))
    object_labels[first], sizes[first] = labels, rng.uniform(0.4, 0.6, (len(labels), 2))
    starts = rng.uniform(0, 1 - sizes)
    corners = np.concatenate([starts, starts + sizes], axis=1).astype(np.float32)
    return Boxes(counts.astype(np.int64), object_labels, corners, difficult=np.zeros(len(corners), bool))


def _draw_shapes(boxes: Boxes, shape: tuple[int, ...], rng: np.random.Generator) -> Bytes:
    """Draw objects as uint8 [n, channels, height, width]; the class determines the colour and one of three shapes."""
    channels, height, width = shape
    images = allocate((len(boxes.counts), *shape))
    rows, columns = (np.arange(height)[:, None] + 0.5) / height, (np.arange(width)[None] + 0.5) / width
    classes = int(boxes.labels.max()) + 1
    start = 0
    for image, count in enumerate(boxes.counts):
        canvas = rng.normal(110.0, 12.0, shape)
        for index in range(start, start + count):
            label, (x1, y1, x2, y2) = int(boxes.labels[index]), boxes.corners[index].astype(np.float64)
            x, y = (columns - x1) / (x2 - x1), (rows - y1) / (y2 - y1)  # from 0 to 1 within the box
            mask = (x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)
            if label % 3 == 1:
                mask &= (2 * x - 1) ** 2 + (2 * y - 1) ** 2 <= 1
            elif label % 3 == 2:
                mask &= np.abs(2 * x - 1) <= y
            canvas[:, mask] = 255 * np.array(colorsys.hsv_to_rgb(label / classes, 1.0, 1.0))[:channels, None]
        images[image] = np.clip(np.rint(canvas), 0, 255)
        start += count
    return images
