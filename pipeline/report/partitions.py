"""The page of a partition, on how the data of clients differ, as Markdown, HTML, SVG and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import read_assignment
from pflcore.data.heterogeneity import Heterogeneity, heterogeneity
from pflcore.data.sample_files import read_facts
from pflcore.data.samples import Samples
from pflcore.files import write_text
from pipeline.report.drawing.sections import Picture, PlainTable, Section, figure_style
from pipeline.report.formats import csv_text, printable_name
from pipeline.report.render import Document, html, markdown
from pipeline.spec.run import Run, describe_component
from pipeline.workspace import PAPER

MAX_CLIENTS = 100
_MAX_NAMES = 24  # values of an attribute with a panel, and classes with names at the axis
_SPLITS = {"train": "#0072B2", "test": "#E69F00", "validation": "#009E73"}
_NOTE = (
    "Samples per split; classes that a client trains on; entropy of its training labels in bits; their distance to all "
    "clients' labels (total variation, the share that would have to change) and, as split distance, to its test labels "
    "(chance alone gives some). Every client is a line of clients.csv."
)


def describe(federation: Run, dataset: Path, partition: Path, out: Path) -> str:
    """Write the page of a federation from its artifacts into the folder `out`; return a line to show."""
    samples, assignment = read_facts(dataset), read_assignment(partition)
    assignment.check(samples.train)
    write_partition_page(federation.record, samples, assignment, out)
    return f"{federation.partition}: {out / 'index.md'}"


def write_partition_page(record: dict[str, Any], samples: Samples, assignment: Assignment, out: Path) -> None:
    """Write ``index.md``, ``index.html``, ``picture.svg`` and ``clients.csv`` into the folder `out`; the record has the
    federation's dataset, partition, clients and seed."""
    measures = heterogeneity(samples, assignment)
    clients = client_frame(measures, assignment)
    classes, size = (measures.train > 0).sum(axis=1), measures.train.sum(axis=1)
    alt = (
        f"Heat map of {measures.clients:,} clients against {samples.classes} classes of {samples.name}: a client "
        f"trains on {classes.min()} to {classes.max()} classes and holds {size.min():,} to {size.max():,} samples."
    )
    with figure_style():
        picture = Picture(_draw(samples, assignment, measures), alt)
    facts = {
        "dataset": f"{describe_component(record['dataset'])}, from {samples.source}",
        "partition": describe_component(record["partition"]),
        "clients": f"{len(clients):,}{f', {len(assignment.novel)} of them novel' if assignment.novel else ''}",
        "seed": str(record["seed"]),
        "samples": f"{measures.used:,} held, {len(samples) - measures.used:,} left out",
    }
    by_class = zip(measures.holders, measures.train.sum(axis=0), measures.test.sum(axis=0), strict=True)
    rows = [(printable_name(name), *map(_number, row)) for name, row in zip(samples.class_names, by_class, strict=True)]
    summary = PlainTable(("", "smallest", "median", "mean", "largest"), summarise(clients), 1)
    sections = [
        Section(picture=picture, facts=list(facts.items()), name="picture"),
        Section(title="Over clients", table=summary, note=_NOTE),
        Section(title="Classes", table=PlainTable(("class", "clients", "training samples", "test samples"), rows, 1)),
    ]
    title = f"{record['partition']['name']} on {samples.name}, {len(clients):,} clients, seed {record['seed']}"
    page = Document(title, PAPER, sections=sections)
    write_text(out / "index.md", markdown("page.md.j2", page=page))
    write_text(out / "index.html", html("page.html.j2", page=page))
    write_text(out / "picture.svg", picture.svg)
    write_text(out / "clients.csv", csv_text(clients))


