"""Recording on a CPU: what of ``torch.cuda`` the engine records with, on a tape of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


@dataclass
class Graph:
    """The operations of a capture, which are done again, into the tensors that they first wrote."""

    tape: list[tuple[Callable[..., Any], Any, Any, Any]] = field(default_factory=list)

    def replay(self) -> None:
        for operation, arguments, options, made in self.tape:
            again = operation(*arguments, **options)
            for old, new in zip(leaves(made), leaves(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def leaves(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map_only(Tensor, found.append, tree)
    return found


class Tape(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        made = operation(*arguments, **(options or {}))
        self.graph.tape.append((operation, arguments, options or {}, made))
        return made


class Stream:
    def wait_stream(self, other: Any) -> None:
        pass


@dataclass
class Recorded:
    """What was asked of ``torch.cuda``, and what its captures raise.

    Attributes:
        captures: The arguments of each capture.
        streams: How many streams were made.
        current: The stream in use.
        failures: Raised at the ends of the captures to come.
    """

    captures: list[dict[str, Any]] = field(default_factory=list)
    streams: int = 0
    pools: int = 0
    current: Any = "main"
    failures: list[Exception] = field(default_factory=list)


def record_on_tape(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Let ``torch.cuda``'s graphs be tapes."""
    seen = Recorded()

    def new_stream(*_: Any) -> Stream:
        seen.streams += 1
        return Stream()

    def new_pool() -> tuple[int, int]:
        seen.pools += 1
        return 0, seen.pools

    @contextmanager
    def capture(graph: Graph, **options: Any) -> Iterator[None]:
        seen.captures.append(options)
        seen.current = options["stream"]
        try:
            with Tape(graph):
                yield
        finally:
            if seen.failures:  # as PyTorch, which then does not go back to the stream before
                raise seen.failures.pop(0)
        seen.current = "main"

    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "Stream", new_stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: seen.current if seen.current != "main" else Stream())
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(seen, "current", "main"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", new_pool)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return seen
