"""Looking: what a spec can name, and what was obtained."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import astuple
from typing import Annotated

import typer

from pflcore.errors import UserError
from pipeline.cli.common import Profile, Set, all_specs, console, named_specs, print_table
from pipeline.workspace import PAPER, Workspace


def list_(
    what: Annotated[
        str, typer.Argument(help="specs, datasets, partitions, backbones, methods, analyses, metrics, figures")
    ],
) -> None:
    """List the specs, or what a spec can name."""
    from pipeline.browse.listing import list_kind
    from pipeline.spec.catalog import load_catalog

    workspace = Workspace.find()
    list_kind(what, workspace, load_catalog(workspace.home), console())


def describe(
    names: Annotated[list[str], typer.Argument(help="A name, or a kind and a name; `partition` also takes a spec.")],
    dataset: Annotated[str | None, typer.Option(help="Draw the partition of this dataset.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Draw it over so many clients.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draw it under this seed.")] = 0,
    set_: Set = None,
) -> None:
    """Explain an entry, a group of settings or a part of specs (spec, grid, table, ...). A partition is also drawn."""
    from pflcore.registry import KINDS
    from pipeline.browse.given import given_options
    from pipeline.browse.listing import describe as describe_entry
    from pipeline.spec.catalog import load_catalog

    if len(names) > 2 or (len(names) == 2 and names[0] not in KINDS):
        raise UserError(f"describe takes a name, or a kind ({', '.join(KINDS)}) and a name; got {' '.join(names)!r}")
    workspace, terminal = Workspace.find(), console()
    catalog = load_catalog(workspace.home)
    kind, name = names[0] if len(names) == 2 else None, names[-1]
    drawn = kind in (None, "partition") and name in catalog.names("partition")
    if not drawn and not (kind == "partition" and name in all_specs(workspace)):
        of_dataset = kind in (None, "dataset") and name in catalog.names("dataset")
        if set_ and of_dataset and not (dataset or clients):
            return describe_entry(name, workspace, catalog, terminal, "dataset", given_options(set_, name))
        if dataset or clients or set_:
            raise UserError(f"--dataset, --clients and --set draw a partition; {name!r} is none")
        return describe_entry(name, workspace, catalog, terminal, kind)
    from pipeline.browse.partition_view import Drawing, draw_spec, example_record  # with NumPy and pyarrow

    if not drawn:
        return draw_spec(name, workspace, catalog, terminal)
    record = example_record(name, catalog, dataset=dataset, clients=clients, seed=seed, options=set_ or [])
    drawing = Drawing.make(record, workspace.root)
    describe_entry(name, workspace, catalog, terminal, kind)
    drawing.show(terminal)


def compare(
    first: Annotated[str, typer.Argument(help="A spec whose report has been made.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
) -> None:
    """Compare the tables of two specs: which cells differ, by how much, and whether beyond chance."""
    from pipeline.results.compare import SAME, compare

    workspace = Workspace.find()
    specs = [name for word in (first, second) for name in named_specs(workspace, [word])]
    if len(specs) != 2:
        raise UserError("pfl compare takes two specs, not a folder of them")
    cells = compare(workspace, *specs)
    numbers = [*specs, "difference"]
    print_table(["cell", *numbers, "verdict"], numbers, (astuple(cell) for cell in cells if cell.verdict != SAME))
    counts = Counter(cell.verdict for cell in cells)
    print(f"{len(cells)} cells: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")


def report(
    names: Annotated[list[str] | None, typer.Argument(help="Papers, e.g. fedtp; all when left out.")] = None,
    profile: Profile = PAPER,
) -> None:
    """Write a page per paper, and an index over all of them, from what has been run so far."""
    from pipeline.papers.pages import Papers

    papers = Papers.compiled(Workspace.find(profile=profile))
    chosen = papers.chosen(names or [])
    made = papers.write(chosen)
    for name in chosen:
        print(f"{os.path.relpath(papers.page(name))}{'' if name in made else ' (up to date)'}")
    print(os.path.relpath(papers.index))
