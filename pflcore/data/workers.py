"""Parts of a dataset computed by PyTorch in forked processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Work = Callable[[Any], np.ndarray]


def each_part(work: Work, parts: Sequence[Any], workers: int) -> Iterator[np.ndarray]:
    """Yield what `work` returns for each part, in order.

    Several workers are processes with one thread each, so results do not depend on their number if the caller has one
    thread, too. With one worker or one part, this process computes.
    """
    if (workers := min(workers, len(parts))) <= 1:
        yield from map(work, parts)
        return
    with multiprocessing.get_context("fork").Pool(workers, _begin, (work,)) as pool:
        yield from pool.imap(_work, parts)


_inherited: list[Work] = []  # one function, set in each forked process of a pool


def _begin(work: Work) -> None:
    import torch  # here, because datasets that need no workers do not need it either

    _inherited[:] = [work]
    torch.set_num_threads(1)


def _work(part: Any) -> np.ndarray:
    return _inherited[0](part)
