"""The commands of ``pfl``."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Annotated

import typer

from pflcore.errors import UserError
from pipeline.cli.browse import describe, fetch, list_, schema
from pipeline.cli.common import all_specs, console, named_specs, selected, write_stages
from pipeline.cli.exchange import export, export_split
from pipeline.cli.results import compare, results, verify
from pipeline.cli.study import check, init, new
from pipeline.stages.cli import stage
from pipeline.workspace import PAPER, Workspace

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(stage, name="stage")
app.add_typer(results, name="results")
for command in (init, new, check, describe, fetch, schema, verify, compare, export, export_split):
    app.command()(command)
app.command("list")(list_)

Some = Annotated[list[str], typer.Argument(help="Specs, e.g. fedtp/table2, or a folder of them, e.g. fedtp.")]
Specs = Annotated[list[str] | None, typer.Argument(help="Specs or folders; all when left out.")]
Wanted = Annotated[list[str] | None, typer.Argument(help="Specs or folders; the default ones when left out.")]
All = Annotated[bool, typer.Option("--all", help="All specs.")]
Profile = Annotated[str, typer.Option(help="paper, smoke, or a profile that the specs define.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"pfl {version('pfl-pipeline')}")
        raise typer.Exit


@app.callback()
def pfl(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compile experiment specs into a DVC pipeline, run it, and read the reports."""


@app.command()
def validate(specs: Specs = None) -> None:
    """Check specs, resolve all their runs, and find what training would refuse. Changes nothing."""
    from pipeline.compile.compiler import compile_workspace
    from pipeline.plan.fit import misfits
    from pipeline.study.schema_file import SCHEMA, write_schema

    workspace = Workspace.find()
    if (workspace.home / SCHEMA).is_file():  # a cache for editors, which then know what has been added
        write_schema(workspace.home)
    compilation = compile_workspace(workspace, named_specs(workspace, specs) or all_specs(workspace))
    if wrong := misfits(workspace, compilation, compilation.runs):
        print("\n".join(f"pfl: {line}" for line in wrong), file=sys.stderr)
        raise typer.Exit(2)
    valid = f"{len(compilation.tables)} specs are" if len(compilation.tables) != 1 else "1 spec is"
    print(f"{valid} valid: {compilation.slots} run slots, {len(compilation.runs)} runs")


@app.command("compile")
def compile_(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 when stages are stale.")] = False,
) -> None:
    """Compile what is selected to stages/ and dvc.yaml. What is up to date is not touched."""
    from pipeline.compile.compiler import compile_workspace
    from pipeline.compile.generated import compare, write

    workspace = Workspace.find()
    compilation = compile_workspace(workspace)
    if not check:
        print(f"{len(compilation.runs)} runs: {write(workspace, compilation).summary()}")
        if compilation.unprobed:
            print(f"pfl: {compilation.unprobed}", file=sys.stderr)
        return
    compilation.check_probed()
    changes = compare(workspace, compilation)
    if changes:
        print(f"stages are stale ({changes.summary()}); run `pfl compile`", file=sys.stderr)
        raise typer.Exit(1)
    print(f"{len(compilation.runs)} runs: stages are up to date")


@app.command()
def add(specs: Some) -> None:
    """Let DVC see the stages of specs, on this machine: `dvc repro` and all its other commands know them then."""
    from pipeline.compile.compiler import compile_workspace
    from pipeline.spec.selection import add

    workspace = Workspace.find()
    names, selection = named_specs(workspace, specs), selected(workspace)
    compilation = compile_workspace(workspace, sorted({*selection.compiled, *names}))
    concrete = [name for name in names if name in compilation.tables]
    if not concrete:
        raise UserError(f"{', '.join(names)}: only to be extended; add a spec that extends it")
    add(workspace, [name for name in concrete if name not in selection.shared])
    write_stages(workspace, compilation)


@app.command()
def drop(
    specs: Wanted = None,
    all_: Annotated[bool, typer.Option("--all", help="All that were added.")] = False,
) -> None:
    """Undo `pfl add`. What has been computed stays in DVC's cache, and is found there when they are added again."""
    from pipeline.compile.compiler import compile_workspace
    from pipeline.spec.selection import drop

    if bool(specs) == all_:
        raise UserError("name specs, or give --all")
    workspace = Workspace.find()
    names, selection = named_specs(workspace, specs), selected(workspace)
    dropped = [name for name in selection.added if all_ or name in names]
    if names and not dropped:
        why = "pyproject.toml names it" if names[0] in selection.shared else "it has not been added here"
        raise UserError(f"{names[0]}: {why}; there is nothing to drop")
    compilation = compile_workspace(workspace, [name for name in selection.compiled if name not in dropped])
    drop(workspace, dropped)
    write_stages(workspace, compilation)


