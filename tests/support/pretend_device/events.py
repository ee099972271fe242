"""What the pretend GPU was asked to do, and which line of this project asked."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

_ROOT = Path(__file__).resolve().parents[3]
_HERE = Path(__file__).resolve().parent

Events = Counter[str]
"""How often there were ``kernels`` that were launched one by one, ``replays`` of a whole graph, ``uploads`` and
``downloads``, which are copies from the host and to it, and other ``waits`` for the device."""


def place() -> str:
    """Return the innermost line of this project that is being executed: ``FILE:LINE``, relative to the repository."""
    for each in _outwards(sys._getframe(1)):
        # A function mode stands between whoever asks and PyTorch.
        if each.f_code.co_name != "__torch_function__" and (name := _ours(each.f_code.co_filename)):
            return f"{name}:{each.f_lineno}"
    return "?"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame:
        yield frame
        frame = frame.f_back


@cache
def _ours(filename: str) -> str:
    path = Path(filename)
    if not path.is_relative_to(_ROOT) or path.is_relative_to(_HERE):
        return ""
    relative = path.relative_to(_ROOT)
    return str(relative) if relative.parts[0] in ("pflcore", "pipeline", "tests") else ""
