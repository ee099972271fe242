"""How long training took, as the train stage leaves it in this machine's own folder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pflcore.files import parse_json


@dataclass(frozen=True)
class Timing:
    """Of one training on this machine.

    Attributes:
        seconds: What it took, from where it resumed.
        rounds: That were trained in them.
        core_seconds: For how long cores worked for it, which does not depend on what else the machine does; None on an
            accelerator.
        machine: Of which machine (:func:`pipeline.stages.identity.describe_machine`); "" where not known.
    """

    seconds: float
    device: str
    rounds: int
    core_seconds: float | None = None
    machine: str = ""


def read_timing(path: Path) -> Timing | None:
    """Return a timing; None when there is none that can be read, since nothing depends on it but words."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        cores = None if content.get("core_seconds") is None else float(content["core_seconds"])
        rounds, machine = int(content["rounds"]), str(content.get("machine", ""))
        timing = Timing(float(content["seconds"]), str(content["device"]), rounds, cores, machine)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    possible = rounds >= 0 and all(math.isfinite(one) and one >= 0 for one in (timing.seconds, cores or 0.0))
    return timing if possible else None
