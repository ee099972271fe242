"""The page of a partition: what non-IID means here, as Markdown, HTML, SVG and CSV."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pflcore.data.assignment import Assignment
from pflcore.data.heterogeneity import Heterogeneity, heterogeneity
from pflcore.data.samples import Samples
from pflcore.files import write_text
from pipeline.escape import escape_markdown
from pipeline.report.formats import aligned, csv_text, environment, inline_svg, legible
from pipeline.report.partitions.clients import Columns, client_columns, number, summarise
from pipeline.report.partitions.picture import MAX_CLIENTS, alt_text, partition_svg, shown_clients
from pipeline.spec.run import describe_component

_CLIENT_COLUMNS = (
    ("train", "training samples"),
    ("test", "test samples"),
    ("validation", "samples held back from training for validation"),
    ("classes", "classes that it trains on"),
    ("entropy", "of its training labels, in bits"),
    ("distance", "of its training labels to all clients': total variation, the share that would have to change"),
    ("split distance", "of its training labels to its test labels, likewise; chance alone gives some"),
)


@dataclass(frozen=True)
class PartitionPage:
    """What the page says, before any format."""

    title: str
    facts: list[tuple[str, str]]
    summary: list[tuple[str, ...]]
    clients: list[tuple[str, ...]]
    classes: list[tuple[str, ...]]
    notes: tuple[tuple[str, str], ...]
    left_out: int
    alt: str


def write_partition_page(record: dict[str, Any], samples: Samples, assignment: Assignment, out: Path) -> None:
    """Write ``index.md``, ``index.html``, ``picture.svg`` and ``clients.csv`` into the folder `out`.

    Args:
        record: The federation: dataset, partition, clients and seed.
    """
    measures = heterogeneity(samples, assignment)
    columns = client_columns(measures, assignment)
    page = _page(record, samples, assignment, measures, columns)
    svg = partition_svg(samples, assignment, measures)
    write_text(out / "index.md", _markdown(page))
    template = environment(autoescape=True).get_template("partition.html.j2")
    write_text(out / "index.html", template.render(page=page, svg=inline_svg(svg)))
    write_text(out / "picture.svg", svg)
    write_text(out / "clients.csv", csv_text(pd.DataFrame(columns)))


def _page(
    record: dict[str, Any], samples: Samples, assignment: Assignment, measures: Heterogeneity, columns: Columns
) -> PartitionPage:
    unused = len(samples) - measures.used
    facts = [
        ("dataset", f"{describe_component(record['dataset'])}, from {samples.source}"),
        ("partition", describe_component(record["partition"])),
        ("clients", f"{measures.clients:,}" + (f", {len(assignment.novel)} of them novel" if assignment.novel else "")),
        ("seed", str(record["seed"])),
        ("samples", f"{measures.used:,} held, {unused:,} left out"),
    ]
    shown = shown_clients(measures.clients)
    rows = zip(*(values[shown] for values in columns.values()), strict=True)
    classes: list[tuple[str, ...]] = [
        (legible(name), f"{holders:,}", f"{train:,}", f"{test:,}")
        for name, holders, train, test in zip(
            samples.class_names, measures.holders, measures.train.sum(axis=0), measures.test.sum(axis=0), strict=True
        )
    ]
    return PartitionPage(
        title=f"{record['partition']['name']} on {samples.name}, {measures.clients:,} clients, seed {record['seed']}",
        facts=facts,
        summary=summarise(columns),
        clients=[tuple(columns), *(tuple(map(number, row)) for row in rows)],
        classes=classes,
        notes=tuple((name, words) for name, words in _CLIENT_COLUMNS if name in columns),
        left_out=max(0, measures.clients - MAX_CLIENTS),
        alt=alt_text(samples, measures),
    )


def _markdown(page: PartitionPage) -> str:
    def table(header: list[str], rows: list[tuple[str, ...]]) -> str:
        return aligned([header, *([escape_markdown(cell) for cell in row] for row in rows)], left=1)

    template = environment(autoescape=False).get_template("partition.md.j2")
    return template.render(
        page=page,
        md=escape_markdown,
        summary=table(["", "smallest", "median", "mean", "largest"], page.summary),
        clients=table(list(page.clients[0]), page.clients[1:]),
        classes=table(["class", "clients", "training samples", "test samples"], page.classes),
    )
