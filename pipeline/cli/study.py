"""``pfl init``, ``pfl new`` and ``pfl check``: a person's own study."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def init(
    name: Annotated[Path, typer.Argument(help="The folder to make.")],
    source: Annotated[
        str | None, typer.Option("--from", help="Begin with a paper's spec, e.g. fedtp/table2, or with all of a paper.")
    ] = None,
) -> None:
    """Make a study: a folder with a first spec, ready for `dvc repro`."""
    from pipeline.study.create import create

    specs = create(name, source)
    folder = os.path.relpath(name)
    print(f"{folder}: a study with {', '.join(f'specs/{spec}.yaml' for spec in specs)}")
    print(f"cd {folder} && dvc repro    # what it will do: pfl plan; a trial in miniature: pfl run --profile smoke")
