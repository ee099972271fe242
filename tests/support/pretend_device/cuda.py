"""``torch.cuda`` as seen by this project, on the pretend GPU: devices, streams and graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from support.pretend_device.events import Events, place
from support.pretend_device.tape import Tape
from support.pretend_device.tensors import GPU, NAME, STATE, Factories, Held

CUDA = torch.device("cuda", 0)
_DEVICE, _IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_MEMORY = 8 << 30


class _Disguise(TorchFunctionMode):
    """Has the pretend device called ``cuda`` by whoever asks a tensor or names a device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func == _DEVICE:
            device = func(*args)
            return CUDA if device.type == NAME else device
        if func == _IS_CUDA:
            return _DEVICE(*args).type == NAME
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        if func in _TO_HOST and isinstance(args[0], Held):
            return _TO_HOST[func](args[0])
        return func(*map(_undisguised, args), **{name: _undisguised(value) for name, value in kwargs.items()})


def _tolist(tensor: Tensor) -> Any:
    return tensor.cpu().tolist()


def _numpy(tensor: Tensor) -> Any:
    raise TypeError(f"can't convert cuda:0 device type tensor to numpy, at {place()}")


# What PyTorch refuses to do for tensors that are written in Python, or does not count.
_TO_HOST: dict[Any, Callable[[Tensor], Any]] = {Tensor.tolist: _tolist, Tensor.numpy: _numpy, Tensor.__array__: _numpy}


def _undisguised(value: Any) -> Any:
    if isinstance(value, torch.device):
        return GPU if value.type == "cuda" else value
    return GPU if isinstance(value, str) and value.startswith("cuda") else value


class _Generator(torch.Generator):
    """Numbers on the device are those of the CPU's generator."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu" if str(device).startswith("cuda") else device)


class Stream:
    """A stream: everything happens at once, so there is nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, other: Stream) -> None: ...

    def synchronize(self) -> None:
        _synchronize()


class Graph:
    """A CUDA graph: operations that are executed again, in the same memory, by one launch."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.tape = Tape()

    def replay(self) -> None:
        STATE.events["replays"] += 1
        self.tape.replay()

    def reset(self) -> None:
        self.tape = Tape()


@contextmanager
def _capture(graph: Graph, *_: Any, **__: Any) -> Iterator[None]:
    _synchronize()
    STATE.tape = graph.tape
    try:
        yield
    finally:
        STATE.tape = None


@contextmanager
def _stream(stream: Stream | None) -> Iterator[None]:
    yield


def _synchronize(*_: Any) -> None:
    STATE.count("waits", "synchronize", place(), "the host waits for the device")


def _rng_state(*_: Any) -> Tensor:
    STATE.count("downloads", "get_rng_state", place(), "a copy to the host")
    return torch.empty(0, dtype=torch.uint8)


_CUDA: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "_is_in_bad_fork": lambda: False,
    "_lazy_init": lambda: None,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "device": lambda device: nullcontext(),
    "set_stream": lambda stream: None,
    "get_device_name": lambda device=None: "pretend GPU",
    "get_device_capability": lambda device=None: (9, 0),
    "mem_get_info": lambda device=None: (_MEMORY, _MEMORY),
    "empty_cache": lambda: None,
    "manual_seed_all": lambda seed: None,
    "get_rng_state": _rng_state,
    "set_rng_state": lambda state, device=None: None,
    "synchronize": _synchronize,
    "Stream": Stream,
    "current_stream": Stream,
    "default_stream": Stream,
    "stream": _stream,
    "CUDAGraph": Graph,
    "graph": _capture,
    "graph_pool_handle": lambda: (0, 0),
    "is_current_stream_capturing": lambda: STATE.tape is not None,
}


@contextmanager
def _modes() -> Iterator[None]:
    """What is a thread's own."""
    with (
        torch.autograd.set_multithreading_enabled(False),
        Factories(),
        _Disguise(),
    ):  # autograd has no thread of its own
        yield


def _pretending(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def pretend(thread: threading.Thread) -> None:
        with _modes():
            run(thread)

    return pretend


@contextmanager
def pretend_cuda() -> Iterator[Events]:
    """Within it there is one CUDA device; what it does is counted in the events that are given.

    Tensors that were made on it must not be used afterwards.
    """
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with ExitStack() as stack:
        for name, value in _CUDA.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(torch, "Generator", _Generator))
        stack.enter_context(mock.patch.object(torch.Tensor, "pin_memory", lambda self, *_: self))
        stack.enter_context(mock.patch.object(threading.Thread, "run", _pretending(threading.Thread.run)))
        stack.enter_context(_modes())
        STATE.events, STATE.tape = Events(), None
        try:
            yield STATE.events
        finally:
            torch._C._set_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
