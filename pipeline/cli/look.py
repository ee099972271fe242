"""Commands that create studies and their parts, download data, list what a spec can name, and show results."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import Annotated

import typer

from pflcore.errors import UserError
from pflcore.registry import KINDS, did_you_mean, use_study
from pipeline.browse import listing, parse_options
from pipeline.cli.common import Profile, Set, all_specs, console, named_specs, print_table, warn_of_skipped
from pipeline.dvc.program import initialise
from pipeline.spec.catalog import load_catalog
from pipeline.spec.editor_schema import json_schema
from pipeline.study.begin import create_part, create_study, write_schema
from pipeline.workspace import PAPER, Workspace

CHECKED = ("method", "backbone")
WITH = "The backbone to test a method on, or the method to test a backbone with."
LISTS = "specs, datasets, partitions, backbones, methods, conditions, analyses, metrics or figures"


def init(
    name: Annotated[Path, typer.Argument(help="The folder to create.")],
    source: Annotated[str | None, typer.Option("--from", help="Begin with a spec of a paper, or all of them.")] = None,
) -> None:
    """Create a study: a folder with a first spec, ready for `pfl run`."""
    specs, folder = create_study(name, source), os.path.relpath(name)
    print(f"{folder}: a study with {', '.join(f'specs/{spec}.yaml' for spec in specs)}")
    quoted = shlex.quote(f"./{folder}" if folder.startswith("-") else folder)
    print(f"cd {quoted} && pfl run    # what it would do: pfl plan; a small trial: pfl run --profile smoke")


def new(
    kind: Annotated[str, typer.Argument(help="method, backbone, dataset or partition")],
    name: Annotated[str, typer.Argument(help="Its name in specs.")],
) -> None:
    """Create a file for your own method, backbone, dataset or partition: a working example for you to edit."""
    home = Workspace.find().home
    path = create_part(kind, name, home)
    write_schema(home)
    hint = f"pfl check {name} tests it" if kind in CHECKED else f"pfl describe {name} shows it"
    print(f"{os.path.relpath(path)}: named `{name}` in specs; {hint}")


def check(
    names: Annotated[list[str], typer.Argument(help="A method or backbone: its name, or its kind and name.")],
    set_: Set = None,
    other: Annotated[str | None, typer.Option("--with", help=WITH)] = None,
) -> None:
    """Test a method or a backbone with the generic tests and small data."""
    if len(names) > 2 or (len(names) == 2 and names[0] not in CHECKED):
        raise UserError(f"check takes a name, or a kind ({', '.join(CHECKED)}) and a name; got {' '.join(names)!r}")
    catalog, (*requested, name) = load_catalog(Workspace.find().home), names
    kinds = [kind for kind in CHECKED if name in catalog.names(kind) and requested in ([], [kind])]
    if not kinds:
        catalog.check_part(name, requested or CHECKED)
        all_names = sorted({name for kind in CHECKED for name in catalog.names(kind)})
        raise UserError(f"no {' or '.join(requested or CHECKED)} is called {name!r}{did_you_mean(name, all_names)}")
    from pipeline.study.check import check_training

    origin, began, failed = catalog.entry(kinds[0], name).origin, time.monotonic(), 0
    print(" · ".join(filter(None, (name, kinds[0], origin))))
    options = parse_options(set_ or [], name)
    for test, passed, detail in check_training(kinds[0], name, options, {"name": other} if other else None):
        failed += not passed
        print(f"{'ok  ' if passed else 'FAIL'}  {test:10}  {detail}", flush=True)
    print(f"{f'{failed} failed' if failed else 'all passed'}, in {time.monotonic() - began:.0f} s")
    raise typer.Exit(failed > 0)


def fetch(
    name: Annotated[str, typer.Argument(help="A dataset, or hf:OWNER/NAME of the Hugging Face hub.")], set_: Set = None
) -> None:
    """Download the missing files of a dataset whose hash is known, and list the files that you must get yourself."""
    from pipeline.browse.dataset_view import fetch as fetch_dataset
    from pipeline.browse.hub import PREFIX, fetch_from_hub

    home = Workspace.find().home
    if name.startswith(PREFIX):
        if set_:
            raise UserError(f"{name}: takes no --set; options of image_table belong into the spec")
        return fetch_from_hub(name, home, console())
    use_study(home)
    fetch_dataset(name, home, console(), parse_options(set_ or [], name))


def schema(
    write: Annotated[bool, typer.Option("--write", help="Write it to .pfl/schema.json, where editors look.")] = False,
) -> None:
    """Print the JSON Schema of specs, for editors that complete and check YAML."""
    home = Workspace.find().home
    print(os.path.relpath(write_schema(home)) if write else json.dumps(json_schema(load_catalog(home)), indent=1))


def setup() -> None:
    """Prepare this checkout for DVC, with or without git."""
    initialise(Workspace.find().root)


def list_(what: Annotated[str, typer.Argument(help=LISTS)]) -> None:
    """List the specs, or what a spec can name."""
    workspace = Workspace.find()
    listing.list_kind(what, workspace, load_catalog(workspace.home), console())


def describe(
    names: Annotated[list[str], typer.Argument(help="A name, or a kind and a name; `partition` also takes a spec.")],
    dataset: Annotated[str | None, typer.Option(help="Draw the partition of this dataset.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients to draw it for.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed to draw it with.")] = 0,
    set_: Set = None,
) -> None:
    """Explain an entry, a group of settings or a part of specs (spec, grid, table, ...). A partition is also drawn."""
    if len(names) > 2 or (len(names) == 2 and names[0] not in KINDS):
        raise UserError(f"describe takes a name, or a kind ({', '.join(KINDS)}) and a name; got {' '.join(names)!r}")
    workspace, terminal = Workspace.find(), console()
    catalog = load_catalog(workspace.home)
    kind, name = names[0] if len(names) == 2 else None, names[-1]
    if kind in (None, "partition") and name in catalog.names("partition"):
        from pipeline.browse.partition_view import Drawing, example_record  # slow: NumPy, pyarrow

        record = example_record(name, catalog, dataset=dataset, clients=clients, seed=seed, options=set_ or [])
        drawing = Drawing.make(record, workspace.root)
        listing.describe(name, workspace, catalog, terminal, kind)
        return drawing.show(terminal)
    if kind == "partition" and name in all_specs(workspace):
        from pipeline.browse.partition_view import draw_spec

        return draw_spec(name, workspace, catalog, terminal)
    options = None
    if set_ and kind in (None, "dataset") and name in catalog.names("dataset"):
        kind, options, set_ = "dataset", parse_options(set_, name), None
    if dataset or clients or set_:
        allowed = "--dataset, --clients and --set are for partitions (--set also for datasets)"
        raise UserError(f"{allowed}; {name!r} is none")
    listing.describe(name, workspace, catalog, terminal, kind, options)


def results(
    spec: Annotated[str, typer.Argument(help="A spec.")],
    per_client: Annotated[bool, typer.Option("--per-client", help="A row per run and client, after training.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, unrounded; for a file add > cells.csv.")] = False,
    profile: Profile = PAPER,
) -> None:
    """Print the results of a spec, one row per cell of its table."""
    from pipeline.cli.obtained import load_results, print_frame  # slow: pandas

    frame = load_results(Workspace.find(profile=profile), spec, per_client)
    if csv:
        return print(frame.to_csv(index=False), end="")
    print_frame(frame)


def compare(
    first: Annotated[str, typer.Argument(help="A spec.")],
    second: Annotated[str, typer.Argument(help="The spec to compare it with.")],
    where: Annotated[list[str] | None, typer.Option(help="Only this label, e.g. clients=50; repeatable.")] = None,
) -> None:
    """Compare the tables of two specs side by side: obtained and published values, and differences beyond chance."""
    from pipeline.cli.obtained import printed_warnings  # slow: pandas
    from pipeline.library.compare import SAME, compare
    from pipeline.library.study import Study

    workspace = Workspace.find()
    specs = [name for word in (first, second) for name in named_specs(workspace, [word])]
    if len(specs) != 2:
        raise UserError("pfl compare takes two specs, not a folder of them")
    for word in where or []:
        if "=" not in word:
            raise UserError(f"--where {word!r} must be AXIS=LABEL, e.g. clients=50")
    labels = dict(word.split("=", 1) for word in where or [])
    with printed_warnings():
        cells, numbers = compare(Study(workspace), specs[0], specs[1], labels), [*specs, "difference"]
    print_table(["cell", *numbers, "verdict"], numbers, (astuple(cell) for cell in cells if cell.verdict != SAME))
    counts = Counter(cell.verdict for cell in cells)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    print(f"{len(cells)} cell{'' if len(cells) == 1 else 's'}: {verdicts}")


def report(
    names: Annotated[list[str] | None, typer.Argument(help="Papers, e.g. fedtp; default: all.")] = None,
    profile: Profile = PAPER,
) -> None:
    """Write a page per paper and an index of all papers, from the results so far."""
    from pipeline.papers.pages import Papers

    papers = Papers.compile(Workspace.find(profile=profile))
    warn_of_skipped(papers.compilation)
    chosen = papers.select(names or [])
    written = papers.write(chosen)
    for name in chosen:
        print(f"{os.path.relpath(papers.page(name))}{'' if name in written else ' (up to date)'}")
    print(os.path.relpath(papers.index))
