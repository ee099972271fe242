"""One spec with all that is known of it, in the parts that pages print of it: its report, and the page of its paper."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipeline.report.agreement import LEGEND as AGREEMENT_LEGEND
from pipeline.report.agreement import Agreement, claim_counts, cover
from pipeline.report.claims import Judgement, judge_claims
from pipeline.report.claims_table import LEGEND as CLAIMS_LEGEND
from pipeline.report.claims_table import weakest_pairs
from pipeline.report.drawing.sections import Picture, PlainTable, Section
from pipeline.report.figures import build_sections
from pipeline.report.legend import facts, legend
from pipeline.report.settings import confounded_settings
from pipeline.report.statistics import NO_VERDICT, WITHIN
from pipeline.report.table.cells import DIVERGED, TRIAL, VERDICTS, Cell
from pipeline.report.table.layout import Span, headed, short, spans
from pipeline.report.table.printed import MISPRINT, NO_VALUE, TIED, UNPLANNED, format_value, printed_rank, signed
from pipeline.report.table.results import Results
from pipeline.spec.metrics import PERCENT
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import PAPER

Facts = list[tuple[str, str]]


@dataclass(frozen=True)
class Part:
    """A part of a page; every format prints what there is of it, in this order.

    Attributes:
        results: Whether it begins with the table of a study.
        items: Lines, each with the address of a page without suffix, or "".
        folded: What opens the table, where it is not to be seen at once.
        scriptless: The table says what readers of the HTML page can choose to see in the table of the study.
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
    scriptless: bool = False
    note: str = ""
    name: str = ""


