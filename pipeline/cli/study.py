"""``pfl export``: what was trained, for others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pipeline.workspace import PAPER, Workspace


def export(
    run: Annotated[str, typer.Argument(help="The id of a run, or a cell, e.g. 'quickstart: FedTP, pathological'.")],
    client: Annotated[int, typer.Option(help="Whose model.")],
    out: Annotated[Path | None, typer.Option(help="Folder; default: exports/RUN-clientN.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which of a cell's runs.")] = None,
    profile: Annotated[str, typer.Option(help="paper, smoke, or a profile that the specs define.")] = PAPER,
) -> None:
    """Write a client's model for others: safetensors, a program for PyTorch alone, and a card."""
    from pipeline.study.export import export

    exported = export(Workspace.find(profile=profile), run, client, seed, out)
    for path in exported.files:
        print(f"{os.path.relpath(path)}  {path.stat().st_size:,} bytes")
    if exported.lacking:
        print(f"no program for PyTorch alone: {exported.lacking}; the card says what there is")
