"""The specs of papers, resolved, for tests of what they say."""

import tempfile
from functools import cache
from pathlib import Path

from pipeline.spec.catalog import load_catalog
from pipeline.spec.resolve import resolve
from pipeline.spec.specs import load_spec

SPECS = Path(__file__).parents[2] / "specs"


@cache
def catalog_of_all():
    """What specs can name; it takes seconds to collect."""
    with tempfile.TemporaryDirectory() as folder:
        return load_catalog(Path(folder))


@cache
def resolve_spec(name):
    """A spec as published, by its name, None if it is abstract; resolved once per process, and not to be changed."""
    spec = load_spec(SPECS / f"{name}.yaml", SPECS, catalog_of_all())
    return None if spec.body.abstract else resolve(spec, catalog_of_all())
