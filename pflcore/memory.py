"""Memory: how much of the host's data and models may take, keeping what was freed, and what to call too little."""

from __future__ import annotations

import ctypes
import os

from pflcore.errors import UserError
from pflcore.variables import number_of

# What PyTorch has no class for: the second is of CUDA's own functions, as when a graph is made, the next of libraries.
_OUT_OF_MEMORY = (
    *("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
    "DefaultCPUAllocator: can't allocate memory",
)


class TooLittleMemory(UserError):
    """There is not enough memory, not even for the least. Where others share it, a later attempt may succeed."""


def is_memory(error: BaseException) -> bool:
    """Return whether a device or the host ran out of memory."""
    named = isinstance(error, (MemoryError, TooLittleMemory)) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in str(error) for words in _OUT_OF_MEMORY)


def memory_limit() -> int:
    """Return bytes: ``$PFL_MEMORY`` in GiB, or half of the machine's memory."""
    limit = number_of("GiB", "PFL_MEMORY")
    if limit is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return int(limit * 2**30)


def keep_freed_memory() -> None:
    """Let glibc keep what tensors freed, in this process and those forked from it; with other C libraries do nothing.

    By default it returns large blocks to the system at once, and the next step pays for the same pages again: that was
    a third of the time of a Transformer's forward pass.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt:
        for option in (-3, -1):  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
            mallopt(option, 1 << 30)
