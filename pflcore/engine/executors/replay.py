"""Recording a step's CUDA kernels once, and replaying them with one launch.

A vectorised step of a small Transformer is about a thousand kernels of a few microseconds; starting them one by one
from Python takes many times as long as they run. Where there is no CUDA, functions are simply called.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

# Shapes that occur more often than this are recorded; recording costs about as much as several plain calls.
_PATIENCE = 2
# Recordings that are kept; each holds a copy of its inputs.
_MOST = 24
_WARM_UP = 3


class Replay:
    """Calls functions of nested dicts and tuples of tensors; the same function must be given every time.

    ``PFL_GRAPHS=0`` switches recording off.
    """

    def __init__(self, device: torch.device) -> None:
        self.on = device.type == "cuda" and os.environ.get("PFL_GRAPHS") != "0"
        self._seen: Counter[Any] = Counter()
        self._recordings: dict[Any, _Recording] = {}

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments)``, in tensors that belong to the caller."""
        if not self.on:
            return function(*arguments)
        signature = _signature(arguments)
        if signature in self._recordings:
            return self._recordings[signature](arguments)
        self._seen[signature] += 1
        if self._seen[signature] <= _PATIENCE or len(self._recordings) == _MOST:
            return function(*arguments)
        try:
            recording = _Recording(function, arguments)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # an operation that cannot be recorded
            warnings.warn(f"steps are not recorded ({str(error).splitlines()[0]}); slower", stacklevel=2)
            self.on = False
            return function(*arguments)
        self._recordings[signature] = recording
        return recording(arguments)

    def clear(self) -> None:
        """Forget all recordings and give their memory back."""
        self._recordings.clear()
        self._seen.clear()


class _Recording:
    """The kernels of one call, the tensors that they read, and those that they write."""

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        self.inputs = _copy(arguments)
        # What libraries set up at their first use must not be recorded.
        side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                function(*_copy(arguments))
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            # Steps may work in place, so the inputs themselves are kept out of it.
            self.outputs = function(*_copy(self.inputs))

    def __call__(self, arguments: Any) -> Any:
        for static, given in zip(_leaves(self.inputs), _leaves(arguments), strict=True):
            static.copy_(given)
        self.graph.replay()
        return _copy(self.outputs)


def _leaves(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    else:
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(child)


def _copy(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {name: _copy(child) for name, child in tree.items()}
    return tuple(_copy(child) for child in tree)


def _signature(tree: Any) -> Any:
    """What two calls must have in common for one recording to serve both."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype
    if isinstance(tree, dict):
        return tuple((name, _signature(child)) for name, child in tree.items())
    return tuple(_signature(child) for child in tree)
