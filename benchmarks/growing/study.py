"""Many runs: a study that is planned, compiled, executed and reported, and looked at all along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from growing.grown import Grown, computed, memory
from growing.scheduled import scheduled

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
    """A study of so many runs; more are planned, compiled, and gone through by a scheduler that trains nothing."""
    results = [Grown("ms per run to compile", 1.5), Grown("ms per run to plan", 1.5)]
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
    results += scheduled(planned, folder)
    reported = call(root, "pfl", "report")
    print(f"{count} runs executed; pfl report afterwards: {1000 * reported / count:.1f} ms per run")
    return results


def executed(root: Path) -> list[Grown]:
    """Execute all runs of a study, looking at it all along."""
    speed, resident = Grown("ms of pfl run per run", 2.0), Grown("resident MiB of pfl run", 1.3)
    status = Grown("s of pfl status", 2.0)
    with (root / "log").open("w") as log:
        process = subprocess.Popen(
            [BIN / "pfl", "run", "--all", "-j", "2"], cwd=root, env=_variables(), stdout=log, stderr=log
        )
        before, spent = 0, 0.0
        while process.poll() is None:
            time.sleep(2)
            try:
                board = Board.load(status_path(Workspace.find(root)))
                here, now = memory(process.pid), computed(process.pid)
            except (OSError, ValueError):
                continue
            runs = [entry.state for entry in board.of_kind("train")] if board else []
            done = runs.count("done")
            if done - before >= max(len(runs) // 30, 1):
                if before:
                    speed.add(done, 1000 * (now - spent) / (done - before))
                    resident.add(done, here)
                status.add(done, call(root, "pfl", "status"))
                before, spent = done, now
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
    """Seconds of a core that a command takes, which must succeed."""
    with (root / "said").open("w+") as said:
        process = subprocess.Popen(
            [BIN / command[0], *command[1:]], cwd=root, env=_variables(), stdout=said, stderr=said
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{(root / 'said').read_text()[-2000:]}")
    return usage.ru_utime + usage.ru_stime


def _variables() -> dict[str, str]:
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PFL_WORKERS": "1", "PFL_THREADS": "1", "PFL_DEVICE": "cpu"}
