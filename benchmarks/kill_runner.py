"""Whether a ``pfl run`` whose scheduler and workers are killed, again and again, ends as one that is left in peace.

A project of twelve runs on two federations is brought up to date once undisturbed and once killed at random instants
and started again each time: half of the kills hit all processes, half the scheduler alone, whose workers then have to
end by themselves. In the end the reports and artifacts must be the same to the byte, ``dvc status`` clean, and
``dvc repro`` must execute nothing.

    python benchmarks/kill_runner.py --kills 20      # a table; exit code 1 if anything differs
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

BIN = Path(sys.executable).parent
SPEC = """\
title: Killed again and again
grid:
  base:
    dataset: digits
    partition: {name: dirichlet, alpha: 0.5}
    clients: 4
    backbone: {name: convnet, kernel: 3, padding: 1, channels: [4, 8], hidden: [16]}
    method: fedavg
    training: {rounds: 40, sample_rate: 0.5, local_epochs: 1, batch_size: 32, lr: 0.05, momentum: 0.5}
    evaluation: {every: 5, window: 5, curve_every: 10}
  axes:
    method: [fedavg, fedper, local]
    training.lr: [0.1, 0.05]
    seed: [0, 1]
table: {rows: [method], columns: [training.lr], average_over: [seed]}
"""
# Files by which two projects are compared.
COMPARED = ("reports", "artifacts/runs", "artifacts/metrics")


def make(root: Path) -> None:
    """A project with the spec."""
    (root / "specs").mkdir(parents=True)
    (root / "specs/killed.yaml").write_text(SPEC)
    for command in ("setup", "compile"):
        subprocess.run([BIN / "pfl", command], cwd=root, check=True, stdout=subprocess.DEVNULL)


def start(root: Path) -> subprocess.Popen[str]:
    """``pfl run`` with two workers and frequent checkpoints."""
    return subprocess.Popen(
        [BIN / "pfl", "run", "-j", "2"],
        cwd=root,
        env={**os.environ, "PFL_CHECKPOINT_SECONDS": "0.2", "PFL_DEVICE": "cpu"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str], alone: bool) -> int:
    """Kill a scheduler, and unless `alone` all that it started. Returns how many processes it had."""
    with suppress(psutil.NoSuchProcess):
        others = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for other in [] if alone else others:
            with suppress(psutil.NoSuchProcess):
                other.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(others, timeout=10)
        if alive:
            raise RuntimeError(f"{len(alive)} workers outlived their scheduler by ten seconds")
        return len(others)
    return 0


def content(root: Path) -> dict[str, str]:
    """Path → hash of all that is compared."""
    files = [path for folder in COMPARED for path in (root / folder).rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def dvc(root: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    done = subprocess.run(
        [BIN / "dvc", *arguments],
        cwd=root,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout + done.stderr).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    chosen = parser.parse_args()
    rng, faults = random.Random(chosen.seed), []
    with tempfile.TemporaryDirectory(prefix="pfl-benchmark-") as folder:
        calm, root = Path(folder) / "calm", Path(folder) / "killed"
        make(calm)
        began = time.monotonic()
        process = start(calm)
        output, _ = process.communicate()
        whole = time.monotonic() - began
        if process.returncode:
            sys.exit(output)
        expected = content(calm)
        print(f"undisturbed: {whole:.1f} s, {len(expected)} files\n")
        print("| kill | after | whom | stages recorded |\n|---:|---:|---|---:|")
        hit = 0
        make(root)
        while hit < chosen.kills:
            process, wait, alone = start(root), rng.uniform(0.5, whole / 2), rng.random() < 0.5
            try:
                output, _ = process.communicate(timeout=wait)
            except subprocess.TimeoutExpired:
                processes = kill(process, alone)
                process.communicate()
                hit += 1
                whom = "the scheduler" if alone else f"all {processes + 1}"
                over = (
                    len(list((root / ".dvc/cache/runs").rglob("*/*/*"))) if (root / ".dvc/cache/runs").is_dir() else 0
                )
                print(f"| {hit} | {wait:.1f} s | {whom} | {over} |", flush=True)
                continue
            if process.returncode:
                sys.exit(output)
            faults += check(root, expected)
            print("|  | complete | | |", flush=True)
            shutil.rmtree(root)
            make(root)
        output, _ = start(root).communicate()
        faults += check(root, expected)
    print("\n" + ("\n".join(faults) or "no difference"))
    return 1 if faults else 0


def check(root: Path, expected: dict[str, str]) -> list[str]:
    """What is not as it should be."""
    found = content(root)
    faults = [
        f"FAULT: {name} differs" for name in sorted(found.keys() | expected) if found.get(name) != expected.get(name)
    ]
    status, again = dvc(root, "status"), dvc(root, "repro")
    if "up to date" not in status:
        faults.append(f"FAULT: dvc status: {status}")
    if "Running stage" in again or "up to date" not in again:
        faults.append(f"FAULT: dvc repro: {again}")
    left = [path.name for path in (root / ".pfl/finished").glob("*")]
    return faults + ([f"FAULT: notes are left: {left}"] if left else [])


if __name__ == "__main__":
    sys.exit(main())
