"""The host's memory: how much of it data and personal models may take, and keeping what was freed for the next use."""

from __future__ import annotations

import ctypes
import os

from pflcore.errors import UserError


def memory_limit() -> int:
    """Bytes: ``$PFL_MEMORY`` in GiB, or half of the machine's memory."""
    wanted = os.environ.get("PFL_MEMORY")
    if not wanted:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        limit = float(wanted)
    except ValueError:
        limit = float("nan")
    if not 0 <= limit < float("inf"):
        raise UserError(f"PFL_MEMORY = {wanted!r} must be a number of GiB, 0 or more")
    return int(limit * 2**30)


def keep_freed_memory() -> None:
    """Let glibc keep what tensors freed, in this process and those forked from it; with other C libraries do nothing.

    By default it returns large blocks to the system at once, and the next step pays for the same pages again: that was
    a third of the time of a Transformer's forward pass.
    """
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt:
        for option in (mmap_threshold, trim_threshold):
            mallopt(option, 1 << 30)
