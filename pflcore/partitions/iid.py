"""Equal random parts, with or without noise that differs from client to client, and splits from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pflcore.data.assignment import Assignment
from pflcore.data.noise import Noise
from pflcore.data.samples import Rows, Samples
from pflcore.errors import UserError
from pflcore.options import describe_options, option
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


@PARTITIONS.register
class FromFile(Iid):
    """A split from a CSV file of one's own, a line ``sample,client,split`` per sample.

    Split is train, test or validation. The file says all, so the other options do not go with it, and the seed changes
    nothing. A sample is its row in the dataset, counted from 0; those that the file does not name are not used. The
    file lies in ``specs/`` and is part of the run: another content is another run. ``pfl export-split`` makes such a
    file of any partition.
    """

    name = "from_file"
    citation = "such as those of PFLlib: Zhang et al., JMLR 2025"
    smoke: ClassVar[dict[str, Any]] = {"path": None}

    path: str | None = option(None, help="The file, such as specs/mnist/split.csv; null deals evenly, for miniatures.")
    content: str | None = option(None, later=True, help="The SHA-256 of the file, noted when a spec is compiled.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in describe_options(Partition) if self.path else ():
            if getattr(self, one.name) != one.default:
                raise UserError(f"{self.name}.{one.name} does not go with a file, which says all about the split")

    def dealt(self, samples: Samples, clients: int, seed: int) -> Assignment | None:
        """Return what the file says, if there is one; raise :class:`UserError` where it does not fit."""
        if self.path is None:
            return None
        from pflcore.data.assignment_files import hash_of, read_split  # of which the engine alone needs nothing

        # Profiles work in a folder of their own below the project.
        here = Path.cwd()
        path = next((folder / self.path for folder in (here, *here.parents) if (folder / self.path).is_file()), None)
        if path is None:
            raise UserError(f"{self.path}: no such file; put the split there and run `pfl compile`")
        if self.content and hash_of(path) != self.content:
            raise UserError(f"{self.path}: was changed after the spec was compiled; run `pfl compile`")
        assignment = read_split(path, self.name, seed)
        if assignment.clients != clients:
            raise UserError(f"{self.path}: has {assignment.clients} clients, and the spec {clients}")
        try:
            assignment.check(len(samples), samples.train)
        except UserError as error:
            raise UserError(f"{self.path}: not a split of {samples.name} ({error})") from None
        return assignment