@dataclass(frozen=True)
class Study:
    """One spec with its results.

    Attributes:
        key: Its name in the page's scripts and drawings.
        folder: Where its pictures lie, relative to the page, with a slash.
        pages: Federation → the page of its partition without suffix, relative to the page; "" for none.
        href: Where it is on the pages of its paper, relative to the first of these: ``#table2``, ``fedtp/table2.html``.
        report: Where its own report lies, relative to the page; "" for none.
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
        return cover(self.results.cells)

    @cached_property
    def verdicts(self) -> Counter[str]:
        return claim_counts(self.judgements)

    @cached_property
    def sections(self) -> list[Section]:
        return build_sections(self.results)

    @property
    def row_axes(self) -> list[str]:
        return [short(axis) for axis in self.results.layout.row_axes]

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
    def headers(self) -> list[list[Span]]:
        """The levels over cells and ranks, outer to inner; the last has a span for every column."""
        layout, derived = self.results.layout, self.results.derived
        heads = layout.heads
        depth = max(len(heads[0]), 1 + any(len(one.groups) > 1 for one in derived))
        heads = [("",) * (depth - len(head)) + head for head in heads]
        for one in derived:
            axes = [(at, axis) for at, axis in enumerate(layout.column_axes) if axis not in one.over]
            titles = [" · ".join(headed(axis, group[0][at]) for at, axis in axes) for group in one.groups]
            inner = [("",) * (depth - 2) + (title,) for title in titles]
            heads += [(one.title, *head) for head in inner] if len(titles) > 1 else [("",) * (depth - 1) + (one.title,)]
        return spans(heads)

    @cached_property
    def facts(self) -> Facts:
        unplanned = [cell for cell in self.results.cells if _unplanned(cell)]
        where = [("no run is planned", self.results.layout.whereabouts(unplanned))] if unplanned else []
        return [*facts(self.results), *where]

    @cached_property
    def notes(self) -> list[str]:
        """Those of the spec, of published values, and what is known of differences."""
        by_note = defaultdict[str, list[Cell]](list)
        for cell in self.results.cells:
            if cell.note:
                by_note[cell.note].append(cell)
            if cell.explained and _compared(cell) and cell.verdict != WITHIN:
                by_note[f"obtained differs: {cell.explained}"].append(cell)
        where = self.results.layout.whereabouts
        return [*self.table.notes, *(f"{where(cells)}: {note}" for note, cells in by_note.items())]

    def parts(self, elsewhere: Sequence[str] = ()) -> Iterator[Part]:
        """Yield what a page says of it, but for notes that stand `elsewhere` on the page."""
        yield Part(results=True, facts=self.facts, text=[" ".join(legend(self.results)), self._warning()])
        runs = {run.id: run.resolved for run in self.results.runs.values()}
        if rows := confounded_settings(self.table, runs):
            settings = PlainTable(("axis", "setting", "most", "others"), rows, labels=2)
            yield Part("Settings that are not held equal along an axis", table=settings)
        if notes := [(note, "") for note in self.notes if note not in elsewhere]:
            yield Part("Notes", items=notes)
        if cells := [cell for cell in self.results.cells if cell.published]:
            counts = Counter(cell.verdict for cell in cells)
            tally = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
            text, table = [AGREEMENT_LEGEND], self._differences() if any(map(_compared, cells)) else None
            text += ["Obtained minus published, each in its own unit:"] if table else []
            numbers = [("cells", tally), *self.agreement.numbers()]
            yield Part("Against the published values", facts=numbers, text=text, table=table, scriptless=True)
        if self.judgements:
            text = [f"The pairs that speak most against each claim; all of them are in {self.folder}claims.csv."]
            pairs = weakest_pairs(self.judgements, self.table.decimals)
            yield Part("Claims", claims=self.judgements, text=text, table=pairs, note=CLAIMS_LEGEND)
        for one in self.sections:
            yield Part(one.title, picture=one.picture, text=[one.text], table=one.table, name=one.name)
        partitions = [(one.words, self.pages.get(one.federation, "")) for one in self.table.partitions]
        yield Part("Partitions", items=partitions)

    def _differences(self) -> PlainTable:
        layout = self.results.layout
        header = (*self.row_axes, *(layout.column_title(column) or layout.figure for column in layout.columns))
        rows = [(*row["labels"], *(cell["compared"] for cell in row["cells"])) for row in self.rows]
        return PlainTable(header, rows, labels=len(self.row_axes))

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
    where = table.paper.table if table.paper else ""
    return f"{where}: {table.title}" if where else table.title


def banner(profile: str) -> str:
    """Return what stands over every page of a profile other than ``paper``."""
    words = (
        "SMOKE PROFILE: a trial of the machinery with shrunk models, a few rounds and stand-in data. "
        "These numbers say nothing about any method."
    )
    return "" if profile == PAPER else words


_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("obtained", "published", "tied", "dagger", "partial", "last", "compared", "verdict"), ""),
    **{"quoted": False, "best_obtained": False, "best_published": False, "sort": ("", "", "")},
}


def texts(cell: Cell | None, decimals: int) -> dict[str, Any]:
    """Return a cell as it is printed; "" for what there is not.

    Partial is ``2/3`` where 2 of 3 runs are done; last is the value after the last round beside a mean over the last
    measurements; compared is ``+1.53 beyond noise (0.90)``, by how much the two may differ by chance; sort has the
    obtained and the published mean and the difference as numbers.
    """
    if cell is None:
        return _NOTHING
    placeholder = "" if not cell.runs else DIVERGED if cell.verdict == DIVERGED else NO_VALUE
    difference, unit = cell.difference if _compared(cell) else None, cell.quantity.unit if cell.quantity else PERCENT
    numbers = (cell.obtained and cell.obtained.mean, cell.published and cell.published.mean, difference)
    words = [] if difference is None else [signed(difference, decimals, unit)]
    words += [cell.verdict] if cell.verdict != NO_VERDICT else []
    words += [] if cell.noise is None else [f"({cell.noise:.{decimals}f})"]
    return {
        "obtained": format_value(cell.obtained, decimals) or placeholder,
        "published": cell.misprint + MISPRINT if cell.misprint else format_value(cell.published, decimals),
        **{name: getattr(cell, name) for name in ("quoted", "best_obtained", "best_published", "verdict")},
        "tied": TIED if cell.tied else "",
        "dagger": UNPLANNED if _unplanned(cell) else "",
        "partial": f"{cell.n}/{len(cell.runs)}" if cell.obtained and not cell.complete else "",
        "last": format_value(cell.last, decimals),
        "compared": " ".join(words),
        "sort": tuple("" if number is None else f"{number:.6g}" for number in numbers),
    }


def _compared(cell: Cell) -> bool:
    """Return whether it says something how far a cell is from its published value."""
    return cell.difference is not None and cell.verdict != TRIAL


def _unplanned(cell: Cell) -> bool:
    return bool(cell.published and not cell.runs)
