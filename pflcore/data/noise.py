"""Gaussian noise on the images of a client, feature skew of a known strength (FedTP, figure 10)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pflcore.data.samples import Inputs, Rows
from pflcore.seeds import generator

_CHUNK = 2**24  # pixels that noise is drawn for at a time


@dataclass(frozen=True)
class Noise:
    """How strong the noise of each client is: a standard deviation, as written, on the scale of pixels, 0..255.

    `released`, as FedTP's released code does, it is added to *normalised* images, in units of their own standard
    deviation, drawn anew whenever a sample is used, and the sum is clamped to 0..255, which sets everything darker than
    the mean to zero, also for clients without noise.
    """

    std: tuple[float, ...]
    released: bool
    seed: int

    def on_pixels(self, inputs: Inputs, parts: list[Rows]) -> None:
        """Add the noise to uint8 images [n, C, H, W] in place, once and for all; nothing when :attr:`released`.

        A sample's noise is a function of the seed, its client and its place among the rows of the client in `parts`.
        """
        if self.released:
            return
        step = max(1, _CHUNK // int(np.prod(inputs.shape[1:])))
        for client, (rows, std) in enumerate(zip(parts, self.std, strict=True)):
            if not std:
                continue
            rng = generator(self.seed, "noise", client)
            for start in range(0, len(rows), step):
                some = rows[start : start + step]
                noisy = inputs[some] + rng.standard_normal((len(some), *inputs.shape[1:]), np.float32) * std
                inputs[some] = np.clip(np.rint(noisy), 0, 255)

    def per_row(self, count: int, parts: list[Rows]) -> np.ndarray:
        """Return the standard deviation of each of `count` rows of a dataset, float32; 0 where nobody holds it."""
        stds = np.zeros(count, np.float32)
        for rows, std in zip(parts, self.std, strict=True):
            stds[rows] = std
        return stds
