"""The data of a federation: raw samples once, clients as lists of row numbers."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.assignment import Assignment
from pflcore.errors import UserError
from pflcore.fresh_noise import on_normalised
from pflcore.methods._base import Batch
from pflcore.samples import Samples
from pflcore.seeds import torch_seed

# Share of an accelerator's free memory that the images may take; above it they stay on the host.
_SHARE = 0.4
# Batches that are fetched before they are needed.
_AHEAD = 3


@dataclass(frozen=True)
class FederatedData:
    """Images stay uint8 and are normalised batch by batch on the device, so a batch costs one gather.

    Images that do not fit on the device stay on the host, memory-mapped or not, and batches are fetched ahead of their
    use by a thread, through pinned memory.

    Attributes:
        images: (samples, channels, height, width) uint8, on the device or on the host.
        labels: (samples,) int64, on the device.
        train, test: For each client the rows of its training and test samples, int64, on the host.
        mean, std: Per channel, of pixels scaled to 0..1; on the device.
        classes: Number of classes.
        size: Height and width that images are scaled up to (bilinear), or None.
        novel: Clients that take no part in training.
        noise: Standard deviation of the noise that is drawn anew each round for every row, (samples,); None for none.
        noise_seed: Of that noise.
    """

    images: Tensor
    labels: Tensor
    train: Sequence[Tensor]
    test: Sequence[Tensor]
    mean: Tensor
    std: Tensor
    classes: int
    size: int | None = None
    novel: frozenset[int] = frozenset()
    noise: Tensor | None = None
    noise_seed: int = 0

    @classmethod
    def from_samples(cls, samples: Samples, assignment: Assignment, device: torch.device) -> FederatedData:
        """The data of a federation for training on `device`. Noise that is fixed per sample is added to `samples`.

        Raises:
            UserError: The assignment does not belong to the samples, a client has no training or no test samples, or
                they are not images.
        """
        if not samples.is_images:
            raise UserError(f"dataset {samples.name!r} is text; no backbone here takes text yet")
        assignment.check(len(samples), samples.train)
        noise = assignment.noise
        if noise:
            noise.on_pixels(samples.inputs, assignment.rows())
        data = cls.from_arrays(
            samples.inputs,
            samples.labels,
            assignment.train,
            assignment.test,
            samples.mean,
            samples.std,
            samples.classes,
            device,
        )
        changes: dict[str, Any] = {"size": samples.size, "novel": frozenset(assignment.novel)}
        if noise and noise.released:
            per_row = noise.per_row(len(samples), assignment.rows())
            changes |= {"noise": torch.from_numpy(per_row).to(device), "noise_seed": noise.seed}
        return dataclasses.replace(data, **changes)

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
    ) -> FederatedData:
        """Hold arrays for training on `device`; on a CPU they are not copied.

        Raises:
            UserError: A client has no training or no test samples.
        """
        for client, (own_train, own_test) in enumerate(zip(train, test, strict=True)):
            if not len(own_train) or not len(own_test):
                part = "test" if len(own_train) else "training"
                raise UserError(f"client {client} has no {part} samples; raise the partition's minimum")
        images = torch.from_numpy(inputs)
        if device.type == "cuda" and inputs.nbytes <= _SHARE * torch.cuda.mem_get_info(device)[0]:
            images = images.to(device)
        scale = torch.tensor([mean, std], dtype=torch.float32, device=device).view(2, 1, -1, 1, 1)
        return cls(
            images=images,
            labels=torch.tensor(labels, device=device),
            train=[torch.from_numpy(rows) for rows in train],
            test=[torch.from_numpy(rows) for rows in test],
            mean=scale[0],
            std=scale[1],
            classes=classes,
        )

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of a model's input."""
        _, channels, height, width = self.images.shape
        return (channels, self.size, self.size) if self.size else (channels, height, width)

    @property
    def device(self) -> torch.device:
        """Where models are trained."""
        return self.labels.device

    @property
    def resident(self) -> bool:
        """Whether the images are on the device."""
        return self.images.device == self.device

    def batch(self, rows: Tensor, round_: int = 0) -> Batch:
        """The samples in `rows`, a tensor of any shape on the host or the device, in that shape.

        Args:
            round_: The round that they are trained in, 0 for a measurement; decides the noise, where there is any.
        """
        here = rows.to(self.device)
        images = self.images[here] if self.resident else self.images[rows.cpu()].to(self.device)
        return self._finish(images, here, round_)

    def batches(self, parts: Sequence[Tensor], round_: int = 0) -> Iterator[Batch]:
        """The samples of one list of rows after the other; otherwise as :meth:`batch`."""
        if self.resident:
            yield from (self.batch(rows, round_) for rows in parts)
            return
        waiting: deque[tuple[Tensor, Future[Tensor]]] = deque()
        rest = iter(parts)
        with ThreadPoolExecutor(1) as thread:
            while True:
                while len(waiting) < _AHEAD and (rows := next(rest, None)) is not None:
                    waiting.append((rows, thread.submit(self._fetch, rows)))
                if not waiting:
                    return
                rows, images = waiting.popleft()
                moved = images.result().to(self.device, non_blocking=True)
                yield self._finish(moved, rows.to(self.device), round_)

    def normalise(self, images: Tensor) -> Tensor:
        """(pixel / 255 − mean) / std, of uint8 images on the device."""
        return images.float().div_(255).sub_(self.mean).div_(self.std)

    def _finish(self, images: Tensor, rows: Tensor, round_: int) -> Batch:
        images = self.normalise(images)
        if self.size:
            flat = F.interpolate(images.flatten(0, -4), (self.size, self.size), mode="bilinear", align_corners=False)
            images = flat.view(*rows.shape, *flat.shape[1:])
        if self.noise is not None:
            images = on_normalised(images, self.noise[rows], rows, torch_seed(self.noise_seed, "noise", round_))
        return Batch(images, self.labels[rows])

    def _fetch(self, rows: Tensor) -> Tensor:
        images = self.images[rows]
        return images.pin_memory() if self.device.type == "cuda" else images
