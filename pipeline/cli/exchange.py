"""``pfl export``, ``pfl export-split`` and ``pfl import-split``: what was trained and dealt, for and from others."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipeline.workspace import PAPER, Workspace, raw_data_folder

Profile = Annotated[str, typer.Option(help="paper or smoke.")]


def export(
    run: Annotated[str, typer.Argument(help="The id of a run, or a cell, e.g. 'quickstart: FedTP, pathological'.")],
    client: Annotated[int, typer.Option(help="Whose model.")],
    out: Annotated[Path | None, typer.Option(help="Folder; default: exports/RUN-clientN.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which of a cell's runs.")] = None,
    profile: Profile = PAPER,
) -> None:
    """Write a client's model for others: safetensors and a card."""
    from pipeline.library.export import export

    for path in export(Workspace.find(profile=profile), run, client, seed, out):
        print(f"{os.path.relpath(path)}  {path.stat().st_size:,} bytes")


class Layout(StrEnum):
    """How a split is written."""

    csv = "csv"
    pfllib = "pfllib"


def export_split(
    spec: Annotated[str, typer.Argument(help="A spec whose data has been dealt here, e.g. quickstart.")],
    layout: Annotated[Layout, typer.Option("--format", help="csv: sample,client,split; pfllib: npz per client.")],
    out: Annotated[Path, typer.Option(help="Folder; a file or folder per federation goes into it.")] = Path("exports"),
    profile: Profile = PAPER,
) -> None:
    """Write who holds which samples for other tools."""
    from pflcore.data.sample_files import read_samples
    from pflcore.data.split_files import write_split
    from pipeline.library.found import Found
    from pipeline.library.frames import dealt
    from pipeline.library.pfllib import write_pfllib

    found = Found.of(Workspace.find(profile=profile), spec)
    federations, left = dealt(found)
    if left:
        print(f"{left} federations are left out, not dealt here or stale; type `{found.command}`", file=sys.stderr)
    if not federations:
        raise found.undealt()
    for run, dataset, assignment in federations:
        path = out / run.federation_id
        if layout is Layout.csv:
            path = path.with_name(f"{path.name}.csv")
            write_split(path, assignment)
        else:
            write_pfllib(path, read_samples(dataset, found.workspace.private / "decoded"), assignment)
        print(f"{os.path.relpath(path)}  {sum(map(len, assignment.train)):,} training samples")


def import_split(
    folder: Annotated[Path, typer.Argument(help="A dataset of PFLlib: the folder with train/ and test/.")],
    dataset: Annotated[str, typer.Option(help="What its samples are of, e.g. mnist.")],
    out: Annotated[Path, typer.Option(help="The file for a spec, e.g. specs/mnist/pfllib.csv.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="An option of the dataset, as size=32.")] = None,
) -> None:
    """Find the samples of a split of PFLlib in a dataset, and write it for `partition: {name: from_file, path: …}`."""
    from pflcore.data.split_files import write_split
    from pflcore.datasets import DATASETS
    from pflcore.registry import use_study
    from pipeline.browse.given import given_options
    from pipeline.library.pfllib import read_pfllib

    workspace = Workspace.find()
    use_study(workspace.home)  # whose own datasets count, too
    entry = DATASETS.create(dataset, **given_options(set_ or [], dataset))
    assignment = read_pfllib(folder, entry.load(raw_data_folder(workspace.home) / dataset))
    write_split(out, assignment)
    counts = ", ".join(f"{sum(map(len, held)):,} {word}" for word, held in assignment.sides().items())
    print(f"{os.path.relpath(out)}  {assignment.clients} clients, {counts} samples")
