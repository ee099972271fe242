"""Parts of a dataset computed in forked processes."""

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

Work = Callable[[Any], Any]


def each_part(work: Work, parts: Iterable[Any], workers: int) -> Iterator[Any]:
    """Yield what `work` returns for each part, in order; parts are taken from the iterable shortly before their turn.

    Several workers are processes, where PyTorch has one thread, so results do not depend on their number if the caller
    has one thread, too. They are forked: other ways to start a process would run the caller's script again. With one
    worker, this process computes.
    """
    if workers <= 1:
        yield from map(work, parts)
        return
    pending: deque[Future[Any]] = deque()
    with ProcessPoolExecutor(workers, get_context("fork"), _begin, (work,)) as pool:
        try:
            for part in parts:
                pending.append(pool.submit(_work, part))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            why = "perhaps for lack of memory; set PFL_WORKERS to a smaller number and try again"
            raise UserError(f"a worker process was killed, {why}") from None
        finally:
            pool.shutdown(cancel_futures=True)


_inherited: list[Work] = []  # one function, set in each forked process of a pool


def _begin(work: Work) -> None:
    _inherited[:] = [work]
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: Linux kills this process when its parent ends for any reason
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def _work(part: Any) -> Any:
    return _inherited[0](part)
