"""What datasets of float arrays have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pflcore.data.samples import ARRAYS, Inputs
from pflcore.datasets._base import Dataset
from pflcore.errors import UserError
from pflcore.options import option


@dataclass(frozen=True, kw_only=True)
class ArrayDataset(Dataset):
    """Base of the datasets of features [n, d], signals [n, channels, time] and other arrays of floats.

    A subclass says in ``original`` the shape of one sample, with 0 where only the data tell.
    """

    standardise: bool = option(  # type: ignore[misc]
        True,
        help="Bring channels, or single features, to mean 0 and std 1 over training samples of clients that train.",
    )

    @property
    def kind(self) -> str:
        return ARRAYS


def as_floats(values: np.ndarray, where: str) -> Inputs:
    """Return numbers as float32. Raises :class:`UserError` with the first row [n, …] that has one that is not finite.

    `where` is the file; rows count from 0.
    """
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32)
    finite = np.isfinite(floats).all(axis=tuple(range(1, floats.ndim)))
    if not finite.all():
        row = int(finite.argmin())
        raise UserError(f"{where}: row {row} has a number that is missing, infinite or too large; fill or drop it")
    return floats
