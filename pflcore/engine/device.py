"""Where and on how many threads a run computes."""

from __future__ import annotations

import math
import os

import torch

from pflcore.errors import UserError
from pflcore.variables import whole_number

# Pixels per image up to which a step is too short to be worth sharing between threads.
_SMALL_IMAGE = 16 * 16
_WORDS = 100  # characters of a message of PyTorch's, some of which list all that there is


def select_device(name: str = "auto") -> torch.device:
    """``auto`` is CUDA when there is one; otherwise any PyTorch device that computes.

    On CUDA the deterministic algorithms are chosen, so that the same run gives the same bytes, and the device becomes
    the current one: streams and recordings are of that, wherever tensors lie.

    Raises:
        UserError: There is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = "cuda:0"
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it computes shapes and no numbers")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0][:_WORDS]
        raise UserError(f"device {name[:_WORDS]!r} cannot be used ({reason}); use auto, cpu or cuda") from None
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # cuBLAS reads this when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Else whatever is about to be written is filled with NaN first, which is for finding mistakes and not free.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return device


def device_name(device: torch.device) -> str:
    """The model of a GPU; of a CPU the vector instructions that are used, as the last bits of sums depend on them."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({torch.backends.cpu.get_cpu_capability()})"


def use_threads(device: torch.device, shape: tuple[int, ...]) -> None:
    """Set PyTorch's threads: ``$PFL_THREADS``, or what suits inputs of `shape`.

    The shape is (channels, height, width) of an image or (length,) of a text. Raises as :func:`whole_number`.
    """
    if wanted := whole_number("PFL_THREADS"):
        torch.set_num_threads(wanted)
    elif device.type == "cpu" and math.prod(shape[-2:]) <= _SMALL_IMAGE:
        torch.set_num_threads(1)
