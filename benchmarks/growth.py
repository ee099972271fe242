"""Does anything grow in long and large work: memory, or the time and the bytes that a unit of it takes?

Each part goes through many units of one kind and compares the first tenth of them with the last:

- ``rounds``: a run of many rounds with next to no training, measured every ten rounds, with checkpoints;
- ``clients``: 100 of 100,000 clients per round, each with a part of the model of its own, with checkpoints, killed in
  the middle and gone on with;
- ``study``: runs of one round, planned, compiled, executed by ``pfl run -j 2`` and reported, with ``pfl status`` typed
  all along.

    python benchmarks/growth.py                                  # all, each in a process of its own
    python benchmarks/growth.py rounds --count 2000              # fewer
    python benchmarks/growth.py study --count 500 --planned 5000

Times are those of a core, so that what else the machine does counts for less; they still vary by half. It prints the
tables, draws a picture of each part where ``--pictures FOLDER`` says, and ends with 1 if anything grew by more than the
ratio beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # before this folder, in which pipeline.py is another

from growing.grown import Grown, picture, tell
from growing.long_run import clients, rounds
from growing.study import RUNS_PER_SPEC, study

COUNTS = {"rounds": 20_000, "clients": 1000, "study": 500}
UNITS = {"rounds": "round", "clients": "round", "study": "runs"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(COUNTS)}; all of them by default")
    parser.add_argument("--count", type=int, help="rounds or runs")
    parser.add_argument("--planned", type=int, default=5000, help="runs that are planned and compiled, by hundreds")
    parser.add_argument("--pictures", type=Path, help="a folder for an SVG per part")
    chosen = parser.parse_args()
    if unknown := [part for part in chosen.parts if part not in COUNTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(COUNTS)}")
    if len(chosen.parts) != 1:  # each in a process of its own, or one's memory would be the next one's
        options = [option for option in sys.argv[1:] if option not in COUNTS]
        command = [sys.executable, __file__]
        return max(subprocess.run([*command, part, *options]).returncode for part in chosen.parts or COUNTS)
    (part,) = chosen.parts
    count = chosen.count or COUNTS[part]
    if part == "study" and (count % RUNS_PER_SPEC or chosen.planned % RUNS_PER_SPEC):
        parser.error(f"runs of a study are counted by {RUNS_PER_SPEC}")
    with tempfile.TemporaryDirectory(prefix="pfl-growth-") as name:
        folder = Path(name)
        work: dict[str, Callable[[int, Path], list[Grown]]] = {
            "rounds": rounds,
            "clients": clients,
            "study": partial(study, planned=chosen.planned),
        }
        results = work[part](count, folder)
    good = tell(part, results)
    if chosen.pictures:
        chosen.pictures.mkdir(parents=True, exist_ok=True)
        (chosen.pictures / f"growth-{part}.svg").write_text(picture(UNITS[part], results))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
