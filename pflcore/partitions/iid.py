"""Equal random parts, with or without noise that differs from client to client."""

from __future__ import annotations

import numpy as np

from pflcore.data.noise import Noise
from pflcore.data.samples import Rows, Samples
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Sides
from pflcore.partitions._deal import deal_parts


@PARTITIONS.register
class Iid(Partition):
    """Equal random parts: every client sees the same distribution.

    Training and test samples are shuffled and cut separately; sizes of clients differ by at most one sample.
    """

    name = "iid"
    citation = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        return deal_parts(samples, sides, np.ones(clients), rng)


@PARTITIONS.register
class IncreasingNoise(Iid):
    """Equal random parts whose images are noisier from client to client.

    Client ``i`` of ``N`` sees Gaussian noise of standard deviation ``sigma_max * i / (N - 1)``, in training and test.

    As written, the noise is on the scale of pixels (0 to 255), is drawn once per image, and the sum is rounded and
    clamped to that range. As released, it is added to the *normalised* image, drawn anew in every round, and the sum is
    clamped to 0..255, which blackens everything below the mean.
    """

    name = "noise"
    citation = "Li et al., FedTP, TNNLS 2023, section IV-F and figure 10; released code for the variant"

    sigma_max: float = option(20.0, ge=0, help="Standard deviation for the last client, of 255 (paper: up to 20).")
    variant: str = option("as_written", choices=("as_written", "as_released"), help="Where noise enters; see above.")

    def noise(self, clients: int, seed: int) -> Noise:
        stds = np.linspace(0, self.sigma_max, clients)
        return Noise(tuple(stds.tolist()), self.variant == "as_released", seed)
