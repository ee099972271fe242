"""Recording of a step's CUDA kernels, and their replay with one launch.

A vectorised step of a small Transformer is about a thousand kernels of a few microseconds; launching them one by one
from Python takes many times as long as running them. On other devices, steps are called without recording.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pflcore.memory import is_memory_error

# Plain calls of a shape before it is recorded, because recording costs about as much as several plain calls.
CALLS_BEFORE = 2
_MAX_RECORDINGS = 16
WARM_UP = 3

Step = Callable[..., tuple[Any, Tensor]]
"""(state, further arguments …) → (next state, losses): nested dicts of tensors. It does not modify or return inputs."""


class Replay:
    """Calls steps, and records those whose shapes occur again. ``PFL_GRAPHS=0`` switches recording off."""

    def __init__(self, device: torch.device) -> None:
        self.enabled = device.type == "cuda" and os.environ.get("PFL_GRAPHS") != "0"
        self._device = device
        self._stream: torch.cuda.Stream | None = None  # only one, because libraries keep a workspace per stream
        self._pool: Any = None  # memory for a step's temporary tensors; shared, since one recording runs at a time
        self._calls: Counter[Any] = Counter()
        self.recordings: dict[Any, tuple[torch.cuda.CUDAGraph, Any, Any]] = {}

    def __call__(self, key: object, step: Step, *arguments: Any) -> tuple[Any, Tensor]:
        """Return ``step(*arguments)``. The next call may overwrite the state: clone it to keep it.

        Args:
            key: Identifies the function: calls with the same key and the same shapes share a recording.
        """
        if not self.enabled:
            return step(*arguments)
        shapes = key, signature(arguments)
        if shapes not in self.recordings:
            self._calls[shapes] += 1
            if self._calls[shapes] <= CALLS_BEFORE or len(self.recordings) == _MAX_RECORDINGS:
                return step(*arguments)
            try:
                self.recordings[shapes] = self._record(step, arguments)
            except RuntimeError as error:  # an operation that cannot be recorded
                for cause in (error, error.__context__):
                    if cause and is_memory_error(cause):  # the capture's own error can hide it
                        raise cause from None
                warnings.warn(f"steps are not recorded ({str(error).splitlines()[0]}); slower", stacklevel=2)
                self.enabled = False
                return step(*arguments)
        graph, inputs, (state, losses) = self.recordings[shapes]
        _fill(inputs, arguments)
        graph.replay()
        return state, losses.clone()

    def clear(self) -> None:
        """Drop all recordings and free their memory."""
        self.recordings.clear()
        self._calls.clear()

    def _record(self, step: Step, arguments: Any) -> tuple[torch.cuda.CUDAGraph, Any, Any]:
        """Record one call; return its kernels, the tensors that they read, and those that they write."""
        with torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                self._pool = torch.cuda.graph_pool_handle()
            stream, before, inputs = self._stream, torch.cuda.current_stream(), copy_tree(arguments)
            try:
                # Warm-up calls, because what libraries set up at their first use must not be recorded.
                stream.wait_stream(before)
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UP):
                        state, losses = step(*inputs)
                before.wait_stream(stream)
                # The next state is written into the input's tensors, so that the next replay needs no copy.
                in_place = signature(state) == signature(inputs[0])
                outputs = inputs[0] if in_place else map_tree(torch.empty_like, state), torch.empty_like(losses)
                del state, losses
                graph = torch.cuda.CUDAGraph()
                # thread_local, because another thread may pin memory during the capture.
                with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                    _fill(outputs, step(*inputs))
                return graph, inputs, outputs
            finally:  # because a failed capture leaves its stream as the current one
                torch.cuda.set_stream(before)


def copy_tree(tree: Any) -> Any:
    """Return a copy of nested dicts and tuples of tensors; one kernel copies all tensors of a type."""
    copied = map_tree(torch.empty_like, tree)
    _fill(copied, tree)
    return copied


def _fill(targets: Any, tree: Any) -> None:
    """Copy the leaves of `tree` that are not themselves the targets; one kernel copies all tensors of a type."""
    groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, leaf in zip(_leaves(targets), _leaves(tree), strict=True):
        if leaf.numel() and target is not leaf:
            destinations, sources = groups.setdefault(leaf.dtype, ([], []))
            destinations.append(target)
            sources.append(leaf)
    for destinations, sources in groups.values():
        torch._foreach_copy_(destinations, sources)


# PyTorch's functions for trees take ten times as long, which matters in a step of small models.
def _leaves(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    else:
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(child)


def map_tree(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return a tree of the same form with `function` applied to every leaf."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {name: map_tree(function, child) for name, child in tree.items()}
    return tuple(map_tree(function, child) for child in tree)


def signature(tree: Any) -> Any:
    """Return the names, shapes and types of arguments; calls can share a recording if these are equal."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype
    if isinstance(tree, dict):
        return tuple((name, signature(child)) for name, child in tree.items())
    return tuple(signature(child) for child in tree)
