"""``pfl init``, ``pfl new`` and ``pfl check``: a person's own study."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.workspace import Workspace

CHECKED = ("method", "backbone")


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


def new(
    kind: Annotated[str, typer.Argument(help="method, backbone, dataset or partition")],
    name: Annotated[str, typer.Argument(help="What specs shall call it.")],
) -> None:
    """Write a file for a part of your own, which runs as it is, to go on from."""
    from pipeline.study.parts import begin
    from pipeline.study.schema_file import write_schema

    home = Workspace.find().home
    path = begin(kind, name, home)
    write_schema(home)
    then = f"pfl check {name} tests it" if kind in CHECKED else f"pfl describe {name} shows it"
    print(f"{os.path.relpath(path)}: named `{name}` in specs; {then}")


def check(
    names: Annotated[list[str], typer.Argument(help="A name, or a kind and a name.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="An option of it, as mu=0.1.")] = None,
    other: Annotated[
        str | None,
        typer.Option("--with", help="The backbone to try a method on, or the method to try a backbone with."),
    ] = None,
) -> None:
    """Try a method or a backbone on small data: does it do what every such entry has to do?"""
    from pipeline.browse.given import given_options
    from pipeline.spec.catalog import load_catalog

    home = Workspace.find().home
    catalog = load_catalog(home)
    kinds = [kind for kind in CHECKED if names[-1] in catalog.names(kind)]
    wanted = names[:-1] or kinds[:1]
    if len(names) > 2 or wanted[0:1] != [kind for kind in kinds if kind in wanted][:1] or not wanted:
        known = sorted({name for kind in CHECKED for name in catalog.names(kind)})
        raise UserError(
            f"no {' or '.join(names[:-1] or CHECKED)} is called {names[-1]!r}{did_you_mean(names[-1], known)}"
        )
    from pipeline.study.check import check_training

    (kind,), name, given = wanted, names[-1], given_options(set_ or [], names[-1])
    entry, began = catalog.entry(kind, name), time.monotonic()
    print(f"{name} · {kind}{entry.origin and f' · {entry.origin}'}")
    failed = 0
    for verdict in check_training(kind, name, given, {"name": other} if other else None):
        failed += not verdict.passed
        print(f"{'ok  ' if verdict.passed else 'FAIL'}  {verdict.test:10}  {verdict.said}", flush=True)
    print(f"{f'{failed} failed' if failed else 'all passed'}, in {time.monotonic() - began:.0f} s")
    if failed:
        raise typer.Exit(1)
