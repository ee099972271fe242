"""Tensors on a GPU that is not there: each holds one on the CPU, and refuses what CUDA refuses.

The device is a backend of PyTorch's written in Python, so autograd, ``vmap`` and ``grad`` treat it as any accelerator.
An operation counts as one kernel, which is what most of them are; views and allocations are none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

from support.pretend_device.events import Events, place
from support.pretend_device.tape import Tape, mapped, tensors_of

NAME = "pretend"


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.empty(0)

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        pass


# Autograd starts its threads at the first gradient of a process, one for each device that there is, and a process with
# threads cannot fork workers any more. So the first gradient is taken while there is no device yet.
torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
_setup_privateuseone_for_python_backend(NAME, _Module())
GPU = torch.device(NAME, 0)

# Operations that look at their result on the host without saying so in their tags.
_CHECKED = {"_linalg_check_errors", "_linalg_svd", "_linalg_eigh", "multinomial", "randperm"}
# Operations that start nothing: they allocate, or name the same memory anew though their schemas do not say so.
_FREE = {"_unsafe_view", "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}


class MixedDevices(RuntimeError):
    """An operation on tensors of the GPU and of the host."""


class NotCapturable(RuntimeError):
    """What a CUDA graph cannot hold."""


class State:
    """Of the one device: its events, and the tape of the capture that is under way."""

    def __init__(self) -> None:
        self.events = Events()
        self.tape: Tape | None = None

    def count(self, kind: str, what: str, at: str, why: str) -> None:
        """Count what concerns the host. Raises :class:`NotCapturable` during a capture."""
        if not self.tape:
            self.events[kind] += 1
        else:
            raise NotCapturable(f"operation not permitted when stream is capturing: {why} ({what}) at {at}")


STATE = State()


class Held(Tensor):
    """A tensor on the pretend GPU. `elem` has its values."""

    elem: Tensor

    @staticmethod
    def __new__(cls, elem: Tensor) -> Held:
        made: Held = Tensor._make_wrapper_subclass(
            cls, elem.size(), elem.stride(), elem.storage_offset(), dtype=elem.dtype, device=GPU
        )
        made.elem = elem
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        if self.elem.numel():
            STATE.count("waits", "repr", place(), "the host waits for what it prints")
        return repr(self.elem)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {})


class Factories(TorchDispatchMode):
    """Sends operations to the device that name it, or that have arguments on it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if Held in types or _named(kwargs.get("device")):
            return execute(func, args, kwargs)
        return func(*args, **kwargs)


def _named(device: Any) -> bool:
    return device is not None and device.type in (NAME, "cuda")


def _elem(leaf: Any) -> Any:
    """What is computed with on the CPU. A capture takes numbers on the host as they are now."""
    if isinstance(leaf, Held):
        return leaf.elem
    return STATE.tape.bake(leaf) if STATE.tape and isinstance(leaf, Tensor) else leaf


def execute(func: Any, args: Any, kwargs: Any) -> Any:
    """Do an operation of which an argument or the result is on the device.

    Raises:
        MixedDevices: Other arguments are on the host.
        NotCapturable: During a capture, it looks at the device from the host, or the other way round.
    """
    name, at = func._schema.name.partition("::")[2], place()
    given = list(tensors_of((args, kwargs)))
    here = [tensor for tensor in given if isinstance(tensor, Held)]
    target = kwargs.get("device")
    on_device = _named(target) if target is not None else bool(here)
    plain_args, plain_kwargs = mapped(_elem, (args, kwargs))
    if target is not None:
        plain_kwargs["device"] = torch.device("cpu")
    plain_kwargs.pop("pin_memory", None)

    if name in ("copy_", "_to_copy"):
        return _copy(func, name, args, plain_args, plain_kwargs, on_device, at)
    _check(func, name, args, given, here, at)
    out = func(*plain_args, **plain_kwargs)
    if not on_device or not (func._schema.is_mutable or any(True for _ in tensors_of(out))):
        return out
    return _finish(func, name, here, plain_args, plain_kwargs, out, at)


