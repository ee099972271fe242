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


def resolve_specs(paper: str, names: Iterable[str]) -> dict[str, Resolved]:
    """Specs of a paper by name, as published."""
    catalog = catalog_of_all()
    return {name: resolve(load_spec(SPECS / f"{paper}/{name}.yaml", SPECS, catalog), catalog) for name in names}


def first_record(resolved: Resolved, identities: list[str]) -> dict[str, Any]:
    """Of the runs of a cell, the one under the first seed."""
    return min((run.record for run in resolved.runs if run.id in identities), key=lambda record: record["seed"])
