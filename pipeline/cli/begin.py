"""Beginning: a study, parts of one's own and their checks, data, and what editors and DVC need."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from pflcore.errors import UserError
from pflcore.registry import did_you_mean, use_study
from pipeline.cli.common import Set, console
from pipeline.workspace import Workspace

CHECKED = ("method", "backbone")


def init(
    name: Annotated[Path, typer.Argument(help="The folder to make.")],
    source: Annotated[
        str | None, typer.Option("--from", help="A paper's spec to begin with, or all of a paper.")
    ] = None,
) -> None:
    """Make a study: a folder with a first spec, ready for `dvc repro`."""
    from pipeline.study.begin import create

    specs, folder = create(name, source), os.path.relpath(name)
    print(f"{folder}: a study with {', '.join(f'specs/{spec}.yaml' for spec in specs)}")
    print(f"cd {folder} && dvc repro    # what it will do: pfl plan; a trial in miniature: pfl run --profile smoke")


def new(
    kind: Annotated[str, typer.Argument(help="method, backbone, dataset or partition")],
    name: Annotated[str, typer.Argument(help="What specs shall call it.")],
) -> None:
    """Write a file for a part of your own, which runs as it is, to go on from."""
    from pipeline.study.begin import begin, write_schema

    home = Workspace.find().home
    path = begin(kind, name, home)
    write_schema(home)
    then = f"pfl check {name} tests it" if kind in CHECKED else f"pfl describe {name} shows it"
    print(f"{os.path.relpath(path)}: named `{name}` in specs; {then}")


def check(
    names: Annotated[list[str], typer.Argument(help="A name, or a kind and a name.")],
    set_: Set = None,
    other: Annotated[
        str | None,
        typer.Option("--with", help="The backbone to try a method on, or the method to try a backbone with."),
    ] = None,
) -> None:
    """Try a method or a backbone on small data: does it do what every such entry has to do?"""
    from pipeline.browse.given import given_options
    from pipeline.spec.catalog import load_catalog

    catalog, (*asked, name) = load_catalog(Workspace.find().home), names
    kinds = [kind for kind in CHECKED if name in catalog.names(kind) and asked in ([], [kind])]
    if not kinds:
        known = sorted({name for kind in CHECKED for name in catalog.names(kind)})
        raise UserError(f"no {' or '.join(asked or CHECKED)} is called {name!r}{did_you_mean(name, known)}")
    from pipeline.study.check import check_training

    origin, began, failed = catalog.entry(kinds[0], name).origin, time.monotonic(), 0
    print(" · ".join(filter(None, (name, kinds[0], origin))))
    given = given_options(set_ or [], name)
    for test, passed, said in check_training(kinds[0], name, given, {"name": other} if other else None):
        failed += not passed
        print(f"{'ok  ' if passed else 'FAIL'}  {test:10}  {said}", flush=True)
    print(f"{f'{failed} failed' if failed else 'all passed'}, in {time.monotonic() - began:.0f} s")
    if failed:
        raise typer.Exit(1)


def fetch(name: Annotated[str, typer.Argument(help="A dataset.")], set_: Set = None) -> None:
    """Download what a dataset needs and is not here, as far as a hash is known; say what a person has to get."""
    from pipeline.browse.dataset_view import fetch as fetch_dataset
    from pipeline.browse.given import given_options

    home = Workspace.find().home
    use_study(home)
    fetch_dataset(name, home, console(), given_options(set_ or [], name))


def schema(
    write: Annotated[bool, typer.Option("--write", help="Write it to .pfl/schema.json, where editors look.")] = False,
) -> None:
    """Print the JSON Schema of specs, for editors that complete and check YAML."""
    from pipeline.spec.catalog import load_catalog
    from pipeline.spec.editor_schema import json_schema
    from pipeline.study.begin import write_schema

    home = Workspace.find().home
    print(os.path.relpath(write_schema(home)) if write else json.dumps(json_schema(load_catalog(home)), indent=1))


def setup() -> None:
    """Prepare this checkout for DVC, with or without git."""
    from pipeline.dvc.program import initialise

    initialise(Workspace.find().root)
