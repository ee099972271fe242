"""Whether a run that is killed at any instant, again and again, ends with the bytes of one that is left in peace.

Runs of several methods are trained once undisturbed and then, over and over, killed and restarted until complete, by
the stage of the pipeline, with two workers and a checkpoint after every round. After at most six kills a run is left
to complete. Kills are drawn at random: half of them uniformly over the time that the run needs undisturbed, start-up
included; a third aimed at the writing of a checkpoint (after a random round) and a sixth at that of the final files, as
both take few milliseconds. SIGKILL hits the whole process group, or in three of ten cases the parent alone, whose
workers then have to end by themselves.

    python benchmarks/kills.py --kills 50      # a table; exit code 1 if anything differs
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from itertools import cycle
from pathlib import Path

# In place of this folder, whose pipeline.py would hide the package of that name.
sys.path[:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from support.killing import HITS, KINDS, Kill, Trial, Victim  # noqa: E402

ROUNDS = 60
MOST = 6  # kills of a run; some must be left to complete, or nothing would be compared


def draw(rng: random.Random, seconds: float) -> Kill:
    """A random kill of a run that takes `seconds`."""
    alone = rng.random() < 0.3
    match rng.choices(("instant", "checkpoint", "artifact"), (3, 2, 1))[0]:
        case "checkpoint":
            return Kill("checkpoint", rng.randrange(ROUNDS), rng.uniform(0, 0.002), alone)
        case "artifact":
            return Kill("artifact", 0, rng.uniform(0, 0.02), alone)
        case _:
            return Kill("instant", rng.uniform(0, seconds), 0, alone)


def row(name: str, trial: Trial) -> str:
    verdict = "no" if trial.faults else "yes"
    rounds = " ".join(map(str, trial.resumed)) or "–"
    return f"| {name} | {len(trial.hits)} | {len(trial.resumed)} | {trial.refused} | {rounds} | {verdict} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="how many in all")
    parser.add_argument("--seed", type=int, default=0, help="of the kills; when exactly they hit varies all the same")
    arguments = parser.parse_args()
    rng, left = random.Random(arguments.seed), arguments.kills
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory() as folder:
        victims = [Victim(Path(folder) / kind, kind, ROUNDS) for kind in KINDS]
        calm = [victim.undisturbed() for victim in victims]
        print("| run | kills | restarts | refused | rounds resumed from | identical |\n|---|---:|---:|---:|---|---|")
        for victim, (expected, seconds) in cycle(zip(victims, calm, strict=True)):
            if not left:
                break
            trial = victim.killed((draw(rng, seconds) for _ in range(min(left, MOST))), expected)
            trials.append(trial)
            left -= len(trial.hits)
            print(row(victim.run.method, trial), flush=True)
    hits = Counter(hit for trial in trials for hit in trial.hits)
    print("\n| kills that hit | |\n|---|---:|")
    for hit in HITS:
        print(f"| {hit} | {hits[hit]} |")
    print(f"| all | {hits.total()} |")
    print(f"| of the parent alone | {sum(trial.alone for trial in trials)} |")
    print(f"| files left half-written | {sum(len(trial.leftovers) for trial in trials)} |")
    faults = [fault for trial in trials for fault in trial.faults]
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
