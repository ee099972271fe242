"""``pfl results …``, ``pfl verify`` and ``pfl compare``."""

from __future__ import annotations

import os
import sys
from dataclasses import astuple
from typing import Annotated

import typer

from pflcore.errors import UserError
from pipeline.cli.common import all_specs, console, named_specs, write_stages
from pipeline.workspace import Workspace

results = typer.Typer(help="Kept results: the ledger in results/, which git keeps.", no_args_is_help=True)
Kept = Annotated[list[str], typer.Argument(help="Specs, e.g. fedofa/table_s1, or a folder of them.")]


@results.command()
def keep(specs: Kept) -> None:
    """Add what is up to date of some specs to results/; from then on nothing trains it again."""
    from pipeline.results.keep import keep

    workspace = Workspace.find()
    some = False
    for spec in named_specs(workspace, specs):
        kept = keep(workspace, spec)
        some |= bool(kept.runs or kept.before)
        before = f", {kept.before} were before" if kept.before else ""
        where = f" in {os.path.relpath(kept.file)}" if kept.file else ""
        print(f"{spec}: {len(kept.runs)} runs kept{where}{before}")
        for reason, count in kept.left.items():
            print(f"{count} left out: they {reason}")
    if not some:
        raise UserError("nothing is kept; `pfl run` the spec first")
    _compile(workspace)


@results.command()
def drop(specs: Kept) -> None:
    """Remove kept results of some specs, so that they are trained when they are wanted."""
    from pipeline.compile.compiler import compile_workspace
    from pipeline.ledger import Ledger

    workspace = Workspace.find()
    compilation = compile_workspace(workspace, named_specs(workspace, specs), ledger=False)
    print(f"{Ledger(workspace.root).drop([*compilation.runs, *compilation.selections])} results dropped")
    _compile(workspace)


@results.command("list")
def list_() -> None:
    """What is kept, since when, and whether it is what the specs ask for and the code would give."""
    from pipeline.compile.compiler import compile_workspace
    from pipeline.ledger import Ledger
    from pipeline.results.listing import CURRENT, lines

    workspace = Workspace.find()
    compilation = compile_workspace(workspace, all_specs(workspace), ledger=False)
    kept = lines(Ledger(workspace.root), compilation)
    if kept:
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("run", "accuracy", "obtained", "device", "seconds", "state"):
            table.add_column(name, justify="right" if name in ("accuracy", "seconds") else "left", overflow="fold")
        for line in kept:
            table.add_row(*(escape(word) for word in astuple(line)))
        console().print(table)
    current = sum(line.state == CURRENT for line in kept)
    print(f"{len(kept)} kept results, {current} of them current; all specs together have {len(compilation.runs)} runs")


@results.command()
def show(run: Annotated[str, typer.Argument(help="The id of a run.")]) -> None:
    """A kept result: what was run, by which code, where, and its curve."""
    from pipeline.compile.serialise import to_yaml
    from pipeline.ledger import Ledger
    from pipeline.results.listing import curve_of, find

    entry = find(Ledger(Workspace.find().root), run)
    curve = curve_of(entry)
    seconds = None if entry.seconds is None else f"{entry.seconds:,.1f}"
    print(to_yaml({"run": entry.run.id, "obtained": entry.obtained, "seconds": seconds}), end="")
    print(to_yaml({"made_by": entry.made_by, "facts": entry.facts, "settings": entry.run.record}), end="")
    print("\nround  accuracy %      loss")
    for round_, accuracy, loss in curve:
        print(f"{round_:5d}  {accuracy:10.2f}  {loss:8.4f}")


@results.command()
def report() -> None:
    """Write docs/results.md: published numbers with what was obtained for them, from what is kept."""
    from pipeline.results.report import write_report

    changed = write_report(Workspace.find())
    print("\n".join(os.path.relpath(path) for path in changed) or "up to date")


def verify(
    spec: Annotated[str, typer.Argument(help="A spec of which cells are kept.")],
    cells: Annotated[int, typer.Option(min=1, help="How many cells, drawn at random.")] = 3,
    cell: Annotated[
        list[str] | None, typer.Option(help="A cell by its labels, e.g. 'FedAvg, IID'; repeatable.")
    ] = None,
) -> None:
    """Train cells of a kept table again, and compare every count with what is kept."""
    from pipeline.results.verify import verify

    workspace = Workspace.find()
    (name, *others) = named_specs(workspace, [spec])
    if others:
        raise UserError(f"{spec}: a folder of specs; verify one of them")
    comparisons = verify(workspace, name, cells, cell or [])
    for one in comparisons:
        print(f"{one.cell}: kept {one.kept:.2f}, again {one.again:.2f}: {one.verdict} ({one.run})")
    bad = sum(not one.good for one in comparisons)
    print(f"{len(comparisons) - bad} of {len(comparisons)} runs verified", flush=True)
    if bad:
        print(f"trained again in {os.path.relpath(workspace.home / 'build/verify')}", file=sys.stderr)
        raise typer.Exit(1)


def compare(
    first: Annotated[str, typer.Argument(help="A spec whose report has been made.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
) -> None:
    """Compare the tables of two specs: which cells differ, by how much, and whether beyond chance."""
    from collections import Counter

    from rich.markup import escape
    from rich.table import Table

    from pipeline.results.compare import SAME, compare

    workspace = Workspace.find()
    specs = [name for word in (first, second) for name in named_specs(workspace, [word])]
    if len(specs) != 2:
        raise UserError("pfl compare takes two specs, not a folder of them")
    cells = compare(workspace, *specs)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("cell", *specs, "difference", "verdict"):
        table.add_column(name, justify="left" if name in ("cell", "verdict") else "right", overflow="fold")
    for cell in cells:
        if cell.verdict != SAME:
            table.add_row(*(escape(word) for word in astuple(cell)))
    if table.row_count:
        console().print(table)
    counts = Counter(cell.verdict for cell in cells)
    print(f"{len(cells)} cells: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")


def _compile(workspace: Workspace) -> None:
    from pipeline.compile.compiler import compile_workspace

    write_stages(workspace, compile_workspace(workspace))
