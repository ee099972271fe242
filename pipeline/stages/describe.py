"""The describe stage: it writes a page about a partition that shows how its clients differ."""

from __future__ import annotations

from pathlib import Path

from pflcore.data.assignment_files import read_assignment
from pflcore.data.sample_files import read_facts
from pipeline.report.partitions import write_partition_page
from pipeline.spec.run import Run


def run(federation: Run, dataset: Path, partition: Path, out: Path) -> str:
    """Write the page of a federation into the folder `out`; return a line to show."""
    samples, assignment = read_facts(dataset), read_assignment(partition)
    assignment.check(len(samples), samples.train)
    write_partition_page(federation.record, samples, assignment, out)
    return f"{federation.partition}: {out / 'index.md'}"