@cache
def _tags(func: Any) -> frozenset[str]:
    return frozenset(tag.name for tag in func.tags)


def _copy(func: Any, name: str, args: Any, plain_args: Any, plain_kwargs: Any, on_device: bool, at: str) -> Any:
    """`copy_` and `_to_copy`, which alone go from the device to the host and back."""
    source = args[1] if name == "copy_" else args[0]
    there = isinstance(args[0], Held) if name == "copy_" else on_device
    if isinstance(source, Held) and not there:
        STATE.count("downloads", name, at, "a copy to the host")
    elif there and not isinstance(source, Held):
        STATE.count("uploads", name, at, "a copy from the host")
    out = func(*plain_args, **plain_kwargs)
    if not there:
        return args[0] if name == "copy_" else out
    here = [tensor for tensor in args if isinstance(tensor, Held)]
    return _finish(func, name, here, plain_args, plain_kwargs, out, at, launches=isinstance(source, Held))


def _check(func: Any, name: str, args: Any, given: list[Tensor], here: list[Held], at: str) -> None:
    """Whether CUDA would take these arguments, and whether it would wait."""
    tags = _tags(func)
    if here and name in _INDEXED:
        for index in tensors_of(args[1]):
            if index.dtype in (torch.bool, torch.uint8):
                STATE.count("waits", name, at, "a mask, whose size the host waits for")
            elif not isinstance(index, Held):
                STATE.count("uploads", name, at, "an index on the host")
        given = [args[0], *tensors_of(args[2:])]
    for tensor in given if here else ():
        if isinstance(tensor, Held):
            continue
        # A number on the host may stand in for one on the device, as an argument of the kernel.
        if tensor.dim() or not ("pointwise" in tags or name == "fill_"):
            where = ", ".join(f"{'cuda' if isinstance(one, Held) else 'cpu'} {tuple(one.shape)}" for one in given)
            raise MixedDevices(f"expected all tensors to be on the same device, {name} got {where}, at {at}")
        if name == "where":
            STATE.count("uploads", name, at, "a number on the host in where")
    shapes = "dynamic_output_shape" in tags and name not in _INDEXED
    if here and (shapes or "data_dependent_output" in tags or name in _CHECKED):
        STATE.count("waits", name, at, "the host waits for its result")
    if STATE.tape and "nondeterministic_seeded" in tags:
        raise NotCapturable(f"random numbers in a graph ({name}) at {at}")


def _finish(
    func: Any, name: str, here: list[Held], args: Any, kwargs: Any, out: Any, at: str, launches: bool = True
) -> Any:
    """Count the kernel, put it on the tape, and wrap what it made."""
    same = {id(tensor.elem): tensor for tensor in here}
    starts = not (func.is_view or name in _FREE)
    tape = STATE.tape
    if starts and launches and not tape:
        STATE.events["kernels"] += 1

    def wrap(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) in same:
            return same[id(leaf)]
        if tape:
            tape.own(leaf)
        return Held(leaf)

    wrapped = mapped(wrap, out)
    if tape and starts:
        tape.add(func, args, kwargs, out, at)
    return wrapped


# What PyTorch does by itself, past all modes: ``torch.tensor`` allocates and copies so.
_library = torch.library.Library("aten", "IMPL")


def _allocated(elem: Tensor) -> Held:
    if STATE.tape:
        STATE.tape.own(elem)
    return Held(elem)


def _empty(size: Any, dtype: Any = None, *_: Any, **__: Any) -> Held:
    return _allocated(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, dtype: Any = None, *_: Any, **__: Any) -> Held:
    return _allocated(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(target, Held) and not isinstance(source, Held):
        STATE.count("uploads", "copy_", place(), "a copy from the host")
    elif isinstance(source, Held) and not isinstance(target, Held):
        STATE.count("downloads", "copy_", place(), "a copy to the host")
    _elem(target).copy_(_elem(source))
    return target


_library.impl("empty.memory_format", _empty, "PrivateUse1")
_library.impl("empty_strided", _empty_strided, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
