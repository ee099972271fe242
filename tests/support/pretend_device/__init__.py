"""A GPU without a GPU: the path for CUDA runs on it, what CUDA refuses is refused, and what costs time is counted."""

from support.pretend_device.checked import CheckedReplay
from support.pretend_device.cuda import pretend_cuda
from support.pretend_device.events import Events
from support.pretend_device.tape import Stale
from support.pretend_device.tensors import MixedDevices, NotCapturable

__all__ = [
    "CheckedReplay",
    "Events",
    "MixedDevices",
    "NotCapturable",
    "Stale",
    "pretend_cuda",
]
