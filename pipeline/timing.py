"""How long training took, as the train stage leaves it in this machine's own folder; durations in words."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Timing:
    """Of one training on this machine."""

    seconds: float  # from where it resumed
    device: str
    rounds: int  # trained in these seconds
    core_seconds: float | None = None  # of work of cores, whatever else the machine does; None on an accelerator
    machine: str = ""  # see :func:`pipeline.stages.identity.describe_machine`; "" where not known


def read_timing(path: Path) -> Timing | None:
    """Return a timing; None when there is none that can be read, since nothing depends on it but words."""
    try:
        timing = Timing(**json.loads(path.read_text(encoding="utf-8")))
        numbers = (timing.seconds, timing.rounds, timing.core_seconds or 0.0)
        sensible = all(math.isfinite(number) and number >= 0 for number in numbers)
    except (OSError, ValueError, TypeError, OverflowError):  # the last of a whole number beyond all floats
        return None
    return timing if sensible else None


def duration(seconds: float) -> str:
    """Return seconds in words: ``42 s``, ``3:07 min``, ``2:05 h``, ``3 d 4 h``."""
    whole = round(seconds)
    if whole < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    if whole < 48 * 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
