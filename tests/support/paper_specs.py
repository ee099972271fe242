"""The specs of a paper, resolved, for tests of what they say."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.spec.catalog import Catalog, load_catalog
from pipeline.spec.resolve import Resolved, resolve
from pipeline.spec.specs import load_spec

SPECS = Path(__file__).parents[2] / "specs"


@cache
def catalog_of_all() -> Catalog:
    """What specs can name; it takes seconds to collect."""
    with tempfile.TemporaryDirectory() as folder:
        return load_catalog(Path(folder))


@cache
def resolve_spec(name: str) -> Resolved:
    """A spec as published, by its name; resolved once per process, and not to be changed."""
    catalog = catalog_of_all()
    return resolve(load_spec(SPECS / f"{name}.yaml", SPECS, catalog), catalog)


def resolve_specs(paper: str, names: Iterable[str]) -> dict[str, Resolved]:
    """Specs of a paper by name, as published."""
    return {name: resolve_spec(f"{paper}/{name}") for name in names}


def runs_by_labels(resolved: Resolved, without: Iterable[str] = ()) -> dict[tuple[str, ...], list[str]]:
    """Run ids of all cells that have any, by their labels, but for those on axes along which they agree."""
    assert resolved.table is not None
    runs: dict[tuple[str, ...], list[str]] = {}
    for cell in resolved.table.cells:
        if cell.runs:
            labels = tuple(label for axis, label in cell.labels.items() if axis not in without)
            assert runs.setdefault(labels, cell.runs) == cell.runs
    return runs


def record(resolved: Resolved, *labels: str, without: Iterable[str] = ()) -> dict[str, Any]:
    """The run of a cell under the first seed."""
    identities = runs_by_labels(resolved, without)[labels]
    return min((run.record for run in resolved.runs if run.id in identities), key=lambda record: record["seed"])
