"""Random environments: a run is trained, or refused in a line that names the variable; never anything between."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections import Counter

import pytest
from support.project import BIN, Project

_OURS = [
    "PFL_CHECKPOINT_SECONDS", "PFL_DEVICE", "PFL_EXECUTOR", "PFL_GRAPHS", "PFL_MEMORY",
    "PFL_STACK", "PFL_THREADS", "PFL_TRACK", "PFL_WORKERS",
]  # fmt: skip
_OTHERS = [
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "COLUMNS", "LINES", "TERM", "LANG", "LC_ALL",
    "TMPDIR", "HOME", "SHELL", "NO_COLOR", "MLFLOW_TRACKING_URI", "DVC_EXP_NAME",
]  # fmt: skip
_VALUES = [
    "", " ", "0", "1", "2", "-1", "1.5", "nan", "inf", "1e999", "9" * 20, "9" * 5000, "é", "٣", "\udcff", "a\nb", "1;2",
    "true", "none", "auto", "cpu", "cuda", "cuda:99", "meta", "mps", "sequential", "stacked", "nowhere",
    "/nowhere/at/all", "/dev/null", "..", "$(touch x)", "`touch x`", "%s{}", "C", "POSIX", "utf-8", "dumb", "mlflow",
    "wandb", "A" * 3000,
]  # fmt: skip


@pytest.mark.matrix
def test_environments(reproduced: Project) -> None:
    count = 40
    rng, ends = random.Random(count), Counter[int]()
    rounds = min(reproduced.root.glob("artifacts/runs/fedavg-*/rounds.parquet"))
    before = rounds.read_bytes()
    for number in range(count):
        names = rng.sample(_OURS, rng.choice((1, 1, 2))) + rng.sample(_OTHERS, rng.choice((0, 0, 1)))
        chosen = {name: rng.choice(_VALUES) for name in names}
        rounds.write_bytes(before)
        shutil.rmtree(reproduced.root / ".pfl/states", ignore_errors=True)  # so that it trains
        done = subprocess.run(
            [BIN / "pfl", "stage", "train", rounds.parent.name],
            cwd=reproduced.root,
            env={**reproduced.environment(PFL_DEVICE="cpu", PFL_THREADS="1"), **chosen},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
        )
        ends[done.returncode] += 1
        told = (number, chosen, done.returncode, done.stdout[-500:], done.stderr[-1500:])
        assert done.returncode in (0, 2) and "Traceback" not in done.stderr, told
        lines = done.stderr.splitlines()  # libraries may have said something of their own before
        ours = [line for line in lines if line.startswith("pfl: ")]
        assert done.returncode == 0 or (ours == lines[-1:] and len(ours[0]) < 1000), told
        assert rounds.stat().st_size == len(before), told
    assert ends[0] > count / 10, ends
    assert not (reproduced.root / "x").exists()
