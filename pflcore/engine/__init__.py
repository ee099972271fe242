"""The training engine: the round loop, executors of local training, evaluation, and checkpoints."""

from pflcore.engine.checkpoint import CheckpointFolder
from pflcore.engine.device import device_name, select_device, use_threads
from pflcore.engine.loop import Progress, train
from pflcore.engine.result import Result

__all__ = ["CheckpointFolder", "Progress", "Result", "device_name", "select_device", "train", "use_threads"]