def client_frame(measures: Heterogeneity, assignment: Assignment) -> pd.DataFrame:
    """Return a line per client: samples, classes, how its labels differ from those of others, noise, and novelty."""
    clients = pd.DataFrame({"client": np.arange(measures.clients)})
    for split in _SPLITS:
        if (counts := getattr(measures, split)) is not None:
            clients[split] = counts.sum(axis=1)
    clients["classes"] = (measures.train > 0).sum(axis=1)
    clients["entropy"] = measures.entropy
    clients["distance"] = measures.distance
    clients["split distance"] = measures.split_distance
    if assignment.noise:
        clients["noise"] = assignment.noise.std
    if assignment.novel:
        clients["novel"] = clients["client"].isin(assignment.novel).astype(int)
    return clients


def summarise(clients: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the smallest, median, mean and largest value of each measure of the clients, as text."""
    measures = clients.drop(columns=["client", "novel"], errors="ignore").agg(["min", "median", "mean", "max"])
    return [(str(name), *map(_number, values)) for name, values in measures.items()]


def _number(value: float) -> str:
    """Return an integer as it is, any other number with three decimal places."""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,.3f}"


def _draw(samples: Samples, assignment: Assignment, measures: Heterogeneity) -> Figure:
    """Draw clients as rows, evenly chosen if there are many: a heat map over classes, one over each attribute with few
    values, and bars of sizes and noise. Maps show shares, as counts of a large client would make others pale."""
    count = measures.clients
    drawn = np.unique(np.linspace(0, count - 1, min(count, MAX_CLIENTS)).round().astype(np.int64))
    maps = [("class", measures.train, samples.class_names)]
    for name, counts in measures.attributes.items():
        if 1 < counts.shape[1] <= _MAX_NAMES:
            maps.append((name, counts, samples.attributes[name].names))
    widths = [float(np.clip(1.4 + 0.2 * counts.shape[1], 2.4, 6.0)) for _, counts, _ in maps]
    widths += [1.7, 1.7] if assignment.noise else [1.7]
    lengths = [len(name) for _, _, names in maps if len(names) <= _MAX_NAMES for name in names]
    height = float(np.clip(0.16 * len(drawn), 1.4, 8.0)) + 1.2 + 0.075 * max(lengths, default=0)
    figure = Figure(figsize=(max(9.5, sum(widths) + 1.2), height), layout="constrained")
    panels = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
    for panel in panels:
        panel.grid(visible=False)
    for panel, (title, counts, names) in zip(panels, maps, strict=False):
        shares = counts[drawn] / np.maximum(counts[drawn].sum(axis=1, keepdims=True), 1)
        image = panel.imshow(shares, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
        panel.set_xlabel(title)
        if len(names) <= _MAX_NAMES:
            panel.set_xticks(range(len(names)), [printable_name(name) for name in names], rotation=90, parse_math=False)
        else:
            panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        figure.colorbar(image, ax=panel, shrink=0.6, pad=0.01, label="share of the samples")
    position, sizes, starts = np.arange(len(drawn)), panels[len(maps)], np.zeros(len(drawn))
    for name, colour in _SPLITS.items():
        if (counts := getattr(measures, name)) is not None:
            sizes.barh(position, counts[drawn].sum(axis=1), left=starts, height=0.8, color=colour, label=name)
            starts += counts[drawn].sum(axis=1)
    sizes.set_xlabel("samples")
    sizes.xaxis.set_major_locator(MaxNLocator(3))
    sizes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8, handlelength=1.0)
    if assignment.noise:
        panels[-1].barh(position, np.array(assignment.noise.std)[drawn], color="#555555", height=0.8)
        panels[-1].set_xlabel("noise (std)")
    novel, first = np.isin(drawn, assignment.novel), panels[0]
    first.set_ylabel("client (circle: novel)" if novel.any() else "client")
    margin = {"clip_on": False, "transform": first.get_yaxis_transform()}
    first.plot(np.full(novel.sum(), -0.02), position[novel], "o", markersize=3, color="#D55E00", **margin)
    ticks = position if len(drawn) <= 20 else position[:: int(np.ceil(len(drawn) / 10))]
    first.set_yticks(ticks, [str(client) for client in drawn[ticks]])
    first.set_ylim(len(drawn) - 0.5, -0.5)
    return figure
