"""How long training took, as the train stage leaves it in this machine's own folder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pflcore.json_text import parse_json


@dataclass(frozen=True)
class Timing:
    """Of one training on this machine.

    Attributes:
        seconds: What it took, from where it resumed.
        device: On what.
        rounds: That were trained in them.
    """

    seconds: float
    device: str
    rounds: int


def read_timing(path: Path) -> Timing | None:
    """A timing; None when there is none that can be read, since nothing depends on it but words."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        timing = Timing(float(content["seconds"]), str(content["device"]), int(content["rounds"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return timing if math.isfinite(timing.seconds) and timing.seconds >= 0 and timing.rounds >= 0 else None
