"""How often an edit made results stale, and how often it should have: this repository's own history, replayed.

    python benchmarks/staleness.py --commits 40     # a line per commit that touches the code of a run, and a table

For each commit on the main line two runs of FedAvg are looked at. By their *sources* they are stale when any module in
the closure of what their stages import means something else than in the commit before, as fingerprints would have it.
By their *results* they are when FedAvg, a backbone, the dataset or the partition does, or when that commit's own
`pfl run` gives other measurements. A commit that cannot be run, as its engine was not probed, counts with the next one.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

SOURCE = Path(__file__).parents[1]
sys.path[0] = str(SOURCE)  # in place of this folder, whose pipeline.py would hide the package of that name

from pipeline.probe.numbers import TOLERANCE  # noqa: E402

from pipeline.compile.fingerprint import Code  # noqa: E402

STAGES = tuple(f"pipeline.stages.{name}" for name in ("data", "partition", "train"))
ENTRIES = tuple(
    f"pflcore.{name}"
    for name in ("methods.fedavg", "backbones.convnet", "backbones.tiny_vit", "datasets.digits", "partitions.dirichlet")
)
SPEC = """\
title: Staleness
grid:
  base:
    dataset: digits
    partition: {name: dirichlet, alpha: 0.5}
    clients: 5
    method: fedavg
    training: {rounds: 3, sample_rate: 0.6, local_epochs: 1, batch_size: 32, lr: 0.1, momentum: 0.5}
    evaluation: {every: 1, window: 3}
  axes:
    backbone:
      ConvNet: {name: convnet, kernel: 3, padding: 1, channels: [4, 8], hidden: [16]}
      ViT: {name: tiny_vit, depth: 2, dim: 16, heads: 2, head_dim: 8, mlp_dim: 16, patch: 4}
table: {rows: [backbone]}
"""
PATIENCE = 120  # seconds that the runs of a commit may take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=40)
    parser.add_argument("--branch", default="main")
    arguments = parser.parse_args()
    listed = _git("log", "--first-parent", f"-n{arguments.commits + 1}", "--format=%h %s", arguments.branch)
    commits = [line.partition(" ") for line in listed.decode().splitlines()[::-1]]
    stale = {"sources": 0, "entries": 0, "results": 0}
    before = None
    print("| commit | sources | entries | measurements | |\n|---|---|---|---|---|")
    for commit, _, subject in commits:
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as files:
                files.extractall(folder, filter="data")
            code = Code(Path(folder))
            sources = code.fingerprint(*STAGES, *ENTRIES)
            entries = [code.fingerprint(entry, without=STAGES[2]) for entry in ENTRIES]
            if before and before[0] == sources:
                continue
            measured = _measure(Path(folder))
        if measured is None:  # what it did is seen in the next one
            print(f"| {commit} | other | | none | {subject[:70]} |", flush=True)
            continue
        if before:
            edited, other = entries != before[1], not _agree(before[2], measured)
            stale = {
                "sources": stale["sources"] + 1,
                "entries": stale["entries"] + edited,
                "results": stale["results"] + (edited or other),
            }
            words = ["other", *("other" if differs else "same" for differs in (edited, other))]
            print(f"| {commit} | {' | '.join(words)} | {subject[:70]} |", flush=True)
        before = sources, entries, measured
    print(f"\nOf {len(commits) - 1} commits, {stale['sources']} made FedAvg's runs stale by their sources, ", end="")
    print(f"{stale['results']} by their results ({stale['entries']} of these edited an entry).")


def _measure(tree: Path) -> list[np.ndarray] | None:
    """What the runs give under the code in `tree`: for each its counts and losses; None when they cannot be run."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "specs").mkdir()
        (root / "specs/tiny.yaml").write_text(SPEC, encoding="utf-8")
        (root / "pyproject.toml").write_text('[tool.pfl]\ndefault = ["tiny"]\n', encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(tree), "PFL_DEVICE": "cpu", "PFL_EXECUTOR": "sequential"}
        environment |= {"PFL_THREADS": "1", "DVC_NO_ANALYTICS": "1", "CI": "true"}
        for words in (["setup"], ["run", "-j", "1"]):
            command = [str(Path(sys.executable).with_name("pfl")), *words]
            try:
                done = subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                return None
            if done.returncode:
                print(done.stderr.decode().strip().rpartition("\n")[2][:200], file=sys.stderr)
        tables = [pq.read_table(path) for path in sorted(root.glob("artifacts/runs/*/rounds.parquet"))]
        columns = ("round", "client", "correct", "total", "loss")
        found = [np.stack([np.asarray(table[name], dtype=float) for name in columns]) for table in tables]
        return sorted(found, key=lambda one: float(one[4].sum())) if len(found) == 2 else None


def _agree(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(
        a.shape == b.shape and np.allclose(a, b, rtol=TOLERANCE, atol=0) for a, b in zip(one, other, strict=True)
    )


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=SOURCE, capture_output=True, check=True).stdout


if __name__ == "__main__":
    main()
