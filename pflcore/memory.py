"""How much of the host's memory data and personal models may take before they go to disk."""

from __future__ import annotations

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
