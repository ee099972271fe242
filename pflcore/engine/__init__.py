"""The training engine: the round loop, executors of local training, evaluation, and checkpoints."""

from pflcore.engine.checkpoint import CheckpointFolder
from pflcore.engine.device import select_device, use_threads
from pflcore.engine.loop import Progress, Result, train
from pflcore.engine.processes import is_first

__all__ = ["CheckpointFolder", "Progress", "Result", "is_first", "select_device", "train", "use_threads"]
