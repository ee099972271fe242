"""Many runs: a study that is planned, compiled, executed and reported, and looked at all along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from growing.grown import Grown, memory

from pipeline.running.board import Board, status_path
from pipeline.workspace import Workspace

BIN = Path(sys.executable).parent
RUNS_PER_SPEC = 100

STUDY = """\
title: Study {number}
grid:
  base:
    dataset: digits
    partition: iid
    clients: 4
    backbone: {{name: convnet, kernel: 3, padding: 1, channels: [2, 2], hidden: [4, 4]}}
    training: {{rounds: 1, sample_rate: 0.5, local_epochs: 1, batch_size: 256}}
    evaluation: {{every: 1, window: 0, curve_every: 0}}
    seed: {number}
  axes:
    method: [local, fedavg, fedprox, fedper]
    training.lr: [{rates}]
table: {{rows: [training.lr], columns: [method], metric: final}}
"""


def study(count: int, folder: Path, planned: int) -> list[Grown]:
    """A study of so many runs, of which more are planned and compiled than executed."""
    results = [Grown("ms per run to compile", 1.2), Grown("ms per run to plan", 1.2)]
    for share in (0.1, 0.2, 0.5, 1.0):
        runs = max(round(share * planned / RUNS_PER_SPEC), 1) * RUNS_PER_SPEC
        root = folder / f"planned-{runs}"
        write_study(root, runs)
        call(root, "pfl", "compile")  # the code's modules are parsed once
        shutil.rmtree(root / "stages")
        for grown, command in zip(results, (["compile"], ["plan", "--all"]), strict=True):
            grown.add(runs, 1000 * call(root, "pfl", *command) / runs)
        shutil.rmtree(root)
    root = folder / "executed"
    write_study(root, count)
    call(root, "pfl", "compile")
    results += executed(root)
    reported = call(root, "pfl", "report")
    print(f"{count} runs executed; pfl report afterwards: {1000 * reported / count:.1f} ms per run")
    return results


def executed(root: Path) -> list[Grown]:
    """Execute all runs of a study, looking at it all along."""
    speed, resident = Grown("s per run to execute", 1.5), Grown("resident MiB of the scheduler", 1.3)
    status = Grown("s for pfl status", 1.5)
    with (root / "log").open("w") as log:
        process = subprocess.Popen([BIN / "pfl", "run", "--all", "-j", "2"], cwd=root, env=_variables(), stderr=log,
                                   stdout=log)  # fmt: skip
        began, before = 0.0, 0
        while process.poll() is None:
            time.sleep(5)
            try:
                board = Board.load(status_path(Workspace.find(root)))
                here = memory(process.pid)
            except (OSError, ValueError):
                continue
            done = sum(entry.state == "done" for entry in board.of_kind("train")) if board else 0
            total = len(board.of_kind("train")) if board else 0
            if done - before >= max(total // 30, 1):
                now = time.monotonic()
                if began:
                    speed.add(done, (now - began) / (done - before))
                    resident.add(done, here)
                status.add(done, call(root, "pfl", "status"))
                began, before = time.monotonic(), done
    if process.returncode:
        sys.exit((root / "log").read_text()[-2000:])
    return [speed, resident, status]


def write_study(root: Path, runs: int) -> None:
    """Specs with a hundred runs each."""
    (root / "specs").mkdir(parents=True)
    rates = ", ".join(f"{0.002 * step:.3f}" for step in range(1, RUNS_PER_SPEC // 4 + 1))
    for number in range(runs // RUNS_PER_SPEC):
        (root / f"specs/study{number:03d}.yaml").write_text(STUDY.format(number=number, rates=rates))
    names = ", ".join(f'"study{number:03d}"' for number in range(runs // RUNS_PER_SPEC))
    (root / "pyproject.toml").write_text(f"[tool.pfl]\ndefault = [{names}]\n")
    call(root, "pfl", "setup")


def call(root: Path, *command: str) -> float:
    """Seconds that a command takes, which must succeed."""
    started = time.perf_counter()
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=root, env=_variables(), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return time.perf_counter() - started


def _variables() -> dict[str, str]:
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PFL_WORKERS": "1", "PFL_THREADS": "1", "PFL_DEVICE": "cpu", "PFL_KEEP": "0"}
