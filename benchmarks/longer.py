"""What is saved when a run has more rounds than an earlier one, or another weight of its neighbours.

Each method trains 100 rounds in a project of its own; then its spec asks for 200, and then for a memory of the training
samples beside the model (``knn``). Both are compared with the same runs in a project where nothing is kept.

    python benchmarks/longer.py                      # a table; exit code 1 if any file differs
    python benchmarks/longer.py --rounds 20 --methods fedavg fedkd
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BIN = Path(sys.executable).parent
SPEC = """\
title: Longer
grid:
  base:
    dataset: digits
    partition: {{name: dirichlet, alpha: 0.3}}
    clients: 10
    backbone: {{name: tiny_vit, depth: 1, dim: 32, heads: 2, head_dim: 16, mlp_dim: 64, patch: 2}}
    training: {{rounds: {rounds}, sample_rate: 0.3, local_epochs: 1, batch_size: 16, lr: 0.1}}
    evaluation: {{window: 0, curve_every: 0}}
  axes:
    method: {{Longer: {{name: {method}, knn: {knn}}}}}
"""


def train(root: Path, method: str, rounds: int, knn: float, keep: str) -> tuple[float, dict[str, bytes]]:
    """Bring the project up to date: the seconds that its run says it took, and the files that it left."""
    (root / "specs").mkdir(parents=True, exist_ok=True)
    (root / "specs/longer.yaml").write_text(SPEC.format(method=method, rounds=rounds, knn=knn))
    for command in (["setup"], ["run", "longer", "-j", "1"]):
        done = subprocess.run(
            [BIN / "pfl", *command], cwd=root, env={**os.environ, "PFL_KEEP": keep}, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
    newest = max((root / "artifacts/runs").iterdir(), key=lambda folder: folder.stat().st_mtime_ns)
    timing = json.loads((root / f".pfl/timings/{newest.name}.json").read_text())
    return timing["seconds"], {path.name: path.read_bytes() for path in newest.iterdir()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedtp", "ditto", "fedkd"])
    parser.add_argument("--rounds", type=int, default=100)
    chosen = parser.parse_args()
    short, long = chosen.rounds, 2 * chosen.rounds
    print(f"| method | {short} rounds | then {long} | {long} from nothing | then knn | the same from nothing | bytes |")
    print("|---|---:|---:|---:|---:|---:|---|", flush=True)
    faults = 0
    for method in chosen.methods:
        with tempfile.TemporaryDirectory() as folder:
            runs = [(short, 0.0), (long, 0.0), (long, 0.5)]
            kept = [train(Path(folder, "kept"), method, *run, keep="5") for run in runs]
            anew = [train(Path(folder, "anew"), method, *run, keep="0") for run in runs[1:]]
        same = [files for _, files in kept[1:]] == [files for _, files in anew]
        faults += not same
        seconds = [kept[0][0], kept[1][0], anew[0][0], kept[2][0], anew[1][0]]
        cells = " | ".join(f"{one:.1f}" for one in seconds)
        print(f"| {method} | {cells} | {'same' if same else 'DIFFERENT'} |", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
