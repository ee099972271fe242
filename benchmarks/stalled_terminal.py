"""Whether ``pfl run`` goes on while its terminal is stopped: when its runs began and ended, and what of it was then.

Ten runs of some seconds are trained, two at a time, on a pseudo-terminal. After a while the terminal stops for two
minutes, in one of two ways: nobody reads, as with a dead ssh, until its buffer is full; or Ctrl-S is typed, with
somebody who reads on, and Ctrl-Q in the end. The table is made from what ``pfl status`` is made from.

    python benchmarks/stalled_terminal.py --how unread
    python benchmarks/stalled_terminal.py --how ctrl-s
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import suppress
from pathlib import Path

BIN = Path(sys.executable).parent
SPEC = """\
title: Stalled
grid:
  base:
    dataset: digits
    partition: {{name: dirichlet, alpha: 0.5}}
    clients: 4
    backbone: {{name: convnet, kernel: 3, padding: 1, channels: [4, 8], hidden: [16]}}
    training: {{rounds: {rounds}, sample_rate: 0.5, local_epochs: 1, batch_size: 32, lr: 0.05}}
    evaluation: {{every: 5, window: 5, curve_every: 10}}
  axes:
    method: [fedavg, fedper]
    seed: [0, 1, 2, 3, 4]
table: {{rows: [method], average_over: [seed]}}
"""
XOFF, XON = b"\x13", b"\x11"


def read(terminal: int, seconds: float) -> bool:
    """Be the reader of a terminal for a time. False when nobody writes to it any more."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                os.read(terminal, 65536)
            except OSError:
                return False
    return True


def start(root: Path) -> tuple[subprocess.Popen[bytes], int]:
    """``pfl run -j 2`` on a terminal with flow control."""
    terminal, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 120))
    variables = {"PFL_DEVICE": "cpu", "PFL_THREADS": "1", "PFL_WORKERS": "1", "TERM": "xterm"}
    process = subprocess.Popen(
        [BIN / "pfl", "run", "-j", "2"],
        cwd=root,
        env={**os.environ, **variables},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    return process, terminal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", choices=["unread", "ctrl-s"], default="unread")
    parser.add_argument("--after", type=float, default=30.0, help="seconds until the terminal stops")
    parser.add_argument("--stop", type=float, default=120.0, help="seconds that it stops")
    parser.add_argument("--rounds", type=int, default=400, help="of each run")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pfl-benchmark-") as folder:
        root = Path(folder)
        (root / "specs").mkdir()
        (root / "specs/stalled.yaml").write_text(SPEC.format(rounds=chosen.rounds))
        subprocess.run([BIN / "pfl", "setup"], cwd=root, check=True, stdout=subprocess.DEVNULL)
        process, terminal = start(root)
        read(terminal, chosen.after)
        stopped = time.time()
        if chosen.how == "unread":
            time.sleep(chosen.stop)
        else:
            os.write(terminal, XOFF)
            read(terminal, chosen.stop)
        resumed = time.time()
        with suppress(OSError):
            os.write(terminal, XON)
        while read(terminal, 1.0):
            pass
        code = process.wait()
        board = json.loads((root / ".pfl/run.json").read_text())
    zero, end = board["began"], board["ended"]
    print(
        f"exit code {code}; the terminal stopped from {stopped - zero:.0f} s to {resumed - zero:.0f} s ({chosen.how})\n"
    )
    print("| run | began | ended | began while it stopped | ended while it stopped |\n|---|---:|---:|---|---|")
    runs = [entry for entry in board["entries"] if entry["kind"] == "train"]
    for entry in sorted(runs, key=lambda entry: entry["began"]):
        times = entry["began"], entry["began"] + entry["seconds"]
        during = " | ".join("yes" if stopped < moment < resumed else "" for moment in times)
        print(f"| {entry['subject']} | {times[0] - zero:.0f} s | {times[1] - zero:.0f} s | {during} |")
    print(f"\nall of it ended after {end - zero:.0f} s")


if __name__ == "__main__":
    main()
