"""What a run's states belong to: the run, and its lineage, the runs that differ in their number of rounds only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pflcore.engine import CheckpointFolder, device_name
from pflcore.method import PROGRESS
from pflcore.methods import METHODS
from pipeline.spec.run import Run


def checkpoint_folder(
    run: Run,
    run_id: str,
    private: Path,
    code: str,
    hashes: Mapping[str, str],
    device: torch.device,
    say: Callable[[str], None],
) -> CheckpointFolder:
    """Return where a run keeps its checkpoints, and where it finds the last ones of shorter runs."""
    whole, lineage = run_hash(run, code, hashes, device), lineage_hash(run, code, hashes, device)
    folder = private / "checkpoints" / f"{run_id}-{whole[:8]}"
    return CheckpointFolder(folder, whole, say, lineage, private / "states" / lineage[:16])


def run_hash(run: Run, code: str, hashes: Mapping[str, str], device: torch.device) -> str:
    """Return what tells a run's state apart: its record, code and data, and the kind of device, as sums differ there.

    Args:
        code: What stands for the code.
        hashes: What tells the inputs apart.
    """
    return _hash(record=run.record, code=code, device=device.type, **hashes)


def lineage_hash(run: Run, code: str, hashes: Mapping[str, str], device: torch.device) -> str:
    """Return what the states of a run and of longer ones have in common.

    That is all that a run's own hash is of, but the number of rounds, unless the method asks for the progress or the
    learning rate goes by it; the patience; whether weights are saved; and why it has its settings. As last states stay
    for long, it is of the very device and the version of PyTorch, too.
    """
    aside = {"rounds", "patience", "save_weights"}
    if PROGRESS in METHODS.get(run.method).facts or run.training.counts_rounds:
        aside.remove("rounds")
    record = {field: part for field, part in run.record.items() if field != "tuned"}
    record["training"] = {name: value for name, value in record["training"].items() if name not in aside}
    kind = f"{device_name(device)}, torch {torch.__version__}"
    return _hash(record=record, code=code, device=kind, **hashes)


def _hash(**facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
