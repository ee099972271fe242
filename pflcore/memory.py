"""Limits of the machine: numbers in environment variables, the memory limit, and errors for lack of memory."""

import ctypes
import os
import re

from pflcore.errors import UserError

# Messages without an error class in PyTorch; "CUDA error" comes from CUDA itself (graphs), STATUS from libraries.
_OUT_OF_MEMORY = re.compile(
    "CUDA (error: )?out of memory|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|DefaultCPUAllocator: can't allocate memory"
)


def env_integer(variable: str) -> int | None:
    """Return an environment variable, or None if it is not set. Raises :class:`UserError` if it is not 1 to 9999."""
    text = os.environ.get(variable, "")
    if text and not re.fullmatch("[1-9][0-9]{0,3}", text):
        raise UserError(f"{variable} = {text!r} must be a whole number from 1 to 9999")
    return int(text) if text else None


def worker_count() -> int:
    """Return ``$PFL_WORKERS``, or the number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return env_integer("PFL_WORKERS") or cores


def env_number(unit: str, variable: str) -> float | None:
    """Return an environment variable, or None if it is not set. Raises :class:`UserError` if it is not 0 to 10¹²."""
    if not (text := os.environ.get(variable)):
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e12:
        raise UserError(f"{variable} = {text!r} must be a number of {unit}, 0 or more")
    return number


class TooLittleMemory(UserError):
    """Memory does not suffice even for the smallest unit of work. A later attempt may succeed if others share it."""


def is_memory_error(error: BaseException) -> bool:
    """Return whether an error says that a device or the host ran out of memory."""
    if isinstance(error, (MemoryError, TooLittleMemory)) or type(error).__name__ == "OutOfMemoryError":
        return True
    return bool(_OUT_OF_MEMORY.search(str(error)))


def memory_limit() -> int:
    """Return the memory limit in bytes: ``$PFL_MEMORY`` (GiB), or half of the machine's memory."""
    limit = env_number("GiB", "PFL_MEMORY")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total // 2 if limit is None else int(limit * 2**30)


def keep_freed_memory() -> None:
    """Let glibc keep memory that tensors free, in this process and its forks; with other C libraries do nothing.

    Otherwise each step asks for the same pages again, which takes a third of the time of a Transformer's forward pass.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt:
        for option in (-3, -1):  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
            mallopt(option, 1 << 30)
