"""A GPU without a GPU: the path for CUDA runs on it, what CUDA refuses is refused, and what costs time is counted.

Each tensor on it holds one on the CPU. The device is a backend of PyTorch's written in Python, so autograd and ``vmap``
treat it as any accelerator. An operation counts as one kernel; views and allocations are none.
"""

import threading
import weakref
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from unittest import mock

import pytest

pytest.importorskip("torch", "2.11")  # older ones have no such backends

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretend"
# Operations that look at their result on the host without saying so in their tags.
_CHECKED = {"_linalg_check_errors", "_linalg_svd", "_linalg_eigh", "multinomial", "randperm"}
# Operations that start nothing: they allocate, or name the same memory anew though their schemas do not say so.
_FREE = {"_unsafe_view", "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_FACTS = {"get_amp_supported_dtype": lambda self: [torch.float16, torch.bfloat16]}
_FACTS |= {"get_rng_state": lambda self, device=None: torch.empty(0), "set_rng_state": lambda *_: None}


def _attention(q, k, v, bias, logs):
    return *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v), q.new_empty(0), q.new_empty(0)


def _attention_backward(grad, q, k, v, bias, out, logs, seed, offset, dropout, wanted):
    slopes = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return *slopes(grad, q, k, v, out, logs, dropout, False), None


# What CPUs have in place of CUDA's own operations. Attention has random numbers in its schema, for dropout alone.
_IN_PLACE = {
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
}

# Autograd starts its threads at the first gradient of a process, one for each device that there is, and a process with
# threads cannot fork workers any more. So the first gradient is taken while there is no device yet.
torch.ones(1, requires_grad=True).sum().backward()
_setup_privateuseone_for_python_backend(NAME, type("_Module", (_DummyBackendModule,), _FACTS)())
GPU = torch.device(NAME, 0)


class Refused(RuntimeError):
    """What CUDA does not do: with tensors of the GPU and of the host, within a graph, with memory that is gone."""


class Graph:
    """A CUDA graph: operations that are executed again, in the same memory, by one launch.

    As in CUDA, memory from before the capture is not kept alive, and numbers on the host stay what they were.
    """

    def __init__(self):
        self.steps = []
        self.own = {}  # what the capture has made, by its id

    def keep(self, tensor):
        self.own[id(tensor)] = tensor
        return tensor

    def add(self, func, args, kwargs, made):
        def weak(leaf):
            return weakref.ref(leaf) if isinstance(leaf, Tensor) and id(leaf) not in self.own else leaf

        self.steps.append((func, *mapped(weak, (args, kwargs)), made))

    def replay(self):
        def alive(leaf):
            found = leaf() if isinstance(leaf, weakref.ref) else leaf
            if found is None and leaf is not None:
                raise Refused("a graph reads memory that has been given back")
            return found

        STATE.events["replays"] += 1
        for func, args, kwargs, made in self.steps:
            args, kwargs = mapped(alive, (args, kwargs))
            for kept, new in zip(tensors_of(made), tensors_of(func(*args, **kwargs)), strict=True):
                if kept.data_ptr() != new.data_ptr():
                    kept.copy_(new)


class State:
    """The capture that is under way, and how often there were ``kernels`` that were launched one by one, ``replays`` of
    a whole graph, ``uploads`` and ``downloads``, and other ``waits`` for the device."""

    def __init__(self):
        self.events, self.graph = Counter(), None

    def count(self, kind, why):
        if self.graph:
            raise Refused(f"operation not permitted when stream is capturing: {why}")
        self.events[kind] += 1


STATE = State()


class Held(Tensor):
    """A tensor on the pretend GPU. `elem` has its values."""

    @staticmethod
    def __new__(cls, elem):
        made = Tensor._make_wrapper_subclass(
            cls, elem.size(), elem.stride(), elem.storage_offset(), dtype=elem.dtype, device=GPU
        )
        made.elem = elem
        return made

    def __repr__(self, **_):
        if self.elem.numel():
            STATE.count("waits", "repr")
        return repr(self.elem)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return execute(func, args, kwargs or {})


