"""One spec with all that is known of it, in the parts that pages print of it, and how well it agrees with its paper."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pipeline.report.claims import LEGEND as CLAIMS_LEGEND
from pipeline.report.claims import VERDICTS as CLAIM_VERDICTS
from pipeline.report.claims import Judgement, judge_claims, weakest_pairs
from pipeline.report.drawing.sections import Picture, PlainTable, Section
from pipeline.report.figures import build_sections
from pipeline.report.legend import facts, legend
from pipeline.report.settings import confounded_settings
from pipeline.report.statistics import BEYOND, FEWEST_SEEDS, NO_VERDICT, WITHIN
from pipeline.report.table import (
    DIVERGED,
    MINUS,
    MISSING,
    NO_VALUE,
    VERDICTS,
    Cell,
    Key,
    Results,
    printed_rank,
    short,
    texts,
)
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import PAPER

STATES = {name: name for name in ("done", "partly", "missing", "diverged", "quoted", "unplanned")}
STATES |= {"partly": "partly done", "unplanned": "not planned"}
"""States of a cell, in their order, and their names in print. ``partly``: some of its runs are done; ``quoted``: no run
is planned, and the paper has the value from an earlier one."""
CLAIM_STATES = (*CLAIM_VERDICTS, "contradicted")
"""Verdicts on obtained values, and ``contradicted``, how many of all claims the paper's own table contradicts."""
WITHIN_POINTS = (1.0, 2.5, 5.0)
"""Distances from a published value, in percentage points, within which obtained ones are counted."""
LEGEND = (
    f"Against the published values: distances are in percentage points; verdicts are on cells with {FEWEST_SEEDS} "
    "seeds of ours or more; order of rows: rank correlations of the obtained with the published values of a column, "
    "Spearman / Kendall (τ-b); comparisons are those that claims make, as far as cells are obtained."
)
Facts = list[tuple[str, str]]


@dataclass(frozen=True)
class Part:
    """A part of a page; every format prints what there is of it, in this order.

    It may begin with the table of `results`; `items` are lines with the address of a page without suffix, or "";
    `folded` opens the table where it is not to be seen at once.
    """

    title: str = ""
    results: bool = False
    picture: Picture | None = None
    facts: Facts = field(default_factory=list)
    claims: Sequence[Judgement] = ()
    text: Sequence[str] = ()
    items: Sequence[tuple[str, str]] = ()
    table: PlainTable | None = None
    folded: str = ""
    note: str = ""
    name: str = ""


class Order(NamedTuple):
    """How well the obtained order of a column's rows agrees with the published one, by rank correlations (τ-b)."""

    table: str
    column: str
    rows: int
    spearman: float
    kendall: float


@dataclass(frozen=True)
class Agreement:
    """What is obtained of a table, or of several, beside what their papers print.

    Attributes:
        published: How many accuracies are published.
        differences: Obtained minus published accuracy of each cell that has both, in points; and verdicts on them.
        claims: ``stated``; ``compared``: those with obtained values to compare; ``agree``: those of which every such
            comparison comes out as the claim says, whatever chance explains; ``comparisons``, and ``agreeing`` of them.
        decided: Verdicts of claims with three seeds of ours or more in every comparison.
    """

    published: int = 0
    differences: list[float] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    orders: list[Order] = field(default_factory=list)
    claims: Counter[str] = field(default_factory=Counter)
    decided: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, results: Results, judgements: Sequence[Judgement]) -> Agreement:
        """Return that of one table."""
        cells, claims = compared_cells(results), Counter(stated=len(judgements))
        for agree, pairs in (judgement.so_far for judgement in judgements):
            claims.update(compared=pairs > 0, agree=agree == pairs > 0, comparisons=pairs, agreeing=agree)
        return cls(
            sum(cell.published is not None and cell.quantity is None for cell in results.cells),
            [round(cell.difference, 6) for cell in cells if cell.difference is not None],
            Counter(cell.verdict for cell in cells if cell.verdict != NO_VERDICT),
            _orders(results, cells),
            claims,
            Counter(judgement.obtained.verdict for judgement in judgements if judgement.decided),
        )

    @classmethod
    def total(cls, several: Iterable[Agreement], published: int) -> Agreement:
        """Return that of several tables, of which so many different accuracies are published."""
        total = cls(published)
        for one in several:
            total.differences.extend(one.differences)
            total.orders.extend(one.orders)
            for name in ("verdicts", "claims", "decided"):
                getattr(total, name).update(getattr(one, name))
        return total

    def numbers(self) -> Facts:
        """Return name and value of what there is to say: distances, verdicts, orders and claims."""
        found, claims = dict[str, str](), self.claims
        if self.published:
            found = {"published accuracies": f"{self.published:,}", "obtained": f"{len(self.differences)}"}
        if self.differences:
            counts = zip(count_within(self.differences), WITHIN_POINTS, strict=True)
            distances = ", ".join(f"{count} within {points:g}" for count, points in counts)
            found["distance in points"] = f"{distances}; median {statistics.median(map(abs, self.differences)):.2f}"
            fewer = len(self.differences) - self.verdicts.total()
            verdicts = {**{name: self.verdicts[name] for name in (WITHIN, BEYOND)}, "with fewer seeds": fewer}
            found["verdicts"] = ", ".join(f"{count} {name}" for name, count in verdicts.items() if count)
        if self.orders:
            several = len({order.table for order in self.orders}) > 1
            found["order of rows"] = "; ".join(
                f"{f'{table}: ' if several else ''}{f'{column}: ' if column else ''}"
                + f"{spearman:.2f} / {kendall:.2f} of {rows} rows".replace("-", MINUS)
                for table, column, rows, spearman, kendall in self.orders
            )
        if claims["compared"]:
            found["claims"] = (
                f"{claims['compared']} of {claims['stated']} can be compared, in {claims['agree']} every comparison "
                f"agrees in direction; {claims['agreeing']} of {claims['comparisons']} comparisons do"
            )
            decided = ", ".join(f"{self.decided[one]} {one}" for one in CLAIM_VERDICTS if self.decided[one])
            found[f"claims with {FEWEST_SEEDS} seeds or more"] = decided or "none"
        return list(found.items())


