"""The partition stage: it assigns training and test samples to clients, in one draw."""

from __future__ import annotations

from pathlib import Path

from pflcore.data.assignment_files import write_assignment
from pflcore.data.sample_files import read_facts
from pflcore.partitions import PARTITIONS, partition
from pipeline.spec.run import Run


def run(federation: Run, dataset: Path, out: Path) -> str:
    """Partition a dataset as the record of `federation` says and write the assignment; return a line to show."""
    scheme = PARTITIONS.create(federation.partition, **federation.options("partition"))
    assignment = partition(scheme, read_facts(dataset), federation.clients, federation.seed)
    write_assignment(out, assignment)
    sizes = sorted(len(rows) for rows in assignment.train)
    return f"{scheme.name}: {federation.clients} clients with {sizes[0]:,} to {sizes[-1]:,} training samples"
