"""Derived randomness: every stream is a function of (seed, purpose, ids), never of earlier draws.

Thus any round of any client can be replayed alone, a resumed run needs no generator state, and the partition, the
initial weights, the sampling of clients and the order of batches are independent of one another.
"""

import hashlib

import numpy as np


def sequence(seed: int, purpose: str, *ids: int) -> np.random.SeedSequence:
    """Return the seed of the stream `purpose` for the given ids (round, client, …), all non-negative."""
    word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    return np.random.SeedSequence([seed, word, *ids])


def generator(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """Return a new NumPy generator for the stream."""
    return np.random.default_rng(sequence(seed, purpose, *ids))


def torch_seed(seed: int, purpose: str, *ids: int) -> int:
    """Return a 63-bit number for ``torch.manual_seed`` or ``torch.Generator.manual_seed``."""
    return int(sequence(seed, purpose, *ids).generate_state(1, np.uint64)[0] >> np.uint64(1))