@app.command()
def plan(
    specs: Wanted = None,
    all_: All = False,
    profile: Profile = PAPER,
    gpu: Annotated[
        float | None,
        typer.Option(min=0.001, help="Also say, spec by spec, how long a GPU takes that sustains so many TFLOP/s."),
    ] = None,
) -> None:
    """Say what there is to do, before anything runs: new runs, time and disk, spec by spec."""
    from pipeline.compile.compiler import compile_workspace
    from pipeline.plan.plan import make_plan
    from pipeline.plan.printed import plan_lines

    workspace = Workspace.find(profile=profile)
    names = named_specs(workspace, specs) or (all_specs(workspace) if all_ else selected(workspace).default)
    compilation = compile_workspace(workspace, names)
    figures = make_plan(workspace, compilation)
    print("\n".join(plan_lines(figures)))
    if figures.cached and any(table.claims for table in compilation.tables.values()):  # what is imported takes long
        from pipeline.plan.seeds import seeds_of_claims

        for line in seeds_of_claims(workspace.root, compilation):
            print(f"seeds: {line}")
    if gpu:
        from pipeline.plan.gpu_hours import GpuEstimate, gpu_hours

        hours_on_gpu = gpu_hours(figures.missing, gpu)
        print(f"GPU hours: about {hours_on_gpu:.2g} at {gpu:g} TFLOP/s sustained")
        for line in GpuEstimate(gpu, workspace.root).lines(figures.missing, compilation.runs_of_specs()):
            print(line)


@app.command()
def run(
    specs: Wanted = None,
    all_: All = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Stages at a time; default: what fits.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs to use, e.g. 0,1; default: all that are visible.")] = None,
    per_gpu: Annotated[int, typer.Option("--per-gpu", min=1, help="Runs at a time on each GPU.")] = 1,
    abreast: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs that differ in seeds and numbers, side by side in a process; on GPUs 8, else 1."
        ),
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going/--fail-fast", help="After a failure, go on with what does not depend on it.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and why.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Address of a Ray cluster that does the work.")] = None,
    cell: Annotated[
        list[str] | None, typer.Option(help="Only runs of this cell, no report: labels, e.g. 'FedAvg, *'; repeatable.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only runs with this seed; repeatable.")] = None,
    profile: Profile = PAPER,
) -> None:
    """Compile, then bring specs' reports up to date: the same as `dvc repro`, in parallel."""
    from pipeline.running.request import Wish
    from pipeline.running.runner import run_specs

    workspace = Workspace.find(profile=profile)
    names = named_specs(workspace, specs)
    if names and all_:
        raise UserError("name specs, or give --all; not both")
    wish = Wish(
        tuple(names),
        all_,
        jobs,
        gpus,
        per_gpu,
        abreast,
        keep_going,
        dry_run,
        cluster,
        tuple(cell or ()),
        tuple(seed or ()),
    )
    raise typer.Exit(run_specs(workspace, wish))


@app.command()
def status(
    everything: Annotated[bool, typer.Option("--all", help="Every stage, also what is done or queued.")] = False,
    profile: Profile = PAPER,
) -> None:
    """Say how far the `pfl run` of this workspace is, or how the last one ended."""
    from pflcore.room import Room
    from pipeline.running.board import Board, status_path
    from pipeline.running.display import show_status

    workspace = Workspace.find(profile=profile)
    board, room = Board.load(status_path(workspace)), Room.of(workspace.private)
    if board is None:
        print("nothing has been run here yet; see `pfl run`")
    else:
        show_status(board, console(), everything)
    if room.folder.is_dir():
        print(room)


@app.command()
def report(
    names: Annotated[list[str] | None, typer.Argument(help="Papers, e.g. fedtp; all when left out.")] = None,
    watching: Annotated[bool, typer.Option("--watch", help="Keep the pages up to date until Ctrl-C.")] = False,
    serve: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="With --watch: serve the pages to this machine, at this port; 0 is any."),
    ] = None,
    profile: Profile = PAPER,
) -> None:
    """Write a page per paper, and an index over all of them, from what has been run so far."""
    from pipeline.papers.pages import Papers
    from pipeline.papers.serve import serving
    from pipeline.papers.watch import watch

    workspace = Workspace.find(profile=profile)
    if watching:
        say = partial(print, flush=True)
        if serve is None:
            return watch(workspace, names or [], say)
        with serving(workspace.root / "reports", serve) as address:
            say(address)
            return watch(workspace, names or [], say)
    if serve is not None:
        raise UserError("--serve goes with --watch, which keeps the pages up to date")
    papers = Papers.compiled(workspace)
    chosen = papers.chosen(names or [])
    made = papers.write(chosen)
    for name in chosen:
        print(f"{os.path.relpath(papers.page(name))}{'' if name in made else ' (up to date)'}")
    print(os.path.relpath(papers.index))


@app.command()
def probe(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail unless all is as recorded.")] = False,
) -> None:
    """After an edit of the engine: find out by small runs whether results change, and record it."""
    from pipeline.probe import probing
    from pipeline.progress import show_preparation

    with show_preparation() as show:
        told = probing.check(show) if check else probing.probe(show)
    print(told)


@app.command()
def setup() -> None:
    """Prepare this checkout for DVC, with or without git."""
    from pipeline.dvc.program import initialise

    initialise(Workspace.find().root)
