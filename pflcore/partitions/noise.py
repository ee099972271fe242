"""The partition into equal random parts with noise that differs from client to client."""

from __future__ import annotations

import numpy as np

from pflcore.data.noise import Noise
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions.iid import Iid


@PARTITIONS.register
class IncreasingNoise(Iid):
    """Equal random parts whose images are noisier from client to client.

    Client ``i`` of ``N`` sees Gaussian noise of standard deviation ``sigma_max * i / (N - 1)``, in training and test.

    As written, the noise is on the scale of pixels (0 to 255), is drawn once per image, and the sum is rounded and
    clamped to that range. As released, it is added to the *normalised* image, drawn anew in every round, and the sum is
    clamped to 0..255, which blackens everything below the mean.
    """

    citation = "Li et al., FedTP, TNNLS 2023, section IV-F and figure 10; released code for the variant"

    sigma_max: float = option(20.0, ge=0, help="Standard deviation for the last client, of 255 (paper: up to 20).")
    variant: str = option("as_written", choices=("as_written", "as_released"), help="Where noise enters; see above.")

    def noise(self, clients: int, seed: int) -> Noise:
        stds = np.linspace(0, self.sigma_max, clients)
        return Noise(tuple(stds.tolist()), self.variant == "as_released", seed)
