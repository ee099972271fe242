"""Whether a result is ever recorded under code, or for a record, that did not make it.

A project with two runs is brought up to date, and at a random instant of that its code or stage files are changed:
edited and undone, edited and compiled, exchanged for those of another branch, or a resolved record is edited by hand.
Then everything settles: the change is undone where that belongs to the case, and the same command is typed until it has
nothing to do. What DVC has recorded in its lock files and its run cache, and what counts as up to date in the end, is
compared with what that code really gives for that record.

    python benchmarks/integrity.py                        # a table; exit code 1 if anything recorded is wrong
    python benchmarks/integrity.py --source ../older      # the same with the packages of another checkout
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

# In place of this folder, whose pipeline.py would hide the package of that name.
sys.path[:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from support.editing import PATIENCE, Act, Laboratory, complaint, then  # noqa: E402

CASES: dict[str, tuple[Act, Act]] = {
    "edit, undone later": (Laboratory.edit, Laboratory.undo),
    "edit and compile": (then(Laboratory.edit, Laboratory.compile), lambda _: None),
    "edit and compile, undone": (then(Laboratory.edit, Laboratory.compile), Laboratory.undo),
    "checkout of a branch": (Laboratory.checkout, lambda _: None),
    "record edited by hand": (Laboratory.tamper, Laboratory.compile),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instants", type=int, default=10, help="of each case and program")
    parser.add_argument("--rounds", type=int, default=60, help="of a run")
    parser.add_argument("--source", type=Path, help="the folder of the packages to try; default: this checkout")
    parser.add_argument("--programs", nargs="+", default=["dvc", "pfl"], help="dvc (repro), pfl (run)")
    parser.add_argument(
        "--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help="as in the table"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the instants; what they hit varies all the same")
    arguments = parser.parse_args()
    rng, wrong = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        original = Laboratory.make(Path(folder) / "original", arguments.rounds, arguments.source)
        print("| case | program | at | undone at | exit | it said | recorded |\n|---|---|---:|---:|---:|---|---|")
        for program in arguments.programs:
            calm = original.copy(Path(folder) / f"calm-{program}")
            began = time.monotonic()
            assert calm.start(program).wait(PATIENCE) == 0
            seconds = time.monotonic() - began
            for case in arguments.cases:
                act, undo = CASES[case]
                for number in range(arguments.instants):
                    tried = original.copy(Path(folder) / f"{program}-{case}-{number}")
                    at = rng.uniform(0, seconds)
                    until = at + rng.uniform(0, seconds)
                    process = tried.start(program)
                    time.sleep(at)
                    act(tried)
                    time.sleep(until - at)
                    undo(tried)
                    output = process.communicate(timeout=PATIENCE)[0]
                    said = complaint(output) if process.returncode else ""
                    faults = tried.faults(program)
                    wrong += bool(faults)
                    verdict = f"WRONG: {'; '.join(faults)}" if faults else "true"
                    facts = (case, program, f"{at:.1f}", f"{until:.1f}", process.returncode, said, verdict)
                    print(f"| {' | '.join(map(str, facts))} |", flush=True)
    print(
        f"\n{wrong} of {len(arguments.cases) * len(arguments.programs) * arguments.instants} recorded something wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
