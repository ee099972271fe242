"""Every loader against files that were made to harm it: what it takes to refuse each, in memory and in time.

A loader is anything that reads what somebody else may have made: datasets in each of their formats, weights, splits,
specs, checkpoints. In the place of a good file lies one that is endless, enormous, deep, or claims to be, and a process
of its own reads it. It has to say one line (or to read the file, where nothing is wrong with it), within bounds: a
gigabyte, where it is told of a quarter, and a minute.

    python benchmarks/hostile_files.py                          # a table; exit code 1 if a bound or a line is missed
    python benchmarks/hostile_files.py --loader mnist --file claim
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.loaders import LOADERS  # noqa: E402
from support.trials import Trial, trials  # noqa: E402


def table(found: list[Trial]) -> str:
    """By loader: files, how many of them were refused, and the most that it took, with the file."""
    lines = [
        "| loader | files | refused | most memory | of | longest | of |",
        "|---|---:|---:|---:|---|---:|---|",
    ]
    for name in dict.fromkeys(one.loader for one in found):
        own = [one for one in found if one.loader == name]
        large, slow = max(own, key=lambda one: one.mebibytes), max(own, key=lambda one: one.seconds)
        refused = sum(bool(one.said) for one in own)
        lines.append(
            f"| {name} | {len(own)} | {refused} | {large.mebibytes:,.0f} MiB | {large.file} "
            f"| {slow.seconds:.1f} s | {slow.file} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loader", nargs="*", default=[""], help="loaders whose name has one of these words")
    parser.add_argument("--file", default="", help="files whose description has this word")
    parser.add_argument("--verbose", action="store_true", help="what was said to each")
    given = parser.parse_args()
    found = []
    for one in trials([name for name in LOADERS if any(word in name for word in given.loader)], given.file):
        found.append(one)
        if one.fault or given.verbose:
            print(f"{one.loader}, {one.file}: {one.fault or one.said or 'read'}", flush=True)
    faults = sum(bool(one.fault) for one in found)
    print(f"\n{table(found)}\n\n{len(found)} files; {faults} that were not refused in a line, or not within bounds")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
