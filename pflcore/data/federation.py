"""The data of a federation: raw samples once, clients as lists of row numbers."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.data.assignment import Assignment
from pflcore.data.augmentation import Augmentation, add_noise
from pflcore.data.samples import IMAGES, TEXT, Samples, chunks, input_shape, kind_of
from pflcore.data.upload import upload
from pflcore.errors import UserError
from pflcore.seeds import torch_seed

_MEMORY_SHARE = 0.4  # of a GPU's free memory for the samples at most; larger datasets stay on the host
_PREFETCHED = 3  # batches


@dataclass(frozen=True)
class Batch:
    """Samples of one client."""

    # Normalised images (batch, channels, height, width); characters (batch, length), int64; or arrays (batch, …).
    inputs: Tensor
    # (batch,) for images and arrays; the next characters (batch, length) for text; boxes (batch, most objects of an
    # image, 6) for a detector, in the form of :meth:`pflcore.data.samples.Boxes.padded`.
    labels: Tensor


@dataclass(frozen=True)
class FederatedData:
    """The samples of all clients, stored once as they were read, and the rows of each client.

    Batches are normalised on the device, so a batch costs one gather. Samples that do not fit on the device stay on
    the host, memory-mapped or not; a thread then prefetches batches through pinned memory.
    """

    # Images (samples, channels, height, width), or texts (samples, length + 1) whose last character is only predicted,
    # both uint8; or float32 arrays (samples, channels, …); on the device or on the host.
    inputs: Tensor
    labels: Tensor  # (samples,) int64, or boxes as targets, (samples, objects, 6) float32; on the device
    train: Sequence[Tensor]  # rows of each client, int64, on the host
    test: Sequence[Tensor]
    mean: Tensor  # per channel; of images, for pixels scaled to 0..1; on the device
    std: Tensor
    classes: int  # number of classes; of text, number of characters
    size: int | None = None  # height and width to which images are scaled (bilinear)
    novel: frozenset[int] = frozenset()  # clients that take no part in training
    noise: Tensor | None = None  # std of each row's noise, (samples,), if noise is drawn anew each round
    noise_seed: int = 0
    validation: Sequence[Tensor] = ()  # as `train`; empty if there is no validation
    augmentation: Augmentation | None = None  # of the images of local steps
    boxes: Tensor | None = None  # targets of a detector, (samples, objects, 6) float32

    @classmethod
    def from_samples(cls, samples: Samples, assignment: Assignment, device: torch.device) -> FederatedData:
        """Return the data for training on `device`. Noise that is fixed per sample changes `samples` in place."""
        assignment.check(samples.train)
        if noise := assignment.noise:
            noise.add_to_pixels(samples.inputs, assignment.rows())
        _check_nonempty("validation", assignment.validation)
        mean, std = samples.mean, samples.std
        if samples.standardise:
            parts = [rows for client, rows in enumerate(assignment.train) if client not in assignment.novel]
            mean, std = standardisation(samples.inputs, np.concatenate(parts))
        row_stds = noise.row_stds(len(samples), assignment.rows()) if noise and noise.released else None
        return cls.from_arrays(
            samples.inputs,
            samples.labels,
            assignment.train,
            assignment.test,
            mean,
            std,
            samples.classes,
            device,
            size=samples.size,
            novel=frozenset(assignment.novel),
            validation=[torch.from_numpy(rows) for rows in assignment.validation],
            boxes=torch.from_numpy(samples.boxes.padded()).to(device) if samples.boxes else None,
            noise=None if row_stds is None else torch.from_numpy(row_stds).to(device),
            noise_seed=noise.seed if noise else 0,
        )

    @classmethod
    def from_arrays(
        cls,
        inputs: np.ndarray,
        labels: np.ndarray,
        train: Sequence[np.ndarray],
        test: Sequence[np.ndarray],
        mean: Sequence[float],
        std: Sequence[float],
        classes: int,
        device: torch.device,
        **fields: Any,
    ) -> FederatedData:
        """Return data from arrays for training on `device`; on a CPU the inputs are not copied.

        If `mean` and `std` are empty, float32 inputs are not normalised. `fields` are further fields of the class.
        """
        _check_nonempty("training", train)
        _check_nonempty("test", test)
        tensor = torch.from_numpy(inputs)
        if device.type == "cuda" and inputs.nbytes <= _MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]:
            tensor = tensor.to(device)
        if tensor.is_floating_point() and not len(mean):
            mean, std = (0.0,), (1.0,)
        scale = torch.tensor([mean, std], dtype=torch.float32, device=device).view(2, 1, -1, *[1] * (tensor.ndim - 2))
        return cls(
            inputs=tensor,
            labels=torch.tensor(labels, device=device),
            train=[torch.from_numpy(rows) for rows in train],
            test=[torch.from_numpy(rows) for rows in test],
            mean=scale[0],
            std=scale[1],
            classes=classes,
            **fields,
        )

    def with_boxes(self) -> FederatedData:
        """Return the same data with boxes as labels. Raises :class:`UserError` if the dataset has no boxes."""
        if self.boxes is None:
            sets = "voc_detection, detection_folder, voc2007 or voc2012"
            raise UserError(f"the backbone is a detector, and the dataset has no boxes; use {sets}")
        return dataclasses.replace(self, labels=self.boxes)

    @property
    def clients(self) -> int:
        return len(self.train)

    def evaluation_rows(self, client: int) -> Tensor:
        """Return the rows on which a client's model is measured: its test rows, then its validation rows."""
        return torch.cat([self.test[client], self.validation[client]]) if self.validation else self.test[client]

    @property
    def kind(self) -> str:
        """Return the kind of samples: "images", "text" or "arrays"."""
        return kind_of(self.inputs.is_floating_point(), self.inputs.ndim)

    @property
    def is_text(self) -> bool:
        """Return whether samples are texts, where every next character is predicted."""
        return self.kind == TEXT

    @property
    def positions(self) -> int:
        """Return the number of predictions per sample."""
        return self.shape[0] if self.is_text else 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one model input: (channels, height, width), (length,) of a text or (channels, …)."""
        return input_shape(self.kind, tuple(self.inputs.shape[1:]), self.size)

    def example(self) -> Tensor:
        """Return a model input of zeros, a batch of one on the device."""
        return torch.zeros(1, *self.shape, dtype=torch.int64 if self.is_text else torch.float32, device=self.device)

    def class_counts(self, client: int) -> Tensor:
        """Return the class counts, (classes,), of labels, objects or next characters in a client's training samples."""
        rows = self.train[client]
        labels = self.batch(rows).labels if self.is_text else self.labels[rows.to(self.device)]
        if self.labels.ndim > 1:
            labels = labels[..., 0][labels[..., 0] >= 0].long()
        return torch.bincount(labels.flatten(), minlength=self.classes).float()

    @property
    def device(self) -> torch.device:
        """Return the device on which models are trained."""
        return self.labels.device

    @property
    def resident(self) -> bool:
        """Return whether the samples are on the device."""
        return self.inputs.device == self.device

    def batch(self, rows: Tensor, round_: int = 0, steps: Tensor | None = None) -> Batch:
        """Return the samples in `rows`, a tensor of any shape, on the host or the device. The batch has that shape.

        Args:
            round_: The round that trains on the samples; 0 for a measurement. Noise and augmentation depend on it.
            steps: The local steps that train on them, broadcast to `rows`. None means no augmentation.
        """
        device_rows = rows.to(self.device)
        inputs = self.inputs[device_rows] if self.resident else self.inputs[rows.cpu()].to(self.device)
        return self._finish(inputs, device_rows, round_, steps)

    def batches(
        self, parts: Sequence[Tensor], round_: int = 0, steps: Sequence[Tensor] | None = None
    ) -> Iterator[Batch]:
        """Yield a batch for each tensor of rows on the host, with its `steps`, as :meth:`batch` returns it."""
        device_rows = upload(parts, self.device)
        device_steps: Sequence[Tensor | None] = [None] * len(parts)
        if steps and self.augmentation:
            device_steps = upload(steps, self.device)
        if self.resident:
            yield from (self.batch(rows, round_, step) for rows, step in zip(device_rows, device_steps, strict=True))
            return
        pending: deque[tuple[Tensor, Tensor | None, Future[Tensor]]] = deque()
        remaining = iter(zip(parts, device_rows, device_steps, strict=True))
        with ThreadPoolExecutor(1) as thread:
            while True:
                for part, rows, step in islice(remaining, _PREFETCHED - len(pending)):
                    pending.append((rows, step, thread.submit(self._fetch, part)))
                if not pending:
                    return
                rows, step, inputs = pending.popleft()
                yield self._finish(inputs.result().to(self.device, non_blocking=True), rows, round_, step)

    def prepare(self, samples: Tensor) -> Tensor:
        """Return model inputs: (pixel / 255 − mean) / std of images with pixels 0..255, scaled to `size` if it is set;
        (value − mean) / std of arrays; characters as int64."""
        if self.kind != IMAGES:
            return samples.long() if self.is_text else (samples - self.mean) / self.std
        images = samples.float().div_(255).sub_(self.mean).div_(self.std)
        if not self.size:
            return images
        flat = F.interpolate(images.flatten(0, -4), (self.size, self.size), mode="bilinear", align_corners=False)
        return flat.view(*images.shape[:-2], self.size, self.size)

    def _finish(self, inputs: Tensor, rows: Tensor, round_: int, steps: Tensor | None) -> Batch:
        if self.is_text:
            characters = self.prepare(inputs)
            return Batch(characters[..., :-1], characters[..., 1:])
        if self.augmentation and steps is not None:
            inputs = self.augmentation(inputs, rows, steps.to(self.device), round_)
        images = self.prepare(inputs)
        if self.noise is not None:
            images = add_noise(images, self.noise[rows], rows, torch_seed(self.noise_seed, "noise", round_))
        return Batch(images, self.labels[rows])

    def _fetch(self, rows: Tensor) -> Tensor:
        return self.inputs[rows].pin_memory() if self.device.type == "cuda" else self.inputs[rows]


def standardisation(inputs: np.ndarray, rows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std per channel, the first dimension after the rows, over the given rows of arrays."""
    axes = (0, *range(2, inputs.ndim))
    ordered = np.sort(rows)
    count = len(rows) * int(np.prod(inputs.shape[2:]))
    mean = sum(part.sum(axis=axes, dtype=np.float64) for part in chunks(ordered, inputs)) / count
    centre = mean.reshape(-1, *[1] * (inputs.ndim - 2))
    squares = sum(((part - centre) ** 2).sum(axis=axes) for part in chunks(ordered, inputs))
    std = np.sqrt(squares / count)
    std[std <= np.finfo(np.float32).eps * np.abs(mean)] = 1.0  # as float32 cannot distinguish it from a constant
    return tuple(mean.tolist()), tuple(std.tolist())


def _check_nonempty(split: str, parts: Sequence[np.ndarray]) -> None:
    """Raise :class:`UserError` with the first client that has no samples."""
    for client, rows in enumerate(parts):
        if not len(rows):
            raise UserError(f"client {client} has no {split} samples; raise the partition's minimum")
