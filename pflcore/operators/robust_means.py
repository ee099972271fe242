"""Means of clients' entries that a few wrong clients hardly change: pure functions of (clients, entries) tensors."""

import math

import torch
from torch import Tensor

_STEPS, _SMALLEST = 32, 1e-6


def trimmed_mean(values: Tensor, share: float) -> Tensor:
    """Return the mean of each entry without the ⌊share · clients⌋ smallest and as many largest values (Yin et al., ICML
    2018). Share 1/2 gives the median, which is the mean of the two middle values if there are two."""
    count = len(values)
    cut = min(math.floor(share * count + 1e-9), (count - 1) // 2)
    return values.sort(0).values[cut : count - cut].mean(0)


def krum(values: Tensor, share: float) -> Tensor:
    """Return the entries of the client with the least sum of squared distances to its n − f − 2 nearest ones, at least
    one, f = ⌊share · n⌋ of n clients (Blanchard et al., NeurIPS 2017). The guarantee needs n > 2f + 2."""
    count = len(values)
    nearest = max(1, count - math.floor(share * count + 1e-9) - 2)
    # Not by products of vectors: they would lose the small differences between large models.
    distances = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist").square()
    scores = distances.sort(1).values[:, 1 : nearest + 1].sum(1)
    return values[scores.argmin()].clone()


def geometric_median(values: Tensor, shares: Tensor) -> Tensor:
    """Return an approximate point of least Σ share · distance by RFA's smoothed Weiszfeld steps from the mean, with
    weights share / max(ν, distance), ν = 10⁻⁶ (Pillutla, Kakade and Harchaoui, IEEE TSP 2022, algorithm 2)."""
    point = shares @ values
    for _ in range(_STEPS):
        weights = shares / (values - point).norm(dim=1).clamp_min(_SMALLEST)
        point = (weights / weights.sum()) @ values
    return point
