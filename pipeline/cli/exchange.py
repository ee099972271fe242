"""``pfl export`` and ``pfl export-split``: what was trained and dealt, for others."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.workspace import PAPER, Workspace

Profile = Annotated[str, typer.Option(help="paper or smoke.")]


def export(
    run: Annotated[str, typer.Argument(help="The id of a run, or a cell, e.g. 'quickstart: FedTP, pathological'.")],
    client: Annotated[int, typer.Option(help="Whose model.")],
    out: Annotated[Path | None, typer.Option(help="Folder; default: exports/RUN-clientN.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which of a cell's runs.")] = None,
    profile: Profile = PAPER,
) -> None:
    """Write a client's model for others, as safetensors."""
    from pipeline.library.export import export

    path = export(Workspace.find(profile=profile), run, client, seed, out)
    print(f"{os.path.relpath(path)}  {path.stat().st_size:,} bytes")


def export_split(
    spec: Annotated[str, typer.Argument(help="A spec whose data has been dealt here, e.g. quickstart.")],
    out: Annotated[Path, typer.Option(help="Folder; a file per federation goes into it.")] = Path("exports"),
    profile: Profile = PAPER,
) -> None:
    """Write who holds which samples as CSV, sample,client,split: for other tools, or for another study."""
    from pflcore.data.assignment_files import write_split
    from pipeline.library.found import Found
    from pipeline.library.frames import dealt

    found = Found.of(Workspace.find(profile=profile), spec)
    federations, left = dealt(found)
    if left:
        print(f"{left} federations are left out, not dealt here or stale; type `{found.command}`", file=sys.stderr)
    if not federations:
        raise found.undealt()
    for run, _, assignment in federations:
        path = out / f"{run.federation_id}.csv"
        write_split(path, assignment)
        print(f"{os.path.relpath(path)}  {sum(map(len, assignment.train)):,} training samples")
