"""One of the processes that train one run together; :mod:`pipeline.stages.ranks` starts them."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from pflcore.faults import portable
from pipeline.stages.cli import stage
from pipeline.stages.ranks import FAULT


def main() -> None:
    """Run the command line's stage. An error is told by the process that launched this one, once for all."""
    try:
        stage(prog_name="pfl stage")
    except Exception as error:
        path = Path(os.environ[FAULT])
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps(portable(error)))
        part.replace(path)
        sys.exit(1)


if __name__ == "__main__":
    main()
