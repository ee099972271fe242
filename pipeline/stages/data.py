"""The data stage: it converts a raw dataset, or a generated stand-in for it, to one Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pflcore.data.preparation import preparing
from pflcore.data.sample_files import write_samples
from pflcore.datasets import DATASETS, stand_in, stand_in_counts
from pipeline.spec.run import options


def run(
    record: Mapping[str, Any],
    out: Path,
    raw: Path,
    scratch: Path | None = None,
    show: Callable[[str, int, int], None] = lambda *_: None,
) -> str:
    """Load a dataset from its folder below `raw` and write it to `out`; return a line to show.

    Arrays that do not fit into memory go to the folder `scratch`; with None they stay in memory. `show` is called with
    the name of the work, the number of steps done and the number of all steps.
    """
    chosen, name = options(dict(record)), record["name"]
    size = chosen.pop("stand_in")
    dataset = DATASETS.create(name, **chosen)
    with preparing(show, scratch):
        samples = stand_in(dataset, *stand_in_counts(size)) if size else dataset.load(raw / name)
        write_samples(out, samples)
    return f"{name}: {len(samples):,} samples, {samples.classes} classes, from {samples.source}"
