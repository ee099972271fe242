"""The base class of datasets of float arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pflcore.data.samples import ARRAYS, Inputs, check_finite
from pflcore.datasets._base import Dataset
from pflcore.options import option


@dataclass(frozen=True, kw_only=True)
class ArrayDataset(Dataset):
    """Base of the datasets of features [n, d], signals [n, channels, time] and other arrays of floats.

    A subclass states the shape of one sample in ``original``; 0 stands for a size that is known only after loading.
    """

    results_version: ClassVar[int] = 2  # 1 had other generated samples

    standardise: bool = option(  # type: ignore[misc]
        True,
        help="Bring channels, or single features, to mean 0 and std 1 over training samples of clients that train.",
    )

    @property
    def kind(self) -> str:
        return ARRAYS


def as_floats(values: np.ndarray, where: str) -> Inputs:
    """Return numbers [n, …] as float32. Raises :class:`UserError` with the first row that is not finite."""
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32)
    check_finite(floats, where)
    return floats
