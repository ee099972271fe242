"""The page of a partition: what non-IID means here, as Markdown, HTML, SVG and CSV."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflcore.data.assignment import Assignment
from pflcore.data.heterogeneity import Heterogeneity, heterogeneity
from pflcore.data.samples import Samples
from pflcore.files import write_text
from pipeline.report.formats import aligned, environment, escape_markdown, inline_svg, legible
from pipeline.report.partitions.picture import MAX_CLIENTS, alt_text, partition_svg, shown_clients
from pipeline.spec.run import describe_component

_CLIENT_COLUMNS = (
    ("client", "its number"),
    ("train", "training samples"),
    ("test", "test samples"),
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
    notes: list[tuple[str, str]]
    left_out: int
    alt: str


def write_partition_page(record: dict[str, Any], samples: Samples, assignment: Assignment, out: Path) -> None:
    """Write ``index.md``, ``index.html``, ``picture.svg`` and ``clients.csv`` into the folder `out`.

    Args:
        record: The federation: dataset, partition, clients and seed.
    """
    measures = heterogeneity(samples, assignment)
    table = client_table(measures, assignment)
    page = _page(record, samples, assignment, measures, table)
    svg = partition_svg(samples, assignment, measures)
    write_text(out / "index.md", _markdown(page))
    template = environment(autoescape=True).get_template("partition.html.j2")
    write_text(out / "index.html", template.render(page=page, svg=inline_svg(svg)))
    write_text(out / "picture.svg", svg)
    write_text(out / "clients.csv", table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def client_table(measures: Heterogeneity, assignment: Assignment) -> pd.DataFrame:
    """One row per client, then its samples of each class for training and for test."""
    table = pd.DataFrame(
        {
            "client": np.arange(measures.clients),
            "train": measures.train.sum(axis=1),
            "test": measures.test.sum(axis=1),
            "classes": (measures.train > 0).sum(axis=1),
            "entropy": measures.entropy,
            "distance": measures.distance,
            "split distance": measures.split_distance,
        }
    )
    if assignment.noise:
        table["noise"] = assignment.noise.std
    if assignment.novel:
        table["novel"] = np.isin(table["client"], assignment.novel).astype(int)
    return table


def summarise(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """For each measure of the clients its smallest, median, mean and largest value, as text."""
    measures = [name for name in table.columns if name not in ("client", "novel")]
    rows = []
    for name in measures:
        values = table[name]
        rows.append((name, *(_number(x) for x in (values.min(), values.median(), values.mean(), values.max()))))
    return rows


def _page(
    record: dict[str, Any], samples: Samples, assignment: Assignment, measures: Heterogeneity, table: pd.DataFrame
) -> PartitionPage:
    unused = len(samples) - measures.used
    facts = [
        ("dataset", f"{describe_component(record['dataset'])}, from {samples.source}"),
        ("partition", describe_component(record["partition"])),
        ("clients", f"{measures.clients:,}" + (f", {len(assignment.novel)} of them novel" if assignment.novel else "")),
        ("seed", str(record["seed"])),
        ("samples", f"{measures.used:,} held, {unused:,} left out"),
    ]
    listed = table.iloc[shown_clients(measures.clients)]
    classes: list[tuple[str, ...]] = [
        (legible(name), f"{holders:,}", f"{train:,}", f"{test:,}")
        for name, holders, train, test in zip(
            samples.class_names, measures.holders, measures.train.sum(axis=0), measures.test.sum(axis=0), strict=True
        )
    ]
    return PartitionPage(
        title=f"{record['partition']['name']} on {samples.name}, {measures.clients:,} clients, seed {record['seed']}",
        facts=facts,
        summary=summarise(table),
        clients=[tuple(table.columns), *(tuple(_number(x) for x in row) for row in listed.itertuples(index=False))],
        classes=classes,
        notes=[note for note in _CLIENT_COLUMNS if note[0] != "client"],
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


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,.3f}"
