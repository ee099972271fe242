"""Commands that validate, compile, plan and run specs, show progress, and remove unused files."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from typing import Annotated

import typer

from pflcore.errors import UserError
from pipeline.cli.common import (
    All,
    AllAdded,
    Profile,
    Specs,
    all_specs,
    console,
    named_specs,
    selected,
    warn_of_skipped,
    write_stages,
)
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.generated import compare, write
from pipeline.progress import warn
from pipeline.raw_data import changed_folders, missing_folders
from pipeline.spec import selection
from pipeline.study.begin import SCHEMA, write_schema
from pipeline.study.variant import write_variant
from pipeline.workspace import PAPER, Workspace

Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Most stages at a time; default: all that fit.")]
KEEP_GOING = "After a failure, continue with everything that does not depend on it."
KeepGoing = Annotated[bool, typer.Option("--keep-going/--fail-fast", help=KEEP_GOING)]
SET = "Run a variant of the spec with a setting changed, e.g. training.rounds=20; repeatable."
CELL = "Only the runs of this cell, by its labels, e.g. 'FedAvg, *', and no report; repeatable."
Cells = Annotated[list[str] | None, typer.Option(help=CELL)]


def validate(specs: Specs = None) -> None:
    """Check specs (default: all), and whether training would refuse any of their runs. Writes no stages."""
    from pipeline.plan.compatibility import compatibility_errors

    workspace = Workspace.find()
    if (workspace.home / SCHEMA).is_file():  # editors then know entries that were added since
        write_schema(workspace.home)
    compilation = compile_workspace(workspace, named_specs(workspace, specs) or all_specs(workspace))
    misfit_lines = compatibility_errors(workspace, compilation, compilation.runs)
    runs_to_make = (run for name, run in compilation.runs.items() if name not in compilation.kept)
    warn([*compilation.ineffective, *missing_folders(workspace, runs_to_make), *misfit_lines])
    if misfit_lines:
        raise typer.Exit(2)
    valid = f"{len(compilation.tables)} specs are" if len(compilation.tables) != 1 else "1 spec is"
    runs = f"{len(compilation.runs)} run{'s' if len(compilation.runs) != 1 else ''}"
    print(f"{valid} valid: {runs}, {compilation.slots} if specs shared none")


def compile_(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 when stages are stale.")] = False,
) -> None:
    """Compile the specs in use to stages/ and dvc.yaml. Files that are up to date are not touched."""
    workspace = Workspace.find()
    compilation = compile_workspace(workspace)
    if not check:
        print(f"{len(compilation.runs)} runs: {write(workspace, compilation).summary}")
        return warn([compilation.untested] if compilation.untested else [])
    compilation.check_tested()
    changes = compare(workspace, compilation)
    if changes:
        print(f"stages are stale ({changes.summary}); run `pfl compile`", file=sys.stderr)
        raise typer.Exit(1)
    print(f"{len(compilation.runs)} runs: stages are up to date")


def add(specs: Annotated[list[str], typer.Argument(help="Specs, or folders of them.")]) -> None:
    """Write the stages of specs on this machine, so that `dvc repro` and all other DVC commands know them."""
    workspace = Workspace.find()
    names, chosen = named_specs(workspace, specs), selected(workspace)
    compilation = compile_workspace(workspace, sorted({*chosen.compiled, *names}))
    concrete = [name for name in names if name in compilation.tables]
    if not concrete:
        raise UserError(f"{', '.join(names)}: abstract; add a spec that extends it")
    selection.add(workspace, [name for name in concrete if name not in chosen.shared])
    write_stages(workspace, compilation)


def drop(specs: Specs = None, all_: AllAdded = False) -> None:
    """Undo `pfl add`. Results stay in DVC's cache, and are used when the specs are added again."""
    if bool(specs) == all_:
        raise UserError("name specs, or give --all")
    workspace = Workspace.find()
    names, chosen = named_specs(workspace, specs), selected(workspace)
    dropped = [name for name in chosen.added if all_ or name in names]
    if names and not dropped:
        reason = "pyproject.toml names it" if names[0] in chosen.shared else "it has not been added here"
        raise UserError(f"{names[0]}: {reason}; there is nothing to drop")
    compilation = compile_workspace(workspace, [name for name in chosen.compiled if name not in dropped])
    selection.drop(workspace, dropped)
    write_stages(workspace, compilation)


