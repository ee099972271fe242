"""What each process of test_distributed.py does: pairs of method and backbone, and runs that are taken up again.

Arguments: a folder with a checkpoint and a kept state of the latter, and the pairs as `method/backbone`. Digests of the
results go to a file of each process there.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from pflcore.engine import CheckpointFolder, KeptStates, is_first
from pflcore.room import Room
from support.cohorts import UNEVEN, digest, uneven_run
from support.tiny import federation, holding_back


def main(folder: Path, *pairs: str) -> None:
    results = {pair.replace("/", " on "): digest(uneven_run(*pair.split("/"))) for pair in pairs}
    with CheckpointFolder(folder, "me", print) if is_first() else nullcontext() as checkpoints:
        resumed = uneven_run("fedper", "convnet", checkpoints=checkpoints)
    results["resumed"] = digest(resumed)
    kept = KeptStates(Room(folder / "kept", 2**30), "us", "new", print) if is_first() else None
    longer = uneven_run("fedtp", "tiny_vit", kept=kept, training={"rounds": 3})
    results["longer"] = digest(longer)
    results["validation"] = digest(uneven_run("fedper", "convnet", data=holding_back(federation(*UNEVEN), 2)))
    facts = {"resumed_from": [resumed.resumed_from, longer.resumed_from], "digests": results}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
