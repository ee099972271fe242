"""Recording a step's CUDA kernels once, and replaying them with one launch.

A vectorised step of a small Transformer is about a thousand kernels of a few microseconds; starting them one by one
from Python takes many times as long as they run. Where there is no CUDA, functions are simply called.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pflcore.memory import is_memory

# Shapes that occur more often than this are recorded; recording costs about as much as several plain calls.
_PATIENCE = 2
# Recordings that are kept; what they hold by themselves is a list of kernels, of about a megabyte.
_MOST = 256
_WARM_UP = 3


class Replay:
    """Calls functions of nested dicts and tuples of tensors; the same function must be given every time.

    ``PFL_GRAPHS=0`` switches recording off.

    Args:
        device: Where the tensors are.
        recorder: Makes the recordings; may be shared with other functions.
    """

    def __init__(self, device: torch.device, recorder: Recorder | None = None) -> None:
        self.on = device.type == "cuda" and os.environ.get("PFL_GRAPHS") != "0"
        self._recorder = recorder or Recorder(device)
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
            recording = self._recorder.record(function, arguments)
        except RuntimeError as error:  # an operation that cannot be recorded
            short = next((one for one in (error, error.__context__) if one and is_memory(one)), None)
            if short:  # also when what it ends with is the end of the capture
                raise short from None
            warnings.warn(f"steps are not recorded ({str(error).splitlines()[0]}); slower", stacklevel=2)
            self.on = False
            return function(*arguments)
        self._recordings[signature] = recording
        return recording(arguments)

    def clear(self) -> None:
        """Forget all recordings and give their memory back, once no other function has recordings either."""
        self._recordings.clear()
        self._seen.clear()
        self._recorder.clear()


class Recorder:
    """What all recordings have in common, since only one of them runs at a time.

    That is a stream, as libraries keep a workspace for each; a pool for what a step makes and does not keep, as large
    as the largest step needs; and the tensors that go in and come out, the same for steps of all shapes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._tensors: dict[Any, Tensor] = {}

    def record(self, function: Callable[..., Any], arguments: Any) -> _Recording:
        """Raises RuntimeError for what cannot be recorded."""
        with torch.cuda.device(self.device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                self._pool = torch.cuda.graph_pool_handle()
            before = torch.cuda.current_stream()
            try:
                return self._record(function, arguments, self._stream)
            finally:  # a capture that fails leaves its stream behind
                torch.cuda.set_stream(before)

    def _record(self, function: Callable[..., Any], arguments: Any, stream: torch.cuda.Stream) -> _Recording:
        inputs = self._held("in", arguments)
        _fill(inputs, arguments)
        # What libraries set up at their first use must not be recorded.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                made = function(*_copy(inputs))
        torch.cuda.current_stream().wait_stream(stream)
        outputs = self._held("out", made)
        del made
        graph = torch.cuda.CUDAGraph()
        # Another thread may pin memory meanwhile, which has nothing to do with this one's capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            # Steps may work in place, so the inputs themselves are kept out of it.
            _fill(outputs, function(*_copy(inputs)))
        return _Recording(graph, inputs, outputs)

    def _held(self, side: str, tree: Any) -> Any:
        """Tensors for the leaves of `tree`: those of earlier recordings, where they are large enough."""
        place = iter(range(1 << 31))

        def held(leaf: Tensor) -> Tensor:
            key = side, next(place), leaf.dtype
            if key not in self._tensors or self._tensors[key].numel() < leaf.numel():
                self._tensors[key] = torch.empty(leaf.numel(), dtype=leaf.dtype, device=leaf.device)
            return self._tensors[key][: leaf.numel()].view(leaf.shape)

        return _map(held, tree)

    def clear(self) -> None:
        """Forget the tensors. Recordings that there still are keep theirs."""
        self._tensors.clear()


@dataclass(frozen=True)
class _Recording:
    """The kernels of one call, the tensors that they read, and those that they write."""

    graph: torch.cuda.CUDAGraph
    inputs: Any
    outputs: Any

    def __call__(self, arguments: Any) -> Any:
        _fill(self.inputs, arguments)
        self.graph.replay()
        return _copy(self.outputs)


def _fill(held: Any, tree: Any) -> None:
    """Copy the leaves, those of a type with one kernel."""
    groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for to, leaf in zip(_leaves(held), _leaves(tree), strict=True):
        if leaf.numel():
            targets, sources = groups.setdefault(leaf.dtype, ([], []))
            targets.append(to)
            sources.append(leaf)
    for targets, sources in groups.values():
        torch._foreach_copy_(targets, sources)


def _leaves(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    else:
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(child)


def _copy(tree: Any) -> Any:
    copied = _map(torch.empty_like, tree)
    _fill(copied, tree)
    return copied


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """`function` of every leaf, in a tree of the same form."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {name: _map(function, child) for name, child in tree.items()}
    return tuple(_map(function, child) for child in tree)


def _signature(tree: Any) -> Any:
    """What two calls must have in common for one recording to serve both."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype
    if isinstance(tree, dict):
        return tuple((name, _signature(child)) for name, child in tree.items())
    return tuple(_signature(child) for child in tree)
