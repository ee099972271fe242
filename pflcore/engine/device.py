"""The device and the number of threads of a run."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pflcore.errors import UserError
from pflcore.memory import env_integer

# Pixels per image (or characters per text) up to which a step is too short to gain from several threads.
_SMALL_IMAGE = 16 * 16


def select_device(name: str = "auto") -> torch.device:
    """Return the device `name`; ``auto`` is CUDA or else the CPU. Raises :class:`UserError` if it cannot compute.

    A CUDA device becomes the current device, because streams and recordings use that one, and deterministic
    algorithms are selected, so that the same run gives the same bytes.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device("cuda:0" if name == "cuda" else name)
        if device.type == "meta":
            raise RuntimeError("it computes shapes and no numbers")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0][:100]  # some messages list all devices
        raise UserError(f"device {name[:100]!r} cannot be used ({reason}); use auto, cpu or cuda") from None
    if device.type == "cuda":
        torch.cuda.set_device(device)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Otherwise PyTorch fills new tensors with NaN before they are written: a debugging aid that takes time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return device


def device_name(device: torch.device) -> str:
    """Return the model of a GPU, or the vector instructions of a CPU, since the last bits of sums depend on them."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({torch.backends.cpu.get_cpu_capability()})"


def use_threads(device: torch.device, shape: tuple[int, ...]) -> None:
    """Set PyTorch's threads: ``$PFL_THREADS``, or one for small inputs, (channels, height, width) or (length,)."""
    small = device.type == "cpu" and math.prod(shape[-2:]) <= _SMALL_IMAGE
    if threads := env_integer("PFL_THREADS") or int(small):
        torch.set_num_threads(threads)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Use one thread on a CPU, like clients do, so that sums do not depend on the number of threads."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