def compared_cells(results: Results) -> list[Cell]:
    """Return the cells of a table whose accuracy is published and obtained, in its order; none of a trial."""
    return [cell for cell in results.cells if cell.compared and cell.quantity is None]


def count_within(differences: Iterable[float]) -> list[int]:
    """Count the differences within each of :data:`WITHIN_POINTS`; the last digit of a float decides nothing."""
    distances = [round(abs(difference), 9) for difference in differences]
    return [sum(distance <= points for distance in distances) for points in WITHIN_POINTS]


def _orders(results: Results, cells: Iterable[Cell]) -> list[Order]:
    """Return the order of each column of which three rows or more have both values, and neither side one value only."""
    columns, table = defaultdict[Key, list[tuple[float, float]]](list), results.table
    for cell in cells:
        assert cell.published and cell.obtained
        columns[cell.key(table.columns)].append((cell.published.mean, cell.obtained.mean))
    orders, name = list[Order](), (table.paper.table if table.paper else "") or table.spec
    for column, pairs in columns.items():
        if len(pairs) >= 3 and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            from scipy import stats  # takes longer to import than most reports to write

            spearman, kendall = (test(*zip(*pairs, strict=True)) for test in (stats.spearmanr, stats.kendalltau))
            numbers = float(spearman.statistic), float(kendall.statistic)
            orders.append(Order(name, results.layout.column_title(column), len(pairs), *numbers))
    return orders