class Factories(TorchDispatchMode):
    """Sends operations to the device that name it, or that have arguments on it."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ours = Held in types or getattr(kwargs.get("device"), "type", "") in (NAME, "cuda")
        return execute(func, args, kwargs) if ours else func(*args, **kwargs)


def mapped(function, tree):
    """The tree with the function applied to its leaves; PyTorch's own takes ten times as long."""
    if isinstance(tree, tuple | list):
        return type(tree)([mapped(function, child) for child in tree])
    if isinstance(tree, dict):
        return {name: mapped(function, child) for name, child in tree.items()}
    return function(tree)


def tensors_of(tree):
    if isinstance(tree, tuple | list | dict):
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_of(child)
    elif isinstance(tree, Tensor):
        yield tree


def _elem(leaf):
    """What is computed with on the CPU. A capture takes numbers on the host as they are now."""
    if isinstance(leaf, Held):
        return leaf.elem
    return STATE.graph.keep(leaf.clone()) if STATE.graph and isinstance(leaf, Tensor) else leaf


def execute(func, args, kwargs):
    """Do an operation of which an argument or the result is on the device."""
    name, target, graph = func._schema.name.partition("::")[2], kwargs.get("device"), STATE.graph
    here = [tensor for tensor in tensors_of((args, kwargs)) if isinstance(tensor, Held)]
    on_device = target.type in (NAME, "cuda") if target is not None else bool(here)
    plain_args, plain_kwargs = mapped(_elem, (args, kwargs))
    if target is not None:
        plain_kwargs["device"] = torch.device("cpu")
    plain_kwargs.pop("pin_memory", None)
    works = launches = not (func.is_view or name in _FREE)
    if name in ("copy_", "_to_copy"):  # which alone go from the device to the host and back
        source = args[1] if name == "copy_" else args[0]
        on_device = isinstance(args[0], Held) if name == "copy_" else on_device
        if isinstance(source, Held) != on_device:
            launches = False
            STATE.count("uploads" if on_device else "downloads", name)
    else:
        _check(func, name, args, kwargs, here)
    func = _IN_PLACE.get(name, func)
    out = func(*plain_args, **plain_kwargs)
    if not on_device:
        return args[0] if name == "copy_" else out
    same = {id(tensor.elem): tensor for tensor in here}
    STATE.events["kernels"] += launches and not graph

    def wrap(leaf):
        if not isinstance(leaf, Tensor) or id(leaf) in same:
            return same.get(id(leaf), leaf)
        return _allocated(leaf)

    wrapped = mapped(wrap, out)
    if graph and works:
        graph.add(func, plain_args, plain_kwargs, out)
    return wrapped


def _check(func, name, args, kwargs, here):
    """Whether CUDA would take these arguments, and whether it would wait."""
    tags, given = {tag.name for tag in func.tags}, list(tensors_of((args, kwargs)))
    if here and name in _INDEXED:
        for index in tensors_of(args[1]):
            if index.dtype in (torch.bool, torch.uint8):
                STATE.count("waits", f"{name} with a mask, whose size the host waits for")
            elif not isinstance(index, Held):
                STATE.count("uploads", f"{name} with an index on the host")
        given = [args[0], *tensors_of(args[2:])]
    for tensor in given if here else ():
        if isinstance(tensor, Held):
            continue
        # A number on the host may stand in for one on the device, as an argument of the kernel.
        if tensor.dim() or not ("pointwise" in tags or name == "fill_"):
            raise Refused(f"expected all tensors to be on the same device, {name} got one on cpu")
        if name == "where":
            STATE.count("uploads", "where with a number on the host")
    shapes = "dynamic_output_shape" in tags and name not in _INDEXED
    if here and (shapes or "data_dependent_output" in tags or name in _CHECKED):
        STATE.count("waits", f"the host waits for {name}")
    if STATE.graph and "nondeterministic_seeded" in tags and name not in _IN_PLACE:
        raise Refused(f"random numbers in a graph ({name})")