def plan(specs: Specs = None, all_: All = False, cell: Cells = None, profile: Profile = PAPER) -> None:
    """Show what `pfl run` would do for each spec, or for some cells: new runs, time and disk space. Runs nothing."""
    from pipeline.plan.estimate import make_plan, plan_lines
    from pipeline.running.options import select_runs

    workspace = Workspace.find(profile=profile)
    typed = named_specs(workspace, specs)
    names = typed or (all_specs(workspace) if all_ else selected(workspace).default)
    compilation = compile_workspace(workspace, names, required=typed)
    warn_of_skipped(compilation)
    warn([*compilation.ineffective, *changed_folders(workspace)])
    runs = select_runs([name for name in names if name in compilation.tables], compilation, cell or [])
    print("\n".join(plan_lines(make_plan(workspace, compilation, runs))))


def run(
    specs: Specs = None,
    all_: All = False,
    jobs: Jobs = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs to use, e.g. 0,1; default: all that are visible.")] = None,
    per_gpu: Annotated[int, typer.Option("--per-gpu", min=1, help="Runs at a time on each GPU.")] = 1,
    keep_going: KeepGoing = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be done, and why.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Address of a Ray cluster to train on.")] = None,
    cell: Cells = None,
    seed: Annotated[list[int] | None, typer.Option(help="Train only this seed; no report; repeatable.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help=SET)] = None,
    profile: Profile = PAPER,
) -> None:
    """Train what is new and write the reports of specs: the same result as `dvc repro`, with stages in parallel."""
    from pipeline.running.options import RunOptions
    from pipeline.running.runner import run_specs

    workspace = Workspace.find(profile=profile)
    names = named_specs(workspace, specs)
    if names and all_:
        raise UserError("name specs, or give --all; not both")
    if set_:
        if len(names) != 1:
            raise UserError("--set makes a variant of one spec; name it")
        if dry_run:
            raise UserError("--set writes a spec, and --dry-run writes nothing; leave one of them out")
        names = [write_variant(workspace, names[0], set_)]
        print(f"specs/{names[0]}.yaml: the variant; it is run again by `pfl run {names[0]}`", flush=True)
    options = RunOptions(
        specs=tuple(names),
        all_specs=all_,
        jobs=jobs,
        gpus=gpus,
        per_gpu=per_gpu,
        keep_going=keep_going,
        dry=dry_run,
        cluster=cluster,
        cells=tuple(cell or ()),
        seeds=tuple(seed or ()),
        command=shlex.join(["pfl", *sys.argv[1:]]),
    )
    raise typer.Exit(run_specs(workspace, options))


def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    profile: Profile = PAPER,
) -> None:
    """Remove artifacts and checkpoints that no spec here needs any more, also from DVC's cache."""
    from rich.filesize import decimal

    from pipeline.running.clean import remove, unused

    workspace = Workspace.find(profile=profile)
    unused_files, sizes = unused(workspace), Counter[str]()
    for path in unused_files:
        sizes["/".join(path.relative_to(workspace.root).parts[:3])] += path.lstat().st_size
    for name, size in sizes.items():
        print(f"{decimal(size):>10}  {name}")
    total = f"{decimal(sizes.total())} in {len(sizes)} places"
    if not unused_files or dry_run:
        clean_message = "nothing to remove: specs ask for all that is here"
        return print(f"{total} could be removed" if unused_files else clean_message)
    if not yes and not typer.confirm(f"Remove {total}?"):
        return print("nothing is removed")
    removed = remove(workspace, unused_files)
    if removed == unused_files:
        print(f"{total} removed")
    else:
        print(f"{len(removed)} of {len(unused_files)} files removed; specs ask for the rest now")


def status(
    all_stages: Annotated[bool, typer.Option("--all", help="Every stage, also what is done or queued.")] = False,
    profile: Profile = PAPER,
) -> None:
    """Show the progress of `pfl run` in this workspace, or how the last one ended."""
    from pipeline.running.board import Board, show_status, status_path

    workspace = Workspace.find(profile=profile)
    warn(changed_folders(workspace))
    board = Board.load(status_path(workspace))
    if board is None:
        return print("nothing has been run here yet; see `pfl run`")
    show_status(board, console(), all_stages)