@dataclass(frozen=True)
class Study:
    """One spec with its results.

    Attributes:
        key: Its name in the page's scripts and drawings.
        folder: Where its pictures lie, relative to the page, with a slash; report: its own report, or "".
        pages: Federation → the page of its partition without suffix, relative to the page; "" for none.
        href: Where it is on the pages of its paper, relative to the first of these: ``#table2``, ``fedtp/table2.html``.
    """

    results: Results
    key: str = "table"
    folder: str = "figures/"
    pages: dict[str, str] = field(default_factory=dict)
    href: str = ""
    report: str = ""

    @property
    def table(self) -> ResolvedTable:
        return self.results.table

    @property
    def heading(self) -> str:
        return heading(self.table)

    @property
    def anchor(self) -> str:
        """Its name in addresses."""
        return self.href.rpartition("/")[2].removeprefix("#").removesuffix(".html")

    @cached_property
    def judgements(self) -> list[Judgement]:
        return judge_claims(self.results)

    @cached_property
    def agreement(self) -> Agreement:
        return Agreement.of(self.results, self.judgements)

    @cached_property
    def coverage(self) -> Counter[str]:
        """Cells by state. One that nobody expects anything of (a hole in the grid) is not counted."""
        counts = Counter[str]()
        for cell in self.results.cells:
            if cell.verdict in (MISSING, DIVERGED):
                counts[cell.verdict] += 1
            elif cell.runs:
                counts["done" if cell.complete else "partly"] += 1
            elif cell.published or cell.misprint:
                counts["quoted" if cell.published and cell.quoted else "unplanned"] += 1
        return counts

    @property
    def verdicts(self) -> Counter[str]:
        """Claims by :data:`CLAIM_STATES`."""
        against = ["contradicted" for one in self.judgements if one.contradicted_by_paper]
        return Counter([*(one.obtained.verdict for one in self.judgements), *against])

    @cached_property
    def sections(self) -> list[Section]:
        return build_sections(self.results)

    @property
    def row_axes(self) -> list[str]:
        return [short(axis) for axis in self.table.rows]

    @cached_property
    def has_published(self) -> bool:
        return any(cell.published for cell in self.results.cells)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A dict per row: labels, cells as :func:`texts` has them, and ranks as printed and for sorting."""
        layout, rows = self.results.layout, []
        for row in layout.rows:
            ranks = [one.values.get((row, at)) for one in self.results.derived for at in range(len(one.groups))]
            printed = [(NO_VALUE, "") if rank is None else (printed_rank(rank), f"{rank:.6g}") for rank in ranks]
            cells = [texts(layout.cell(row, column), self.table.decimals) for column in layout.columns]
            rows.append({"labels": row, "cells": cells, "ranks": printed})
        return rows

    @cached_property
    def notes(self) -> list[str]:
        """Those of the spec, of published values, and what is known of differences."""
        by_note = defaultdict[str, list[Cell]](list)
        for cell in self.results.cells:
            if cell.note:
                by_note[cell.note].append(cell)
            if cell.explained and cell.compared and cell.verdict != WITHIN:
                by_note[f"obtained differs: {cell.explained}"].append(cell)
        where = self.results.layout.whereabouts
        return [*self.table.notes, *(f"{where(cells)}: {note}" for note, cells in by_note.items())]

    def parts(self, elsewhere: Sequence[str] = ()) -> Iterator[Part]:
        """Yield what a page says of it, but for notes that stand `elsewhere` on the page."""
        results, cells = self.results, self.results.cells
        unplanned = results.layout.whereabouts(cell for cell in cells if cell.published and not cell.runs)
        about = [*facts(results), *([("no run is planned", unplanned)] if unplanned else [])]
        yield Part(results=True, facts=about, text=[legend(results), self._warning()])
        if rows := confounded_settings(self.table, {run.id: run.resolved for run in results.runs.values()}):
            settings = PlainTable(("axis", "setting", "most", "others"), rows, labels=2)
            yield Part("Settings that are not held equal along an axis", table=settings)
        if notes := [(note, "") for note in self.notes if note not in elsewhere]:
            yield Part("Notes", items=notes)
        if counts := Counter(cell.verdict for cell in cells if cell.published):
            tally = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
            columns = [results.layout.column_title(column) for column in results.layout.columns]
            header = (*self.row_axes, *(column or results.layout.figure for column in columns))
            lines = [(*row["labels"], *(cell["compared"] for cell in row["cells"])) for row in self.rows]
            table = PlainTable(header, lines, len(self.row_axes)) if any(cell.compared for cell in cells) else None
            numbers, folded = [("cells", tally), *self.agreement.numbers()], "Obtained minus published, in their units"
            yield Part("Against the published values", facts=numbers, text=[LEGEND], table=table, folded=folded)
        if self.judgements:
            text = [f"The pairs that speak most against each claim; all of them are in {self.folder}claims.csv."]
            pairs = weakest_pairs(self.judgements, self.table.decimals)
            yield Part("Claims", claims=self.judgements, text=text, table=pairs, note=CLAIMS_LEGEND)
        for one in self.sections:
            yield Part(one.title, picture=one.picture, text=[one.text], table=one.table, name=one.name)
        partitions = [(one.words, self.pages.get(one.federation, "")) for one in self.table.partitions]
        yield Part("Partitions", items=partitions)

    def _warning(self) -> str:
        """Say that runs which ask for the same data were not given the same, as may happen with files of one's own."""
        hashes = defaultdict[str, set[str]](set)
        for run in self.results.runs.values():
            hashes[run.resolved.data_id].add(run.facts.get("dataset_hash", ""))
            hashes[run.resolved.federation_id].add(run.facts.get("partition_hash", ""))
        unlike = ", ".join(sorted(part for part, found in hashes.items() if len(found - {""}) > 1))
        return f"NOT COMPARABLE: not all runs had the same data of {unlike} (see Provenance)." if unlike else ""


def heading(table: ResolvedTable) -> str:
    """Return ``Table II: FedTP against …``, or the title alone."""
    place = table.paper.table if table.paper else None
    return f"{place}: {table.title}" if place else table.title


def banner(profile: str) -> str:
    """Return what stands over every page of a profile other than ``paper``."""
    trial = (
        "a trial of the machinery with shrunk models, a few rounds and stand-in data. These numbers say nothing about"
    )
    return "" if profile == PAPER else f"SMOKE PROFILE: {trial} any method."
