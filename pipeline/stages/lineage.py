"""What a run's states belong to: to the run, and to its lineage, the runs that train alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pflcore.engine import device_name
from pflcore.method import PROGRESS
from pflcore.methods import METHODS
from pflcore.options import describe_options
from pipeline.spec.run import LISTS, SETTINGS, Run

# How fingerprints of code begin that only runs when a run has been trained.
_AFTER_TRAINING = tuple(f"{kind}." for kind in LISTS.values())


@dataclass(frozen=True)
class Lineage:
    """Hashes that tell to whom a state belongs.

    Attributes:
        run: The run: its record, code and data, and the kind of device, as sums differ there. For its checkpoints.
        training: What its states depend on. Not how many rounds there are, unless the method asks for the progress or
            the learning rate goes by it, nor how long one waits for better ones, nor what acts in measuring alone, nor
            analyses; but, as states are kept for long, also the very device and the version of PyTorch.
        measuring: What its measurements depend on beside that.
    """

    run: str
    training: str
    measuring: str

    @classmethod
    def of(cls, run: Run, code: Mapping[str, str], data: Mapping[str, str], device: torch.device) -> Lineage:
        """Of a run.

        Args:
            code: Fingerprints, by the path of their file.
            data: What tells the inputs apart.
        """
        trained, measured = _split(run)
        acting = [text for path, text in code.items() if not Path(path).name.startswith(_AFTER_TRAINING)]
        return cls(
            run=_hash(record=run.record, code="".join(code.values()), device=device.type, **data),
            training=_hash(record=trained, code="".join(acting), device=_kind(device), **data),
            measuring=_hash(**measured),
        )


def _split(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """A record without what only measuring depends on, and without why it has its settings; and of the former the
    options of the method."""
    method = METHODS.get(run.method)
    trained = {field: part for field, part in run.record.items() if field not in (*LISTS, "tuned")}
    measured: dict[str, dict[str, Any]] = {}
    for field, cls in {"method": method, **SETTINGS}.items():
        aside = {option.name for option in describe_options(cls) if option.measuring}
        if field == "training":
            by_progress = PROGRESS in method.facts or run.training.counts_rounds
            aside |= {"patience"} if by_progress else {"patience", "rounds"}
        trained[field] = {name: value for name, value in run.record[field].items() if name not in aside}
        measured[field] = {name: value for name, value in run.record[field].items() if name in aside}
    return trained, measured["method"]


def _kind(device: torch.device) -> str:
    """What computes, as far as it changes the last bits of sums."""
    return f"{device_name(device)}, torch {torch.__version__}"


def _hash(**facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
