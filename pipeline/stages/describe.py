"""The describe stage: a partition becomes a page that shows what non-IID means in it."""

from __future__ import annotations

from pathlib import Path

from pflcore.data.assignment_files import read_assignment
from pflcore.data.sample_files import read_facts
from pipeline.report.partitions import write_partition_page
from pipeline.spec.records import read_record
from pipeline.spec.run import FEDERATION


def run(record_path: Path, dataset: Path, partition: Path, out: Path) -> str:
    """Write the page of the federation in `record_path` into the folder `out`; returns a line to show.

    Raises:
        UserError: An artifact is missing or damaged, or they do not belong together.
    """
    record = read_record(record_path, *FEDERATION)
    samples, assignment = read_facts(dataset), read_assignment(partition)
    assignment.check(len(samples), samples.train)
    write_partition_page(record, samples, assignment, out)
    return f"{record['partition']['name']}: {out / 'index.md'}"
