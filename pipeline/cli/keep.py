"""Commands that keep results in the ledger, and that export models and partitions as files for other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pflcore.errors import UserError
from pipeline.cli.common import Kept, Profile, all_specs, named_specs, print_table, warn_of_skipped, write_stages
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.generated import to_yaml
from pipeline.ledger import Ledger
from pipeline.progress import warn
from pipeline.workspace import PAPER, Workspace

CELL = "A cell by its labels, e.g. 'FedAvg, IID'; repeatable."


def keep(specs: Kept) -> None:
    """Add the up-to-date results of specs to results/. Runs with kept results are not trained again."""
    from pipeline.results.keep import keep

    workspace, total = Workspace.find(), 0
    for spec in named_specs(workspace, specs):
        result = keep(workspace, spec)
        total += len(result.added) + result.already_kept
        location = f" in {os.path.relpath(result.file)}" if result.file else ""
        before = f", {result.already_kept} were before" if result.already_kept else ""
        print(f"{spec}: {len(result.added)} runs kept{location}{before}")
        for reason, count in result.skipped.items():
            print(f"{count} left out: they {reason}")
    if not total:
        raise UserError("nothing is kept; `pfl run` the spec first")
    write_stages(workspace)


def drop(specs: Kept) -> None:
    """Remove the kept results of specs. Their runs are trained again when a report needs them."""
    workspace = Workspace.find()
    names = named_specs(workspace, specs)
    compilation = compile_workspace(workspace, names, names, ledger=False)
    print(f"{Ledger(workspace.root).drop([*compilation.runs, *compilation.selections])} results dropped")
    write_stages(workspace)


def list_() -> None:
    """List kept results: when they were obtained, and whether specs still use them and the code is unchanged."""
    from pipeline.results.keep import CURRENT, list_entries

    workspace = Workspace.find()
    compilation = compile_workspace(workspace, all_specs(workspace), (), ledger=False)
    warn_of_skipped(compilation)
    rows = list_entries(Ledger(workspace.root), compilation)
    print_table(rows[0] if rows else (), ("accuracy", "seconds"), (tuple(row.values()) for row in rows))
    current = sum(row["state"] == CURRENT for row in rows)
    print(f"{len(rows)} kept results, {current} of them current; all specs together have {len(compilation.runs)} runs")


def show(run: Annotated[str, typer.Argument(help="The id of a run.")]) -> None:
    """Show a kept result: settings, versions of the code, machine, and accuracy and loss per round."""
    from pipeline.results.keep import curve_of, find_entry

    entry = find_entry(Ledger(Workspace.find().root), run)
    seconds = None if entry.seconds is None else f"{entry.seconds:,.1f}"
    print(to_yaml({"run": entry.run.id, "obtained": entry.obtained, "seconds": seconds}), end="")
    print(to_yaml({"made_by": entry.made_by, "facts": entry.facts, "settings": entry.run.record}), end="")
    print("\nround  accuracy %      loss")
    for round_, accuracy, loss in curve_of(entry):
        print(f"{round_:5d}  {accuracy:10.2f}  {loss:8.4f}")


def report() -> None:
    """Write docs/results.md, which compares published numbers with kept results."""
    from pipeline.results.report import write_report

    changed = write_report(Workspace.find())
    print("\n".join(os.path.relpath(path) for path in changed) or "up to date")


def verify(
    spec: Annotated[str, typer.Argument(help="A spec with kept results.")],
    cells: Annotated[int, typer.Option(min=1, help="Number of cells, drawn at random.")] = 3,
    cell: Annotated[list[str] | None, typer.Option(help=CELL)] = None,
) -> None:
    """Train some kept cells of a spec again, and compare every count with the kept results."""
    from pipeline.results.verify import verify

    workspace = Workspace.find()
    (name, *others) = named_specs(workspace, [spec])
    if others:
        raise UserError(f"{spec}: a folder of specs; verify one of them")
    comparisons = verify(workspace, name, cells, cell or [])
    for run in comparisons:
        print(f"{run.cell}: kept {run.kept:.2f}, again {run.repeated:.2f}: {run.verdict} ({run.run})")
    failures = sum(not run.agrees for run in comparisons)
    means = "accuracies are means over a run's window, or its last ten measurements if these are more"
    print(f"{len(comparisons) - failures} of {len(comparisons)} runs verified; {means}", flush=True)
    if failures:
        warn([f"trained again in {os.path.relpath(workspace.home / 'build/verify')}"])
        raise typer.Exit(1)


def export(
    run: Annotated[str, typer.Argument(help="The id of a run, or a cell, e.g. 'quickstart: FedTP, pathological'.")],
    client: Annotated[int, typer.Option(help="The client, counted from 0.")],
    out: Annotated[Path | None, typer.Option(help="Folder; default: exports/RUN-clientN.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed, if the cell has several.")] = None,
    profile: Profile = PAPER,
) -> None:
    """Export the model of a client as a safetensors file."""
    from pipeline.library.models import export

    path = export(Workspace.find(profile=profile), run, client, seed, out)
    print(f"{os.path.relpath(path)}  {path.stat().st_size:,} bytes")


def export_split(
    spec: Annotated[str, typer.Argument(help="A spec that was run here, e.g. quickstart.")],
    out: Annotated[Path, typer.Option(help="Folder for the files, one per federation.")] = Path("exports"),
    profile: Profile = PAPER,
) -> None:
    """Export the partitions of a spec as CSV files with the columns sample,client,split, for other tools or studies."""
    from pflcore.data.assignment_files import write_split
    from pipeline.library.spec_results import SpecResults

    results = SpecResults.load(Workspace.find(profile=profile), spec)
    federations, skipped = results.assignments()
    if skipped:
        warn([f"{skipped} federations are left out, not made here or stale; type `{results.command}`"])
    for run, _, assignment in federations:
        path = out / f"{run.federation_id}.csv"
        write_split(path, assignment)
        print(f"{os.path.relpath(path)}  {sum(map(len, assignment.train)):,} training samples")
