"""Published cells, trained on a card that is lent for minutes at a time, on a machine with little more than torch.

    python benchmarks/gpu_cells.py pack --out FOLDER                    # here, with data and partitions made
    python benchmarks/gpu_cells.py train --cells FOLDER --out $OUT      # there, as often as it takes
    python benchmarks/gpu_cells.py collect --cells FOLDER --from $OUT   # here, after each time
    pfl results keep fedofa/table_s1

There, it needs this repository, the folder, torch, numpy, safetensors and filelock. It trains the cheapest first,
stops before its deadline, and prints a table. In $OUT it leaves a line per run that has ended, and checkpoints of
the one that has not; `collect` puts the latter into the folder, so that the next time goes on with it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # where nothing is installed

from pflcore.errors import UserError

_SPECS = ["fedofa/table_s1", "fedtp/table3"]


def main() -> int:
    """Run one of the three; return the exit code."""
    started, chosen = time.monotonic(), _arguments()
    try:
        if chosen.what == "train":
            from cells.there import Session  # with torch, which takes a while

            asked = {name: getattr(chosen, name) for name in ("data", "out", "every", "device", "quick")}
            session = Session(chosen.cells, deadline=chosen.deadline - (time.monotonic() - started), **asked)
            session.run()
            return 0
        from cells.here import collect, pack

        from pipeline.workspace import Workspace

        if chosen.what == "pack":
            asked = [chosen.spec or _SPECS, chosen.cell or (), chosen.seed or ()]
            lines = pack(Workspace.find(), chosen.out, *asked)
        else:
            lines = collect(Workspace.find(), chosen.cells, chosen.source)
        print("\n".join(lines))
        return 0
    except UserError as error:
        print(f"gpu_cells: {error}", file=sys.stderr)
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="what", required=True)
    pack = verbs.add_parser("pack", help="write what a card needs")
    pack.add_argument("--out", type=Path, required=True, help="folder to write")
    pack.add_argument("--spec", action="append", help=f"a spec; {' and '.join(_SPECS)} without it")
    pack.add_argument("--cell", action="append", help="labels of a cell, joined by a comma and a space; * for any")
    pack.add_argument("--seed", action="append", type=int)
    train = verbs.add_parser("train", help="train on the card")
    train.add_argument("--cells", type=Path, required=True, help="folder that was packed")
    train.add_argument("--data", type=Path, action="append", default=[], help="folder with further pieces of datasets")
    train.add_argument("--out", type=Path, required=True, help="folder for what comes back")
    train.add_argument("--deadline", type=float, default=540.0, help="seconds")
    train.add_argument("--every", type=float, default=15.0, help="seconds between checkpoints")
    train.add_argument("--device", default="cuda")
    train.add_argument("--quick", action="store_true", help="two rounds of three cells; keeps nothing")
    collect = verbs.add_parser("collect", help="take what came back")
    collect.add_argument("--cells", type=Path, required=True, help="folder that was packed")
    collect.add_argument("--from", type=Path, required=True, dest="source", help="folder that came back")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
