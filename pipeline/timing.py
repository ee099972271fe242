"""Duration of trainings, as the train stage writes it into this machine's private folder; durations in words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Timing:
    """Duration of one training on this machine, from the round where it resumed."""

    seconds: float
    device: str
    rounds: int  # trained in these seconds
    core_seconds: float | None = None  # CPU time, which does not depend on other load; None on an accelerator
    peak_mb: float | None = None  # most memory at once, in MiB; see :func:`pipeline.stages.train.peak_memory`
    machine: str = ""  # see :func:`pipeline.stages.identity.describe_machine`; "" if unknown


def read_timing(path: Path) -> Timing | None:
    """Return a timing, or None if the file is missing or damaged, since timings are only shown."""
    try:
        return Timing(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def duration(seconds: float) -> str:
    """Return seconds in words: ``42 s``, ``3:07 min``, ``2:05 h``, ``3 d 4 h``."""
    rounded = round(seconds)
    if rounded < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60}:{rounded % 60:02} min"
    if rounded < 48 * 3600:
        return f"{rounded // 3600}:{rounded % 3600 // 60:02} h"
    return f"{rounded // 86400} d {rounded % 86400 // 3600} h"
