"""A parallel map over the parts of a dataset, in forked processes."""

import ctypes
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from pflcore.errors import UserError

Function = Callable[[Any], Any]


def parallel_map(function: Function, parts: Iterable[Any], workers: int) -> Iterator[Any]:
    """Yield what `function` returns for each part, in order. The iterable is read only a few parts ahead.

    One worker is this process. Several are forked, as other kinds of processes would run the caller's script again.
    PyTorch has one thread in them, so results are those of a caller with one thread.
    """
    if workers <= 1:
        yield from map(function, parts)
        return
    pending: deque[Future[Any]] = deque()
    with ProcessPoolExecutor(workers, get_context("fork"), _initialise, (function,)) as pool:
        try:
            for part in parts:
                pending.append(pool.submit(_call, part))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            advice = "perhaps for lack of memory; set PFL_WORKERS to a smaller number and try again"
            raise UserError(f"a worker process was killed, {advice}") from None
        finally:
            pool.shutdown(cancel_futures=True)


_function: list[Function] = []  # the one of the pool, set in each of its processes


def _initialise(function: Function) -> None:
    _function[:] = [function]
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: Linux kills this process when its parent ends for any reason
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def _call(part: Any) -> Any:
    return _function[0](part)
