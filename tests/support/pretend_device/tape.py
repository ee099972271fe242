"""What a CUDA graph holds: operations that are executed again, in the same memory and with the same numbers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Stale(RuntimeError):
    """A graph computes with what is no longer so."""


class Step(NamedTuple):
    """An operation, its arguments, what it made, and who asked for it."""

    func: Any
    args: Any
    kwargs: Any
    made: Any
    at: str


class Tape:
    """The operations of a capture.

    As in CUDA, memory from before the capture is not kept alive, and numbers on the host stay what they were.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._own: dict[int, Tensor] = {}
        self._baked: dict[int, Tensor] = {}

    def own(self, tensor: Tensor) -> None:
        """Keep a tensor that the capture makes."""
        self._own[id(tensor)] = tensor

    def bake(self, tensor: Tensor) -> Tensor:
        """A tensor on the host, as it is now."""
        copy = tensor.clone()
        self._baked[id(copy)] = copy
        return copy

    def add(self, func: Any, args: Any, kwargs: Any, made: Any, at: str) -> None:
        self.steps.append(Step(func, *mapped(self._weak, (args, kwargs)), made, at))

    def _weak(self, leaf: Any) -> Any:
        ours = id(leaf) in self._own or id(leaf) in self._baked
        return weakref.ref(leaf) if isinstance(leaf, Tensor) and not ours else leaf

    def replay(self) -> None:
        """Execute everything again. Raises :class:`Stale` where memory is read that is gone."""
        for step in self.steps:
            args, kwargs = mapped(lambda leaf, at=step.at: _alive(leaf, at), (step.args, step.kwargs))
            made = step.func(*args, **kwargs)
            for kept, new in zip(tensors_of(step.made), tensors_of(made), strict=True):
                if kept.data_ptr() != new.data_ptr():
                    kept.copy_(new)

    def compare(self, now: Tape) -> None:
        """Raises :class:`Stale` where `now`, a later capture of the same function, has other operations or numbers.

        What this one has behind them, such as copies of the outputs, is its own affair.
        """
        for then, current in zip(self.steps, now.steps, strict=False):
            old, new = ([then.func, *self._numbers(then)], [current.func, *now._numbers(current)])
            if old != new:
                raise Stale(f"a graph has {_shown(old)} where a call has {_shown(new)}, at {current.at}")
        if len(self.steps) < len(now.steps):
            raise Stale(f"a graph has {len(self.steps)} operations where a call has {len(now.steps)}")

    def _numbers(self, step: Step) -> list[Any]:
        """What an operation gets beside memory."""
        leaves = leaves_of((step.args, step.kwargs))
        numbers = [self._baked[id(leaf)].tolist() if id(leaf) in self._baked else leaf for leaf in leaves]
        return [leaf for leaf in numbers if not isinstance(leaf, Tensor | weakref.ref | torch.Generator)]


def _alive(leaf: Any, at: str) -> Any:
    if not isinstance(leaf, weakref.ref):
        return leaf
    if (found := leaf()) is None:
        raise Stale(f"a graph reads memory that has been given back, at {at}")
    return found


def _shown(operation: list[Any]) -> str:
    return f"{operation[0]}({', '.join(map(str, operation[1:]))})"


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with the function applied to its leaves; PyTorch's own takes ten times as long."""
    if isinstance(tree, tuple | list):
        return type(tree)([mapped(function, child) for child in tree])
    if isinstance(tree, dict):
        return {name: mapped(function, child) for name, child in tree.items()}
    return function(tree)


def leaves_of(tree: Any) -> Iterator[Any]:
    if isinstance(tree, tuple | list | dict):
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves_of(child)
    else:
        yield tree


def tensors_of(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in leaves_of(tree) if isinstance(leaf, Tensor))
