"""Room for addresses (``ulimit -v``): libraries for arithmetic need gigabytes of it, whatever they use of them.

Where there is too little they do not fail: OpenBLAS asks again for ever, in a process that none of its threads can end.
"""

from __future__ import annotations

import sys

from pflcore.errors import UserError

LEAST = 15 * 2**28  # bytes; a worker was seen to map 4.8 GiB where it could, to work with 3.8, and to hang with 2.5


def check_address_space() -> None:
    """Raises :class:`UserError` when this process may not map enough to train, nor those that it starts."""
    if sys.platform == "win32":
        return
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < LEAST:
        raise UserError(
            f"the address space of processes is limited to {limit / 2**30:.1f} GiB (ulimit -v), and one that trains "
            f"maps {LEAST / 2**30:.1f} GiB of libraries and stacks; type `ulimit -v unlimited`, and limit "
            "memory by a control group"
        )
