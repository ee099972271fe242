"""The final state of a run that saved no weights, as far as this machine keeps it for longer runs (``.pfl/kept``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pflcore.engine import KeptStates, device_name, select_device
from pflcore.groups import Tensors
from pflcore.method import below, under
from pflcore.room import Room
from pipeline.library.found import Found
from pipeline.spec.run import Run
from pipeline.stages.lineage import Lineage
from pipeline.workspace import run_path


def kept_state(found: Found, run: Run, resolved: Run, facts: Mapping[str, Any], rounds: int) -> Tensors | None:
    """It, named as saved weights are, or None when it is not kept or was made on another kind of device.

    Args:
        resolved: The run with what was chosen for it.
        facts: Of its ``rounds.parquet``.
        rounds: How many it has trained.
    """
    room = Room.of(found.workspace.private)
    if not room.limit or (device := _device(facts)) is None:
        return None
    stage = found.recorded.makers[run_path(run.id, "rounds.parquet")]
    code = {dep: found.compilation.files[dep] for dep in stage.deps if dep.startswith("stages/code/")}
    data = {name: str(facts[name]) for name in ("dataset_hash", "partition_hash")}
    lineage = Lineage.of(resolved, code, data, device)
    kept = KeptStates(room, lineage.training, lineage.measuring, lambda line: None)
    state = next(kept.way(rounds, (), (), lambda tensors: ""), None)
    if state is None or state.round != rounds:
        return None
    server, extra = below("server/shared/", state.tensors), below("server/extra/", state.tensors)
    personal = below("personal/", state.tensors)
    own = {f"client.{name.replace('/', '.', 1)}": tensor for name, tensor in personal.items()}
    return {**server, **own, **under("server.", extra)}


def _device(facts: Mapping[str, Any]) -> torch.device | None:
    """The device here that is of the kind on which a run was trained."""
    devices = [torch.device("cpu"), *([select_device("cuda")] if torch.cuda.is_available() else [])]
    return next((one for one in devices if device_name(one) == facts["device"]), None)
