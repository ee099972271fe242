"""Costs of the pipeline besides training: overhead of ``dvc repro`` and ``pfl run`` with many small runs.

    python benchmarks/pipeline.py --runs 40

Every command gets a separate project with the same runs, each half a second of training on one thread, and brings all
reports up to date. Runs record the duration of their training. The overhead is the rest of the time, per run; with
several workers it is the wall time minus the training time divided by the number of workers. A second table has the
time of stages with almost no work, each in a process of its own.
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
RATES = (0.1, 0.05, 0.02, 0.01, 0.005)
METHODS = ("local", "fedavg", "fedprox", "fedper")
# There is one spec per federation, with the runs of all methods at all rates.
RUNS_PER_SPEC = len(RATES) * len(METHODS)

SPEC = """\
title: Seed {seed}
grid:
  base:
    dataset: digits
    partition: iid
    clients: 4
    seed: {seed}
    backbone: {{name: convnet, kernel: 3, padding: 1, channels: {channels}, hidden: {hidden}}}
    method: fedavg
    training: {{rounds: {rounds}, sample_rate: 1.0, local_epochs: 1, batch_size: 64, lr: 0.1}}
    evaluation: {evaluation}
  axes:
    method: [{methods}]
    training.lr: [{rates}]
table: {{rows: [method], columns: [training.lr], metric: final}}
"""
NO_TRAINING = {"channels": "[2, 2]", "hidden": "[4, 4]", "rounds": 1, "evaluation": "{window: 0, curve_every: 0}"}
TRAINING = {"channels": "[4, 8]", "hidden": "[32, 16]", "rounds": 16, "evaluation": "{window: 5, curve_every: 10}"}
WAYS = {"dvc repro": 1, "pfl run -j 1": 1, "pfl run -j 2": 2}  # command → number of workers


def write_project(root: Path, runs: int, settings: dict[str, str]) -> None:
    """Write specs with `runs` runs in all; the first spec is the default."""
    (root / "specs").mkdir(parents=True)
    axes = {"methods": ", ".join(METHODS), "rates": ", ".join(map(str, RATES))}
    for seed in range(runs // RUNS_PER_SPEC):
        text = SPEC.format(seed=seed, **axes, **settings)
        (root / "specs" / f"seed{seed:03d}.yaml").write_text(text)
    (root / "pyproject.toml").write_text('[tool.pfl]\ndefault = ["seed000"]\n')


def run(root: Path, *command: str) -> float:
    """Run a command that must succeed; return its seconds."""
    environment = {**os.environ, "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}
    started = time.perf_counter()
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=root, env=environment, stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {done.returncode}")
    return time.perf_counter() - started


def measure_start(repeat: int) -> dict[str, float]:
    """Return the median seconds of stages with almost no work, and of the import of torch alone, interleaved."""
    with tempfile.TemporaryDirectory(prefix="pfl-benchmark-") as name:
        root = Path(name)
        write_project(root, RUNS_PER_SPEC, NO_TRAINING)
        for command in (("pfl", "setup"), ("pfl", "compile"), ("dvc", "repro", "--quiet")):
            run(root, *command)
        trained = next((root / "artifacts/runs").glob("fedavg-*")).name
        commands = {"import of torch alone": ("python", "-c", "import torch")}
        for stage in (("train", trained), ("evaluate", "seed000"), ("report", "seed000"), ("guard",)):
            commands[stage[0]] = ("pfl", "stage", *stage)
        turns = [{what: run(root, *command) for what, command in commands.items()} for _ in range(repeat)]
        return {what: statistics.median(turn[what] for turn in turns) for what in commands}


def measure_way(root: Path, way: str, runs: int) -> dict[str, object]:
    """Bring a project of `runs` runs up to date with a command of :data:`WAYS`; return a table's row."""
    write_project(root, runs, TRAINING)
    run(root, "pfl", "setup")
    run(root, "pfl", "compile")
    seconds = run(root, *way.split(), "--all-pipelines" if way.startswith("dvc") else "--all")
    again = run(root, "dvc", "repro", "--all-pipelines")
    training = [json.loads(path.read_text())["seconds"] for path in (root / ".pfl/timings").glob("*.json")]
    return {
        **{"way": way, "runs": len(training), "seconds": round(seconds, 1), "training": round(sum(training), 1)},
        "per_run": round(seconds / runs, 2),
        "overhead": round((seconds - sum(training) / WAYS[way]) / runs, 3),
        **{"dvc_repro_after": round(again, 1), "reports": hash_reports(root)[:12]},
    }


def hash_reports(root: Path) -> str:
    """Return a hash of all reports, without the pages that only ``pfl run`` writes."""
    reports = hashlib.sha256()
    for path in sorted((root / "reports").rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not name.startswith(("reports/papers/", "reports/index.html")):
            reports.update(name.encode() + path.read_bytes())
    return reports.hexdigest()


def compare_ways(runs: int, ways: list[str]) -> int:
    """Print a row per command; return the number of commands whose reports differ from those of the first."""
    os.environ |= {"PFL_WORKERS": "1", "PFL_THREADS": "1", "PFL_DEVICE": "cpu"}
    hashes = []
    with tempfile.TemporaryDirectory(prefix="pfl-benchmark-") as folder:
        for way in ways:
            row = measure_way(Path(folder) / way.replace(" ", "-"), way, runs)
            if not hashes:
                print("| " + " | ".join(row) + " |\n|---|" + "---:|" * (len(row) - 1))
            hashes.append(row["reports"])
            print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
    return sum(one != hashes[0] for one in hashes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=40, help=f"how many each command trains, a multiple of {RUNS_PER_SPEC}"
    )
    parser.add_argument("--repeat", type=int, default=5, help="repetitions behind the medians of the second table")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="the commands")
    chosen = parser.parse_args()
    if chosen.runs < RUNS_PER_SPEC or chosen.runs % RUNS_PER_SPEC:
        parser.error(f"--runs must be a multiple of {RUNS_PER_SPEC}, got {chosen.runs}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    differing = compare_ways(chosen.runs, chosen.ways)
    print("\n| stage with next to no work | seconds |\n|---|---:|")
    for what, seconds in measure_start(chosen.repeat).items():
        print(f"| {what} | {seconds:.2f} |")
    return differing


if __name__ == "__main__":
    sys.exit(main())
