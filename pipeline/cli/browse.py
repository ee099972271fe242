"""``pfl list``, ``pfl describe``, ``pfl fetch`` and ``pfl schema``: what a spec can name, and what that is."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from pflcore.errors import UserError
from pipeline.cli.common import all_specs, console
from pipeline.workspace import Workspace


def list_(
    what: Annotated[str, typer.Argument(help="specs, datasets, partitions, backbones, methods, analyses")],
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
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the partition or dataset, as alpha=0.1.")
    ] = None,
) -> None:
    """Explain a dataset, partition, backbone, method, analysis or group of settings. A partition is also drawn."""
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


def fetch(
    name: Annotated[str, typer.Argument(help="A dataset.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="An option of it, as lists=fedbn.")] = None,
) -> None:
    """Download what a dataset needs and is not here, as far as a hash is known; say what a person has to get."""
    from pflcore.registry import use_study
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
    from pipeline.study.schema_file import write_schema

    if write:
        return print(os.path.relpath(write_schema(Workspace.find().home)))
    print(json.dumps(json_schema(load_catalog(Workspace.find().home)), indent=1))
