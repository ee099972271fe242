"""The data stage: a raw dataset, or a generated stand-in for it, becomes one Parquet file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pflcore.data.preparation import preparing
from pflcore.data.sample_files import write_samples
from pflcore.datasets import DATASETS, stand_in, stand_in_counts
from pipeline.spec.records import read_record
from pipeline.spec.run import options


def run(
    record_path: Path,
    out: Path,
    raw: Path,
    scratch: Path | None = None,
    show: Callable[[str, int, int], None] = lambda *_: None,
) -> str:
    """Load the dataset named in the record from its folder below `raw` and write it to `out`; returns a line to show.

    Args:
        scratch: Where arrays go that do not fit into memory; None keeps them there all the same.
        show: Called with what is being done, how many steps of it are done, and how many there are.

    Raises:
        UserError: The data is absent and cannot be downloaded, or is not what it should be.
    """
    record = read_record(record_path, "name", "stand_in")
    chosen = options(record)
    size = chosen.pop("stand_in")
    dataset = DATASETS.create(record["name"], **chosen)
    with preparing(show, scratch):
        samples = stand_in(dataset, *stand_in_counts(size)) if size else dataset.load(raw / record["name"])
        write_samples(out, samples)
    return f"{record['name']}: {len(samples):,} samples, {samples.classes} classes, from {samples.source}"
