"""Datasets on the terminal: their size, whether and where they are on this machine, and their download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from pflcore.data.preparation import preparing
from pflcore.data.samples import TEXT
from pflcore.datasets import DATASETS, Dataset
from pflcore.datasets._base import DOWNLOAD
from pflcore.errors import UserError
from pipeline.browse import plain_table
from pipeline.progress import show_preparation, warn
from pipeline.spec.catalog import Catalog
from pipeline.workspace import Workspace, raw_data_folder


def list_datasets(workspace: Workspace, catalog: Catalog, console: Console) -> None:
    """Print all datasets, whether each is on this machine, and the folder where data is searched."""
    table = plain_table("name", "what it is", "state", "size", "licence", "source")
    for name in catalog.names("dataset"):
        entry = catalog.entry("dataset", name)
        try:
            dataset = DATASETS.create(name)
        except UserError as error:  # a study's own dataset with a required option
            warn([f"skipped: {error}"])
            continue
        source = " · ".join(filter(None, (entry.origin, entry.citation)))
        cells = (entry.summary, _state(dataset, workspace.home), _size(dataset), dataset.licence, source)
        table.add_row(name, *map(escape, cells))
    console.print(table)
    console.print(f"\n[dim]Data is looked for in {escape(str(raw_data_folder(workspace.home)))}/<name>/.[/]")


def show_facts(name: str, home: Path, console: Console, options: Mapping[str, Any] | None = None) -> None:
    """Print the facts about a dataset with the given options; its docstring and options are printed elsewhere. Raises
    :class:`UserError` for an option that the dataset does not have, or an invalid value."""
    dataset = DATASETS.create(name, **options or {})
    parts = dataset.data_files(raw_data_folder(home) / name)
    present = sum(part.path is not None for part in parts)
    presence = f"; {present} of {len(parts)} parts are here" if len(parts) > 1 else ""
    kind = "texts" if dataset.kind == TEXT else dataset.kind
    shape = "×".join(map(str, dataset.shape)) if all(dataset.shape) else "a shape of their own"
    facts = {
        "state": _state(dataset, home) + presence,
        "samples": f"{_size(dataset)}; {kind} of {shape}, {dataset.classes or 'its own'} classes",
        "attributes": ", ".join(dataset.attributes) or "nothing",
        "licence": dataset.licence,
        "from": dataset.homepage or dataset.download_size,
        "needs": "" if parts else "nothing: it comes with a library",
        **{f"  {part.description}": part.status() for part in parts},
    }
    for key, text in facts.items():
        console.print(escape(f"{key}: {text}".rstrip()), highlight=False)


def fetch(name: str, home: Path, console: Console, options: Mapping[str, Any]) -> None:
    """Download the parts of a dataset with the given options whose address and hash are known. Raises
    :class:`UserError` for an unknown dataset or option, a failed download, or parts that a person has to get."""
    manual = []
    for part in DATASETS.create(name, **options).data_files(raw_data_folder(home) / name):
        if part.path is None and part.source and part.source.direct:
            with show_preparation() as show, preparing(show, None):
                part.source.obtain(part.folder)
        elif part.path is None and not part.automatic:
            manual.append(part.description)
        console.print(escape(f"{part.description}: {part.status()}"), highlight=False)
    if manual:
        parts = ", ".join(manual)
        raise UserError(f"{name}: get {parts} yourself; the lines above say from where, and where to put it")


def _state(dataset: Dataset, home: Path) -> str:
    if dataset.available(raw_data_folder(home) / dataset.name):
        return "ready"
    return f"needs {'download' if dataset.access == DOWNLOAD else 'folder'}"


def _size(dataset: Dataset) -> str:
    samples = " + ".join(f"{count:,}" for count in dataset.expected or () if count)
    return " · ".join(filter(None, [samples, dataset.download_size.partition(":")[0]]))
