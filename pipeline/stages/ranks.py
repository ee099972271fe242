"""Training one run with several processes: ``$PFL_RANKS`` starts them, as ``torchrun`` would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from pflcore.errors import UserError


def ranks_wanted() -> int:
    """``$PFL_RANKS``, the processes that train one run together, or 1."""
    wanted = os.environ.get("PFL_RANKS") or "1"
    if not (wanted.isascii() and wanted.isdecimal() and int(wanted) > 0):
        raise UserError(f"PFL_RANKS = {wanted!r} must be a whole number of at least 1")
    return int(wanted)


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Run ``pfl`` with `arguments` in that many processes; the exit code of the first that fails, or 0.

    ``torchrun`` does the same, but answers a mistake of the user's with a page of its own.
    """
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shared["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // ranks)))
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    processes = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        waiting = list(processes)
        while waiting:
            for process in list(waiting):
                try:
                    code = process.wait(timeout=0.1)
                except subprocess.TimeoutExpired:
                    continue
                waiting.remove(process)
                if code:  # the others would wait for it forever
                    return code if code > 0 else 128 - code
        return 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
