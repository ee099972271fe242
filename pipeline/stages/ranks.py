"""Training one run with several processes: ``$PFL_RANKS`` starts them, as ``torchrun`` would."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pflcore.variables import whole_number

FAULT = "PFL_RANKFAULT"  # in a process's environment: the file that takes the error it ends with


def ranks_wanted() -> int:
    """``$PFL_RANKS``, the processes that train one run together, or 1."""
    return whole_number("PFL_RANKS") or 1


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Run ``pfl stage`` with `arguments` in that many processes; the exit code of the first that fails, or 0.

    ``torchrun`` does the same, but answers a mistake of the user's with a page of its own.

    Raises:
        Exception: What the first process raised that ended with an error, of the same type where it can be pickled.
    """
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shared["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // ranks)))
    command = [sys.executable, "-m", "pipeline.stages.rank", *arguments]
    processes: list[subprocess.Popen[bytes]] = []
    with TemporaryDirectory() as faults:
        try:
            for rank in range(ranks):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), FAULT: f"{faults}/{rank}.fault"}
                processes.append(subprocess.Popen(command, env={**os.environ, **shared, **own}))
            waiting = list(processes)
            while waiting:
                for process in list(waiting):
                    try:
                        code = process.wait(timeout=0.1)
                    except subprocess.TimeoutExpired:
                        continue
                    waiting.remove(process)
                    if code:  # the others would wait for it forever
                        if all((one.poll() or 0) >= 0 for one in processes):
                            _raise_first(Path(faults))
                        return code if code > 0 else 128 - code
            return 0
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _raise_first(faults: Path) -> None:
    """Raise the first error that a process left, if any did; others' may have come of it."""
    left = sorted(faults.glob("*.fault"), key=lambda path: path.stat().st_mtime_ns)
    if left:
        raise pickle.loads(left[0].read_bytes())  # noqa: S301


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
