"""Settings for preparing a dataset on this machine: the listener for progress, and the folder for large arrays.

Outside a :func:`preparing` block no progress is reported and all arrays are in memory.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from pflcore.data.samples import Bytes
from pflcore.memory import memory_limit

Listener = Callable[[str, int, int], None]
"""Called with the name of a task, the number of steps done and the number of all steps."""

_current: ContextVar[tuple[Listener, Path | None]] = ContextVar("preparation", default=(lambda *_: None, None))


@contextmanager
def preparing(show: Listener, scratch: Path | None) -> Iterator[None]:
    """Report progress to `show` within the block, and map arrays above the memory limit to files in `scratch`."""
    token = _current.set((show, scratch))
    try:
        yield
    finally:
        _current.reset(token)


def track(task: str, total: int) -> Callable[[int], None]:
    """Return a function to be called with the number of steps done since its last call, by one thread at a time."""
    show, done = _current.get()[0], 0

    def advance(steps: int) -> None:
        nonlocal done
        done += steps
        show(task, done, total)

    show(task, 0, total)
    return advance


def allocate(shape: tuple[int, ...]) -> Bytes:
    """Return an uninitialised uint8 array: in memory, or mapped to an unnamed file that disappears with the process."""
    scratch = _current.get()[1]
    if scratch is None or int(np.prod(shape)) <= memory_limit():
        return np.empty(shape, np.uint8)
    scratch.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=scratch) as file:
        return np.memmap(file, np.uint8, "w+", shape=shape)
