"""Of several processes that train one run together, which one this is, by the conventions of ``torchrun``."""

from __future__ import annotations

import os

from pflcore.errors import UserError


def is_launched() -> bool:
    """Whether ``torchrun``, or another launcher with its conventions, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def is_first() -> bool:
    """Whether this process writes what all of them have computed."""
    return not is_launched() or os.environ.get("RANK") == "0"


def local_rank() -> int:
    """The number of this process on its machine, which is the number of its GPU. Raises :class:`UserError`."""
    told = os.environ.get("LOCAL_RANK", "0")
    if not (told.isascii() and told.isdecimal() and len(told) < 5):
        raise UserError(f"LOCAL_RANK is {told[:40]!r}, no process's number; a launcher such as torchrun sets it")
    return int(told)
