"""What it costs that a stage makes sure of its code, record and inputs, and that imports are noted.

Run in a workspace whose default reports are up to date: each kind of stage begins and ends there, without its work,
after it has imported what it works with. Then a process imports all that a train stage does, with Python's own loader
and with the one that remembers, in turn.

    python benchmarks/seals.py          # a table: milliseconds, medians
"""

from __future__ import annotations

import importlib
import statistics
import subprocess
import sys
import time
from pathlib import Path

# In place of this folder, whose pipeline.py would hide the package of that name.
sys.path[0] = str(Path(__file__).parents[1])

import yaml  # noqa: E402

from pflcore.methods import METHODS  # noqa: E402
from pipeline.compile.seal import sealed  # noqa: E402

KINDS = ("data", "partition", "describe", "train", "evaluate", "report", "index")
TIMES = 15
PLAIN = "import pflcore.sources as s; s._Finder.find_spec = lambda *_: None; "
IMPORT = "import time; t = time.perf_counter(); import pipeline.stages.train; print(time.perf_counter() - t)"


def stages() -> dict[str, list[str]]:
    """Kind → words of a command, one of each."""
    found: dict[str, list[str]] = {}
    for path in [Path("dvc.yaml"), *sorted(Path("stages").rglob("dvc.yaml"))]:
        if path.with_name("dvc.lock").is_file():
            for stage in yaml.safe_load(path.read_text(encoding="utf-8"))["stages"].values():
                words = stage["cmd"].split()[2:]
                found.setdefault(words[0], words)
    return found


def main() -> None:
    for name in METHODS.names():
        METHODS.get(name)
    print("| stage | begin and end, ms |\n|---|---:|")
    for kind, (_, *words) in sorted(stages().items(), key=lambda item: (*KINDS, "guard").index(item[0])):
        if kind == "guard":
            continue
        importlib.import_module(f"pipeline.stages.{kind}")
        *files, _, mark = words
        taken = []
        for _ in range(TIMES):
            began = time.perf_counter()
            with sealed(kind, [Path(file) for file in files], mark):
                pass
            taken.append(time.perf_counter() - began)
        print(f"| {kind} | {1000 * statistics.median(taken):.1f} |")
    times: dict[str, list[float]] = {"Python's own": [], "the one that remembers": []}
    for _ in range(TIMES):
        for loader, first in zip(times, (PLAIN, ""), strict=True):
            done = subprocess.run([sys.executable, "-c", first + IMPORT], capture_output=True, text=True, check=True)
            times[loader].append(float(done.stdout))
    print("\n| loader | importing what trains, ms |\n|---|---:|")
    for loader, taken in times.items():
        print(f"| {loader} | {1000 * statistics.median(taken):.0f} |")


if __name__ == "__main__":
    main()