# What PyTorch does by itself, past all modes: ``torch.tensor`` allocates and copies so.
def _allocated(elem):
    return Held(STATE.graph.keep(elem) if STATE.graph else elem)


def _copy_from(source, target, non_blocking=False):
    if isinstance(target, Held) != isinstance(source, Held):
        STATE.count("uploads" if isinstance(target, Held) else "downloads", "copy_")
    _elem(target).copy_(_elem(source))
    return target


_library = torch.library.Library("aten", "IMPL")
for _name, _function in {
    "empty.memory_format": lambda size, dtype=None, *_, **__: _allocated(torch.empty(size, dtype=dtype)),
    "empty_strided": lambda size, by, dtype=None, *_, **__: _allocated(torch.empty_strided(size, by, dtype=dtype)),
    "_copy_from": _copy_from,
}.items():
    _library.impl(_name, _function, "PrivateUse1")

# --- ``torch.cuda`` as seen by this project --------------------------------------------------------------------------

CUDA = torch.device("cuda", 0)
_DEVICE, _IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__


class _Disguise(TorchFunctionMode):
    """Has the pretend device called ``cuda`` by whoever asks a tensor or names a device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func == _DEVICE:
            return CUDA if func(*args).type == NAME else func(*args)
        if func == _IS_CUDA:
            return _DEVICE(*args).type == NAME
        if func is torch.device:
            return func(*args, **kwargs)
        if args and isinstance(args[0], Held):  # what PyTorch refuses to do for tensors that are written in Python
            if func is Tensor.tolist:
                return args[0].cpu().tolist()
            if func in (Tensor.numpy, Tensor.__array__):
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return func(*map(_undisguised, args), **{name: _undisguised(value) for name, value in kwargs.items()})


def _undisguised(value):
    named = value.type if isinstance(value, torch.device) else value
    return GPU if isinstance(named, str) and named.startswith("cuda") else value


class _Generator(torch.Generator):
    """Numbers on the device are those of the CPU's generator."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu" if str(device).startswith("cuda") else device)


class Stream:
    def wait_stream(self, other): ...


@contextmanager
def _capture(graph, *_, **__):
    STATE.graph = graph
    try:
        yield
    finally:
        STATE.graph = None


_ANSWERS = {
    **{"is_available": True, "is_initialized": True, "_is_in_bad_fork": False, "device_count": 1, "current_device": 0},
    **{"get_device_name": "pretend GPU", "get_device_capability": (9, 0), "mem_get_info": (8 << 30, 8 << 30)},
    **dict.fromkeys(("_lazy_init", "set_device", "set_stream", "manual_seed_all", "empty_cache")),
    **{"reset_peak_memory_stats": None, "max_memory_reserved": 0},
    **{"device": nullcontext(), "stream": nullcontext(), "current_stream": Stream(), "graph_pool_handle": (0, 0)},
}
_CUDA = {
    **{name: lambda *_, answer=answer: answer for name, answer in _ANSWERS.items()},
    **{"Stream": Stream, "CUDAGraph": Graph, "graph": _capture},
    "synchronize": lambda *_: STATE.count("waits", "synchronize"),
    "is_current_stream_capturing": lambda: STATE.graph is not None,
}
_run_thread = threading.Thread.run


@contextmanager
def _modes():
    """What is a thread's own."""
    with torch.autograd.set_multithreading_enabled(False), Factories(), _Disguise():
        yield


def _pretend(thread):
    with _modes():
        _run_thread(thread)


@contextmanager
def pretend_cuda():
    """Within it there is one CUDA device; what it does is counted in the events that are given.

    Tensors that were made on it must not be used afterwards.
    """
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    patches = [(torch.cuda, name, value) for name, value in _CUDA.items()]
    patches += [(torch, "Generator", _Generator), (torch.Tensor, "pin_memory", lambda self, *_: self)]
    with ExitStack() as stack:
        for patch in (*patches, (threading.Thread, "run", _pretend)):
            stack.enter_context(mock.patch.object(*patch))
        stack.enter_context(_modes())
        STATE.__init__()
        try:
            yield STATE.events
        finally:
            torch._C._set_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
