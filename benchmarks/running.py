"""What running many small runs costs beside training: ``dvc repro`` against ``pfl run`` with one and with two workers.

Every way gets a project of its own with the same runs, each a second of training on one thread, and brings all its
reports up to date. What training took is written down by the runs themselves; the rest of the time, per run, is the
overhead: with several workers, what remains of the wall time after all training has been shared out evenly among them.

    python benchmarks/running.py --runs 200
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
RATES = (0.1, 0.05, 0.02, 0.01, 0.005)
METHODS = ("local", "fedavg", "fedprox", "fedper")
RUNS_PER_SPEC = len(RATES) * len(METHODS)
WAYS = {"dvc repro": 1, "pfl run -j 1": 1, "pfl run -j 2": 2}

SPEC = """\
title: Seed {seed}
grid:
  base:
    dataset: digits
    partition: iid
    clients: 4
    seed: {seed}
    backbone: {{name: convnet, kernel: 3, padding: 1, channels: [4, 8], hidden: [32, 16]}}
    method: fedavg
    training: {{rounds: {rounds}, sample_rate: 1.0, local_epochs: 1, batch_size: 64, lr: 0.1}}
    evaluation: {{every: 5, window: 5, curve_every: 10}}
  axes:
    method: [{methods}]
    training.lr: [{rates}]
table: {{rows: [method], columns: [training.lr]}}
"""


def write_project(root: Path, runs: int, rounds: int) -> None:
    """Specs with `runs` runs in all, the first of them the default."""
    (root / "specs").mkdir(parents=True)
    for seed in range(runs // RUNS_PER_SPEC):
        text = SPEC.format(seed=seed, rounds=rounds, methods=", ".join(METHODS), rates=", ".join(map(str, RATES)))
        (root / "specs" / f"seed{seed:03d}.yaml").write_text(text)
    (root / "pyproject.toml").write_text('[tool.pfl]\ndefault = ["seed000"]\n')


def call(root: Path, *command: str) -> float:
    """Seconds that a command takes, which must succeed."""
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PFL_WORKERS": "1", "PFL_THREADS": "1", "PFL_DEVICE": "cpu"}
    started = time.perf_counter()
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return time.perf_counter() - started


def measure(root: Path, way: str, runs: int, rounds: int) -> dict[str, object]:
    """Make a project in `root` and bring it up to date in one of :data:`WAYS`."""
    write_project(root, runs, rounds)
    for command in ("setup", "compile"):
        call(root, "pfl", command)
    everything = "--all-pipelines" if way == "dvc repro" else "--all"
    seconds = call(root, *way.split(), everything)
    again = call(root, "dvc", "repro", "--all-pipelines")
    training = [json.loads(path.read_text())["seconds"] for path in (root / ".pfl/timings").glob("*.json")]
    reports = hashlib.sha256()
    for path in sorted((root / "reports").rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not name.startswith(
            ("reports/papers/", "reports/index.html")
        ):  # which only pfl run writes
            reports.update(name.encode() + path.read_bytes())
    overhead = (seconds - sum(training) / WAYS[way]) / runs
    return {
        "way": way,
        "runs": len(training),
        "seconds": round(seconds, 1),
        "training": round(sum(training), 1),
        "overhead": round(overhead, 3),
        "dvc_repro_after": round(again, 1),
        "reports": reports.hexdigest()[:12],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help=f"a multiple of {RUNS_PER_SPEC}")
    parser.add_argument("--rounds", type=int, default=16, help="of each run")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--out", type=Path, default=HERE / "running.csv")
    chosen = parser.parse_args()
    if chosen.runs < RUNS_PER_SPEC or chosen.runs % RUNS_PER_SPEC:
        parser.error(f"--runs must be a multiple of {RUNS_PER_SPEC}, got {chosen.runs}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    rows = []
    with tempfile.TemporaryDirectory(prefix="pfl-benchmark-") as folder:
        for way in chosen.ways:
            row = measure(Path(folder) / way.replace(" ", "-"), way, chosen.runs, chosen.rounds)
            if not rows:
                print("| " + " | ".join(row) + " |\n|---|" + "---:|" * (len(row) - 1))
            rows.append(row)
            print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
    with chosen.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len({row["reports"] for row in rows}) - 1  # all ways must give the same bytes


if __name__ == "__main__":
    sys.exit(main())
