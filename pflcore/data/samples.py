"""The samples of a dataset as arrays."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from pflcore.errors import UserError

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Inputs = npt.NDArray[Any]  # uint8 or float32

SPLITS = ("train", "test")  # the sides of a dataset
IMAGES, TEXT, ARRAYS = "images", "text", "arrays"  # the kinds of samples
_CHUNK = 2**22  # numbers per piece of :func:`chunks`


@dataclass(frozen=True, eq=False)
class Attribute:
    """A further property of every sample, such as its domain: int64 [n], indices into the names of its values."""

    values: Rows
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Boxes:
    """The annotated objects of all samples, sample after sample."""

    counts: Rows  # int64 [n], objects of each sample
    labels: Rows  # int64 [m], classes of the objects
    corners: npt.NDArray[np.float32]  # [m, 4]: left, top, right, bottom as fractions of the image's sides, 0..1
    difficult: Mask  # bool [m], objects that evaluation ignores

    def padded(self) -> npt.NDArray[np.float32]:
        """Return targets of one shape for all samples: float32 [n, most objects of a sample, 6].

        The six numbers are the class, the four corners, and 1 if the object is difficult. Padding has class -1.
        """
        largest = max(1, int(self.counts.max(initial=0)))
        targets = np.zeros((len(self.counts), largest, 6), np.float32)
        targets[..., 0] = -1
        targets[np.arange(largest) < self.counts[:, None]] = np.column_stack(
            [self.labels, self.corners, self.difficult]
        )
        return targets


@dataclass(frozen=True, eq=False)
class Samples:
    """All samples of a dataset, training and test, in one row order that partitions refer to."""

    # uint8: images [n, C, H, W] with pixels 0..255, or texts [n, L + 1] of character numbers, where the first L are the
    # input of a model and the last L are its targets. float32: arrays with one to three dimensions after n, the first
    # of which is the channels: features [n, d], sensors [n, channels, time].
    inputs: Inputs
    labels: Rows  # int64 [n], 0..classes-1; the label of a text is its last character
    train: Mask  # bool [n], true for training samples; all true if the dataset has no test set
    name: str  # of the dataset, e.g. "cifar10"
    class_names: tuple[str, ...]  # of texts one per character
    # Per channel, of pixels scaled to 0..1, for normalising a model's input; empty for text and arrays.
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str  # origin of the samples, shown in reports; contains no local path
    size: int | None = None  # height and width to which images are scaled, batch by batch
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    boxes: Boxes | None = None
    # Whether arrays are scaled to mean 0 and std 1 per channel, over the training rows of clients that train.
    standardise: bool = False

    def __post_init__(self) -> None:
        where = f"dataset {self.name!r}"
        expected_inputs = ((2, 3, 4), "float32") if self.inputs.dtype.kind == "f" else ((4, 2), "uint8")
        expected = {"inputs": expected_inputs, "labels": ((1,), "int64"), "train": ((1,), "bool")}
        for key, (dimensions, dtype) in expected.items():
            array = getattr(self, key)
            if array.ndim not in dimensions or array.dtype != dtype:
                actual = f"{array.dtype} with {array.ndim}"
                raise UserError(f"{where}: {key} must be {dtype} with {dimensions[0]} dimensions, not {actual}")
        lengths = {key: len(getattr(self, key)) for key in expected}
        lengths |= {key: len(attribute.values) for key, attribute in self.attributes.items()}
        if self.boxes:
            lengths["boxes"] = len(self.boxes.counts)
        if len(set(lengths.values())) > 1:
            raise UserError(f"{where}: lengths differ: {', '.join(f'{n} {key}' for key, n in lengths.items())}")
        channels = self.inputs.shape[1] if self.kind == IMAGES else 0
        if len(self.mean) != channels or len(self.std) != channels or not all(s > 0 for s in self.std):
            problem = f"need one number for each of the {channels} channels, and a std above 0"
            if not channels:
                problem = f"are of images, and these are {self.kind} of {self.inputs.dtype}; leave mean and std out"
            raise UserError(f"{where}: mean {self.mean} and std {self.std} {problem}")
        check_labels(self.labels, self.classes, where)
        if self.is_arrays:
            check_finite(self.inputs, where)
        for key, attribute in self.attributes.items():
            check_labels(attribute.values, len(attribute.names), f"{where}: {key}")
        if self.boxes:
            _check_boxes(self.boxes, self.classes, f"{where}: boxes")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def kind(self) -> str:
        """Return the kind of samples: "images", "text" or "arrays"."""
        return kind_of(self.is_arrays, self.inputs.ndim)

    @property
    def is_arrays(self) -> bool:
        return self.inputs.dtype == np.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one model input."""
        return input_shape(self.kind, self.inputs.shape[1:], self.size)

    @property
    def classes(self) -> int:
        return len(self.class_names)


def kind_of(floats: bool, dimensions: int) -> str:
    """Return the kind of samples, given whether they are floats and their number of dimensions, rows included."""
    if floats:
        return ARRAYS
    return IMAGES if dimensions == 4 else TEXT


def input_shape(kind: str, stored: tuple[int, ...], size: int | None) -> tuple[int, ...]:
    """Return the shape of one model input, given the shape of a stored sample; a text loses its last character."""
    if kind == TEXT:
        return (stored[0] - 1,)
    return (stored[0], size, size) if size else stored


def chunks(rows: Rows, inputs: Inputs) -> Iterator[Inputs]:
    """Yield the inputs of the given rows in pieces, so that memory-mapped inputs need not fit into memory."""
    step = max(1, _CHUNK // max(1, int(np.prod(inputs.shape[1:]))))
    for start in range(0, len(rows), step):
        yield inputs[rows[start : start + step]]


def check_finite(inputs: Inputs, where: str) -> None:
    """Raise :class:`UserError` with the first row, counted from 0, that contains a number that is not finite."""
    start = 0
    for part in chunks(np.arange(len(inputs)), inputs):
        finite = np.isfinite(part).all(axis=tuple(range(1, part.ndim)))
        if not finite.all():
            row = start + int(finite.argmin())
            raise UserError(f"{where}: row {row} has a number that is missing, infinite or too large; fill or drop it")
        start += len(part)


def as_floats(values: np.ndarray, where: str) -> Inputs:
    """Return numbers [n, …] as float32. Raises :class:`UserError` with the first row that is not finite."""
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32)
    check_finite(floats, where)
    return floats


def check_labels(labels: Rows, classes: int, where: str) -> None:
    """Raise :class:`UserError` with the first row whose label is not in 0..classes-1."""
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(f"{where}: row {row}: label {labels[row]} is outside 0..{classes - 1}")


def _check_boxes(boxes: Boxes, classes: int, where: str) -> None:
    count = int(boxes.counts.sum())
    if not len(boxes.labels) == len(boxes.corners) == len(boxes.difficult) == count or boxes.corners.shape[1:] != (4,):
        raise UserError(f"{where}: {count} objects are counted, but labels, corners or flags are of another number")
    check_labels(boxes.labels, classes, where)
    left, top, right, bottom = boxes.corners.T
    wrong = ~((left >= 0) & (left < right) & (right <= 1) & (top >= 0) & (top < bottom) & (bottom <= 1))
    if wrong.any():
        first = int(wrong.argmax())
        raise UserError(f"{where}: object {first}: corners {boxes.corners[first].tolist()} are not within the image")
