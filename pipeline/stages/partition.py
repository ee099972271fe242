"""The partition stage: who holds which samples, for training and for test, in one draw."""

from __future__ import annotations

from pathlib import Path

from pflcore.data.assignment import write_assignment
from pflcore.data.sample_files import read_facts
from pflcore.partitions import PARTITIONS, partition
from pipeline.stages.records import options, read_record


def run(record_path: Path, dataset: Path, out: Path) -> str:
    """Partition the `dataset` artifact as the federation record says and write `out`; returns a line to show.

    Raises:
        UserError: The scheme cannot satisfy its minimum for this many clients.
    """
    record = read_record(record_path, "partition", "clients", "seed")
    scheme = PARTITIONS.create(record["partition"]["name"], **options(record["partition"]))
    assignment = partition(scheme, read_facts(dataset), record["clients"], record["seed"])
    write_assignment(out, assignment)
    sizes = sorted(len(rows) for rows in assignment.train)
    return f"{scheme.name}: {record['clients']} clients with {sizes[0]:,} to {sizes[-1]:,} training samples"
