"""Costs of the pipeline besides training.

    python benchmarks/pipeline.py                 # tables of DVC's costs
    python benchmarks/pipeline.py --trained 200   # overhead of ``dvc repro`` and ``pfl run`` with many small runs

DVC's costs are those of compilation, of a stage, of a repetition without work, of memory, and of a stage's start. DVC
executes stages as usual, but a small shell script replaces ``pfl``, so only DVC's own work remains.

With ``--trained`` every command gets a separate project with the same runs, each a second of training on one thread,
and brings all reports up to date. Runs record the duration of their training. The overhead is the rest of the time, per
run; with several workers it is the wall time minus the training time divided by the number of workers.
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

import yaml

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
A_SECOND = {"channels": "[4, 8]", "hidden": "[32, 16]", "rounds": 16, "evaluation": "{window: 5, curve_every: 10}"}
WAYS = {"dvc repro": 1, "pfl run -j 1": 1, "pfl run -j 2": 2}  # command → number of workers

# This script writes the outputs that DVC expects of a stage, in a few milliseconds.
STAND_IN = """\
#!/bin/sh
name="$3"
case "$2" in
  data) files="artifacts/data/$name.parquet" ;;
  partition) files="artifacts/partitions/$name.parquet" ;;
  train) files="artifacts/runs/$name/rounds.parquet" ;;
  evaluate) files="artifacts/tables/$name/runs.parquet" ;;
  describe) files="index.md index.html picture.svg clients.csv"; folder="reports/partitions/$name/" ;;
  report) files="report.md report.html report.tex table.csv table.parquet figures/curves.png metrics/none"
    folder="reports/$name/" ;;
  index) files=reports/index.md ;;
  guard) files=artifacts/guard.txt ;;
esac
for file in $files; do mkdir -p "$(dirname "$folder$file")"; echo "$name" > "$folder$file"; done
"""


def measure(runs: int, repeat: int) -> dict[str, float]:
    """Compile, execute and repeat a project of `runs` runs in a temporary folder; times in seconds, memory in MiB.

    `no_op` is a ``dvc repro`` without stale stages, `no_op_all` the same with ``--all-pipelines``.
    """
    with tempfile.TemporaryDirectory(prefix="pfl-benchmark-") as name:
        root = Path(name)
        write_project(root, runs, NO_TRAINING)
        run(root, "pfl", "setup")
        run(root, "pfl", "list", "methods")  # the catalogue of entries is cached once per version of the code

        def median(*command: str) -> tuple[float, float]:
            seconds, memory = zip(*(run(root, *command) for _ in range(repeat)), strict=True)
            return statistics.median(seconds), max(memory)

        first, again = run(root, "pfl", "compile"), median("pfl", "compile")
        stand_in = root / "bin" / "pfl"
        stand_in.parent.mkdir()
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
        stages = count_stages(root)
        repro = run(root, "dvc", "repro", "--quiet", "--all-pipelines")
        no_op, no_op_all = median("dvc", "repro", "--quiet"), median("dvc", "repro", "--quiet", "--all-pipelines")
        times = {"compile": first, "compile_again": again, "repro": repro, "per_stage": (repro[0] / stages,)}
        times |= {"no_op": no_op, "no_op_all": no_op_all, "status": median("dvc", "status", "--quiet")}
        row = {"runs": runs, "stages": stages, **{name: value[0] for name, value in times.items()}}
        return {**row, "peak_memory": max(first[1], repro[1], no_op_all[1])}


def write_project(root: Path, runs: int, settings: dict[str, str]) -> None:
    """Write specs with `runs` runs in all; the first spec is the default."""
    (root / "specs").mkdir(parents=True)
    axes = {"methods": ", ".join(METHODS), "rates": ", ".join(map(str, RATES))}
    for seed in range(runs // RUNS_PER_SPEC):
        text = SPEC.format(seed=seed, **axes, **settings)
        (root / "specs" / f"seed{seed:03d}.yaml").write_text(text)
    (root / "pyproject.toml").write_text('[tool.pfl]\ndefault = ["seed000"]\n')


def count_stages(root: Path) -> int:
    """Return the number of entries in all stage files of the project."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = [root / "dvc.yaml", *(root / "stages").rglob("dvc.yaml")]
    return sum(len(yaml.load(path.read_bytes(), Loader=loader)["stages"]) for path in files)


def run(root: Path, *command: str) -> tuple[float, float]:
    """Run a command that must succeed; return its seconds and the MiB of the largest of its processes."""
    environment = {**os.environ, "PATH": os.pathsep.join([str(root / "bin"), str(BIN), os.environ["PATH"]])}
    started = time.perf_counter()
    program = BIN / command[0] if (BIN / command[0]).is_file() else command[0]
    process = subprocess.Popen([program, *command[1:]], cwd=root, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds, process.returncode = time.perf_counter() - started, os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return seconds, usage.ru_maxrss / 1024


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
        turns = [{what: run(root, *command)[0] for what, command in commands.items()} for _ in range(repeat)]
        return {what: statistics.median(turn[what] for turn in turns) for what in commands}


def measure_way(root: Path, way: str, runs: int) -> dict[str, object]:
    """Bring a project of `runs` runs of a second up to date with a command of :data:`WAYS`; return a table's row."""
    write_project(root, runs, A_SECOND)
    run(root, "pfl", "setup")
    run(root, "pfl", "compile")
    seconds, _ = run(root, *way.split(), "--all-pipelines" if way.startswith("dvc") else "--all")
    again, _ = run(root, "dvc", "repro", "--all-pipelines")
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
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 300, 1000], help=f"multiples of {RUNS_PER_SPEC}")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions behind each median")
    parser.add_argument("--trained", type=int, help="instead, so many runs that train for a second; a multiple as well")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="those of --trained")
    chosen = parser.parse_args()
    asked = [chosen.trained] if chosen.trained else chosen.runs
    bad = [runs for runs in asked if runs < RUNS_PER_SPEC or runs % RUNS_PER_SPEC]
    if bad:
        parser.error(f"runs must be multiples of {RUNS_PER_SPEC}, got {bad[0]}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    if chosen.trained:
        return compare_ways(chosen.trained, chosen.ways)
    for runs in chosen.runs:
        row = measure(runs, chosen.repeat)
        if runs == chosen.runs[0]:
            print(f"| {' | '.join(row)} |\n|{'---:|' * len(row)}")
        cells = (str(one) if isinstance(one, int) else f"{one:.3f}" for one in row.values())
        print(f"| {' | '.join(cells)} |", flush=True)
    print("\n| stage with next to no work | seconds |\n|---|---:|")
    for what, seconds in measure_start(max(chosen.repeat, 5)).items():
        print(f"| {what} | {seconds:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
