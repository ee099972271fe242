"""Gaussian noise on the images of each client: feature skew of a known strength (FedTP, figure 10)."""

from dataclasses import dataclass

import numpy as np

from pflcore.data.samples import Inputs, Rows
from pflcore.seeds import generator

_CHUNK = 2**24  # pixels for which noise is drawn at a time


@dataclass(frozen=True)
class Noise:
    """The standard deviation of each client's noise, in the paper's form on the scale of pixels, 0..255.

    With `released`, as in FedTP's released code, noise is added to *normalised* images and drawn anew in every round;
    `std` is in their units. The sum is clamped to 0..255, which sets everything darker than the mean to zero, also for
    clients without noise.
    """

    std: tuple[float, ...]
    released: bool
    seed: int

    def add_to_pixels(self, inputs: Inputs, parts: list[Rows]) -> None:
        """Add fixed noise to uint8 images [n, C, H, W] in place; do nothing if :attr:`released`.

        A sample's noise depends on the seed, its client and its position among the client's rows in `parts`.
        """
        if self.released:
            return
        step = max(1, _CHUNK // int(np.prod(inputs.shape[1:])))
        for client, (rows, std) in enumerate(zip(parts, self.std, strict=True)):
            if not std:
                continue
            rng = generator(self.seed, "noise", client)
            for start in range(0, len(rows), step):
                chunk = rows[start : start + step]
                noisy = inputs[chunk] + rng.standard_normal((len(chunk), *inputs.shape[1:]), np.float32) * std
                inputs[chunk] = np.clip(np.rint(noisy), 0, 255)

    def row_stds(self, count: int, parts: list[Rows]) -> np.ndarray:
        """Return the standard deviation of each of `count` rows of a dataset, float32; 0 for rows of no client."""
        stds = np.zeros(count, np.float32)
        for rows, std in zip(parts, self.std, strict=True):
            stds[rows] = std
        return stds
