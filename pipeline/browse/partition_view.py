"""A picture of a partition on the terminal: clients are rows, classes are columns, shades are shares of samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pflcore.data.assignment import Assignment
from pflcore.data.heterogeneity import Heterogeneity, heterogeneity
from pflcore.data.sample_files import read_facts
from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS, stand_in, stand_in_counts
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, partition
from pipeline.browse import parse_options, plain_table
from pipeline.report.formats import printable_name
from pipeline.spec.catalog import Catalog, Invalid
from pipeline.spec.resolve import resolve
from pipeline.spec.run import Run, describe_component, options
from pipeline.spec.specs import find_specs, load_spec
from pipeline.workspace import Workspace, dataset_path

_MAX_ROWS, _MAX_COLUMNS, _BAR = 24, 40, 20  # lines, and characters
_SHADES = " ·░▒▓█"
_STAND_IN_SIZE = (2_000, 500)  # samples of a stand-in for a dataset whose size is known only from its data


def draw_spec(name: str, workspace: Workspace, catalog: Catalog, console: Console) -> None:
    """Draw every partition of a spec, each for its first seed. Raises :class:`UserError` for an invalid spec."""
    spec = load_spec(find_specs(workspace.specs, {})[name], workspace.specs, catalog)
    if spec.body.abstract:
        raise UserError(f"specs/{name}.yaml: is abstract, so it has no runs")
    resolved = resolve(spec, catalog)
    records = {run.federation_id: run.federation for run in resolved.runs}
    for drawn in resolved.table.partitions:
        Drawing.make(records[drawn.federation], workspace.root).show(console)


def example_record(name: str, catalog: Catalog, **chosen: Any) -> dict[str, Any]:
    """Return the record of a federation that shows a partition. `chosen` has ``options`` (``key=value`` words),
    ``seed``, ``dataset`` (a name) and ``clients``; if the last two are None, the partition's example has them. Raises
    :class:`UserError` for an unknown dataset or option, or an invalid value."""
    prefix = ""
    dataset, clients = catalog.entry("partition", name).facts["example"]
    values = {"name": name, **parse_options(chosen["options"], name)}
    try:
        data = catalog.validate("dataset", {"name": chosen["dataset"] or dataset})
        prefix = f"{name}."
        record = {
            "dataset": data,
            "partition": catalog.validate("partition", values),
            "clients": chosen["clients"] or clients,
            "seed": chosen["seed"],
        }
        return Run(record).federation
    except Invalid as error:
        raise UserError(f"{f'{prefix}{error.option}: ' if prefix and error.option else ''}{error.message}") from None


@dataclass(frozen=True)
class Drawing:
    """A partition to be shown. `record` is the federation's; `real` is False if the samples are generated."""

    record: dict[str, Any]
    samples: Samples
    assignment: Assignment
    real: bool = True

    @classmethod
    def make(cls, record: dict[str, Any], root: Path) -> Drawing:
        """Partition the dataset's artifact if it exists, or else generated samples, as many as the dataset has, evenly
        spread over its classes and attributes. Raises :class:`UserError` if the partition does not suit the dataset."""
        artifact = root / dataset_path(Run(record).data_id)
        if real := artifact.is_file():
            samples = read_facts(artifact)
        else:
            chosen = Run(record).options("dataset")
            size = chosen.pop("stand_in", None)
            dataset = DATASETS.create(record["dataset"]["name"], **chosen)
            counts = stand_in_counts(size) if size else dataset.expected or _STAND_IN_SIZE
            samples = stand_in(dataset, *Run(record).client_sample_counts(counts), with_images=False)
        scheme = PARTITIONS.create(record["partition"]["name"], **options(record["partition"]))
        return cls(record, samples, partition(scheme, samples, record["clients"], record["seed"]), real)

    def show(self, console: Console) -> None:
        """Print the picture and, below it, a few figures over all clients."""
        from pipeline.report.partitions import client_frame, summarise  # imported late, since it imports matplotlib

        samples, measures = self.samples, heterogeneity(self.samples, self.assignment)
        title = f"{describe_component(self.record['partition'])} on {samples.name}, seed {self.record['seed']}"
        console.print(f"\n[bold]{escape(title)}[/]")
        console.print(_shares_table(samples, self.assignment, measures))
        width = -(-samples.classes // _MAX_COLUMNS)
        unit = "a class" if width == 1 else f"{width} classes"
        limits = " to ".join(escape(printable_name(samples.class_names[end])) for end in (0, -1))
        console.print(f"[dim]a column is {unit}, from {limits}[/]")
        numbers = ("smallest", "median", "mean", "largest")
        figures = plain_table("over clients", *numbers, right=numbers)
        for row in summarise(client_frame(measures, self.assignment)):
            figures.add_row(*row)
        console.print(figures)
        low, high = measures.holders.min(), measures.holders.max()
        console.print(f"clients per class: {low:,} to {high:,}; samples left out: {len(samples) - measures.used:,}")
        if not self.real:
            console.print(f"[dim]Drawn with generated labels: {samples.name} has not been prepared here.[/]")


def _shares_table(samples: Samples, assignment: Assignment, measures: Heterogeneity) -> Table:
    clients = np.unique(np.linspace(0, measures.clients - 1, min(measures.clients, _MAX_ROWS)).round().astype(int))
    bins = np.arange(samples.classes) // -(-samples.classes // _MAX_COLUMNS)
    size, noise = measures.train.sum(axis=1), assignment.noise
    unique = [name for name, counts in measures.attributes.items() if ((counts > 0).sum(axis=1) == 1).all()]
    table = plain_table("client", "classes", "training samples", *unique, *(["noise"] if noise else []))
    table.columns[0].justify = "right"
    shares = np.stack([np.bincount(bins, weights=measures.train[client]) / max(size[client], 1) for client in clients])
    shades = np.array(list(_SHADES))[np.ceil(shares / shares.max() * (len(_SHADES) - 1) - 1e-9).astype(int)]
    for client, row in zip(clients, shades, strict=True):
        bar = "█" * max(1, round(_BAR * size[client] / size.max()))
        cells = [f"{client}{'*' if client in assignment.novel else ''}", "".join(row), f"{bar} {size[client]:,}"]
        cells += [samples.attributes[name].names[int(measures.attributes[name][client].argmax())] for name in unique]
        table.add_row(*map(escape, cells), *([f"{noise.std[client]:.1f}"] if noise else []))
    notes = [f"{_SHADES[-1]} is {shares.max():.0%} of the client's training samples"]
    notes += [f"{len(clients)} of {measures.clients:,} clients are shown"] if len(clients) < measures.clients else []
    notes += ["* is novel: takes no part in training"] if assignment.novel else []
    table.caption, table.caption_justify = "; ".join(notes), "left"
    return table
