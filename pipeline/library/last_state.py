"""The last checkpoint of a run that saved no weights, as long as this machine has it (``.pfl/states``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pflcore.engine import device_name, select_device
from pflcore.engine.checkpoint import Checkpoint
from pipeline.library.found import Found
from pipeline.spec.run import Run
from pipeline.stages.identity import checkpoint_folder
from pipeline.workspace import run_path


def last_state(found: Found, run: Run, resolved: Run, facts: Mapping[str, Any], rounds: int) -> Checkpoint | None:
    """Return it, or None when it is not there or was made on another kind of device.

    Args:
        resolved: The run with what was chosen for it.
        facts: Of its ``rounds.parquet``.
        rounds: How many it has trained.
    """
    if (device := _device(facts)) is None:
        return None
    stage = found.recorded.makers[run_path(run.id, "rounds.parquet")]
    hashes = {name: str(facts[name]) for name in ("dataset_hash", "partition_hash")}
    private = found.workspace.private
    checkpoints = checkpoint_folder(resolved, run.id, private, stage.seal, hashes, device, lambda line: None)
    return checkpoints.earlier(lambda tensors: "", lambda one: one.round == rounds)


def _device(facts: Mapping[str, Any]) -> torch.device | None:
    """The device here that is of the kind on which a run was trained."""
    devices = [torch.device("cpu"), *([select_device("cuda")] if torch.cuda.is_available() else [])]
    return next((one for one in devices if device_name(one) == facts["device"]), None)
