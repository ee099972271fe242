"""Datasets on the terminal: how large they are, whether they are here, and where they are looked for."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pflcore.datasets import DATASETS, Dataset
from pflcore.datasets._base import DOWNLOAD
from pipeline.spec.catalog import Catalog
from pipeline.workspace import Workspace, raw_data_folder


def list_datasets(workspace: Workspace, catalog: Catalog, console: Console) -> None:
    """Print all datasets, whether each is here, and where data is looked for."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "what it is", "state", "size", "licence", "source"):
        table.add_column(column, overflow="fold", style="cyan" if column == "name" else "", no_wrap=column == "name")
    for name in catalog.names("dataset"):
        dataset, entry = DATASETS.create(name), catalog.entry("dataset", name)
        cells = (entry.summary, _state(dataset, workspace.home), _size(dataset), dataset.licence, entry.citation)
        table.add_row(name, *map(escape, cells))
    console.print(table)
    console.print(f"\n[dim]Data is looked for in {escape(str(raw_data_folder(workspace.home)))}/<name>/.[/]")


def show_facts(name: str, home: Path, console: Console) -> None:
    """Print what there is to know of a dataset beside its docstring and its options."""
    dataset = DATASETS.create(name)
    folder = raw_data_folder(home) / name
    kind = "images" if len(dataset.shape) == 3 else "texts"
    shape = "×".join(map(str, dataset.shape))
    facts = {
        "state": _state(dataset, home),
        "samples": f"{_size(dataset)}; {kind} of {shape}, {dataset.classes or 'its own'} classes",
        "attributes": ", ".join(dataset.attributes) or "nothing",
        "licence": dataset.licence,
        "from": dataset.homepage or dataset.download_size,
        "looked for": "; ".join(str(folder / pattern) for pattern in dataset.files) or "comes with a library",
    }
    for key, text in facts.items():
        console.print(f"{key}: {escape(text)}", highlight=False)


def _state(dataset: Dataset, home: Path) -> str:
    if dataset.found(raw_data_folder(home) / dataset.name):
        return "ready"
    return f"needs {'download' if dataset.access == DOWNLOAD else 'folder'}"


def _size(dataset: Dataset) -> str:
    counts = dataset.expected
    samples = "" if counts is None else f"{counts[0]:,}" + (f" + {counts[1]:,}" if counts[1] else "")
    return " · ".join(filter(None, [samples, dataset.download_size.partition(":")[0]]))
