"""The data of a federation on the device: raw samples once, clients as lists of row numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.methods._base import Batch


@dataclass(frozen=True)
class FederatedData:
    """Images stay uint8 on the device and are normalised batch by batch, so a batch costs one gather.

    Attributes:
        images: (samples, channels, height, width) uint8.
        labels: (samples,) int64.
        train, test: For each client the rows of its training and test samples, int64.
        mean, std: Per channel, of pixels scaled to 0..1.
        classes: Number of classes.
    """

    images: Tensor
    labels: Tensor
    train: Sequence[Tensor]
    test: Sequence[Tensor]
    mean: Tensor
    std: Tensor
    classes: int

    @classmethod
    def from_arrays(
        cls,
        pixels: np.ndarray,
        labels: np.ndarray,
        train: Sequence[np.ndarray],
        test: Sequence[np.ndarray],
        mean: Sequence[float],
        std: Sequence[float],
        classes: int,
        device: torch.device,
    ) -> FederatedData:
        """Move arrays to `device`. Raises :class:`UserError` when a client has no training or no test samples."""
        for client, (own_train, own_test) in enumerate(zip(train, test, strict=True)):
            if not len(own_train) or not len(own_test):
                part = "test" if len(own_train) else "training"
                raise UserError(f"client {client} has no {part} samples; raise the partition's minimum")
        scale = torch.tensor([mean, std], dtype=torch.float32, device=device).view(2, 1, -1, 1, 1)
        return cls(
            images=torch.tensor(pixels, device=device),
            labels=torch.tensor(labels, device=device),
            train=[torch.tensor(rows, device=device) for rows in train],
            test=[torch.tensor(rows, device=device) for rows in test],
            mean=scale[0],
            std=scale[1],
            classes=classes,
        )

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    @property
    def device(self) -> torch.device:
        return self.images.device

    def batch(self, rows: Tensor) -> Batch:
        """The samples in `rows`, normalised to (pixel / 255 − mean) / std."""
        images = self.images[rows].float().div_(255).sub_(self.mean).div_(self.std)
        return Batch(images, self.labels[rows])
