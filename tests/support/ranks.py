"""What each process of test_distributed.py does: all pairs of method and backbone, and a run that is taken up again.

Argument: a folder with a checkpoint of the latter. Digests of the results go to a file of each process there.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from pflcore.engine import CheckpointFolder, is_first
from support.cohorts import PAIRS, digest, uneven_run


def main(folder: Path) -> None:
    results = {" on ".join(pair): digest(uneven_run(*pair)) for pair in PAIRS}
    with CheckpointFolder(folder, "me", print) if is_first() else nullcontext() as checkpoints:
        resumed = uneven_run("fedper", "convnet", checkpoints=checkpoints)
    results["resumed"] = digest(resumed)
    facts = {"resumed_from": resumed.resumed_from, "digests": results}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
