"""One spec with its results, split into the parts of a page."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from pipeline.report.agreement import AGREEMENT_LEGEND, Agreement
from pipeline.report.cells import DIVERGED, MISSING, NOT_REACHED, VERDICTS, Cell, Key
from pipeline.report.claim_tables import weakest_pairs
from pipeline.report.claims import CLAIM_LEGEND, CLAIM_VERDICTS, Judgement, judge_claims
from pipeline.report.drawing.sections import PlainTable, Section
from pipeline.report.figures import build_sections
from pipeline.report.legend import facts, legend
from pipeline.report.printed import NO_VALUE, PrintedCell, format_value, print_cell, printed_rank, short
from pipeline.report.settings import confounded_settings
from pipeline.report.spread import SPREAD_LEGEND, spread_table
from pipeline.report.statistics import WITHIN
from pipeline.report.table import Results
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import PAPER

STATES = {
    "done": "done",
    "partly": "partly done",
    "missing": "missing",
    "diverged": "diverged",
    "quoted": "quoted",
    "unplanned": "not planned",
}
"""States of a cell, in order, and their names in print. ``partly``: some of its runs are done; ``quoted``: no run is
planned, and the paper quotes the value from an earlier one."""
CLAIM_STATES = (*CLAIM_VERDICTS, "contradicted")
"""Verdicts on obtained values, and ``contradicted``: claims that the paper's own table contradicts."""
Facts = list[tuple[str, str]]
_CAPTION = 260  # letters of two lines


class PrintedRow(NamedTuple):
    """A row as it is printed: labels, cells, and ranks as text and as a number to sort by."""

    labels: Key
    cells: list[PrintedCell]
    ranks: list[tuple[str, str]]

    @property
    def is_empty(self) -> bool:
        return all(cell.obtained in ("", NO_VALUE) and not cell.published for cell in self.cells)


@dataclass(frozen=True)
class SpecReport:
    """One spec with its results.

    Attributes:
        key: Name of the report in the page's scripts and drawings.
        folder: Folder of its pictures, relative to the page, with a slash; own: address of its own report, or "".
        pages: Federation → address of its partition's page without suffix, relative to the page, if it has one.
        href: Address on the pages of its paper, relative to the first of these: ``#table2``, ``fedtp/table2.html``.
    """

    results: Results
    key: str = "table"
    folder: str = "figures/"
    pages: dict[str, str] = field(default_factory=dict)
    href: str = ""
    own: str = ""

    @property
    def table(self) -> ResolvedTable:
        return self.results.table

    @property
    def heading(self) -> str:
        """The table's heading: ``Table II: FedTP against …``, or the title alone."""
        place = self.table.paper.table if self.table.paper else None
        return f"{place}: {self.table.title}" if place else self.table.title

    @property
    def anchor(self) -> str:
        """The name of the report in addresses."""
        return self.href.rpartition("/")[2].removeprefix("#").removesuffix(".html")

    @cached_property
    def judgements(self) -> list[Judgement]:
        return judge_claims(self.results)

    @cached_property
    def agreement(self) -> Agreement:
        return Agreement.of(self.results, self.judgements)

    @cached_property
    def coverage(self) -> Counter[str]:
        """Number of cells by state, without cells that have neither runs nor a published value."""
        counts = Counter[str]()
        for cell in self.results.cells:
            if cell.verdict in (MISSING, DIVERGED):
                counts[cell.verdict] += 1
            elif cell.runs:
                unreached = cell.verdict == NOT_REACHED and all(self.results.runs[run].made for run in cell.runs)
                counts["done" if cell.complete or unreached else "partly"] += 1
            elif cell.published or cell.misprint:
                counts["quoted" if cell.published and cell.quoted else "unplanned"] += 1
        return counts

    @property
    def verdicts(self) -> Counter[str]:
        """Number of claims by :data:`CLAIM_STATES`."""
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
        """Whether a cell has a published value, which may be a misprint."""
        return any(cell.published or cell.misprint for cell in self.results.cells)

    @cached_property
    def caption(self) -> tuple[str, str]:
        """The sentences of the caption that fit into two lines, at least one, and the others."""
        first, *others = re.split(r"(?<=\.) (?=[A-Z0-9])", self.table.caption or self.table.title)
        while others and len(first) + len(others[0]) < _CAPTION:
            first = f"{first} {others.pop(0)}"
        return first, " ".join(others)

    @cached_property
    def best(self) -> list[str]:
        """The best row of each column that has one, with its number: ``Dirichlet(1): FedPer 77.75±2.41``."""
        results, found = self.results, []
        for cell in (cell for cell in results.cells if cell.best_obtained):
            column, row = results.column_title(cell.key(self.table.columns)), " · ".join(cell.key(self.table.rows))
            number = format_value(cell.obtained, self.table.decimals)
            found.append(f"{column}{': ' if column else ''}{row} {number}")
        return found

    @cached_property
    def rows(self) -> list[PrintedRow]:
        """The rows with a number; all rows, if one or two or all have none."""
        return [row for row in self._all_rows if not (self.absent and row.is_empty)]

    @cached_property
    def absent(self) -> str:
        """The rows without any number, counted and named, if these are three or more beside others; else ""."""
        empty = [" · ".join(row.labels) for row in self._all_rows if row.is_empty]
        if not 3 <= len(empty) < len(self._all_rows):
            return ""
        return f"Without a number yet: {len(empty)} of {len(self._all_rows)} rows: {', '.join(empty)}."

    @cached_property
    def _all_rows(self) -> list[PrintedRow]:
        results, rows = self.results, []
        for row in results.rows:
            ranks = [one.values.get((row, at)) for one in results.derived for at in range(len(one.groups))]
            printed = [(NO_VALUE, "") if rank is None else (printed_rank(rank), f"{rank:.6g}") for rank in ranks]
            cells = [print_cell(results.cell(row, column), self.table.decimals) for column in results.columns]
            rows.append(PrintedRow(row, cells, printed))
        return rows

    @cached_property
    def notes(self) -> list[str]:
        """Notes of the spec, notes on published values, and known reasons for differences."""
        by_note = defaultdict[str, list[Cell]](list)
        for cell in self.results.cells:
            if cell.note:
                by_note[cell.note].append(cell)
            if cell.explained and cell.is_compared and cell.verdict != WITHIN:
                by_note[f"obtained differs: {cell.explained}"].append(cell)
        where = self.results.whereabouts
        return [*self.table.notes, *(f"{where(cells)}: {note}" for note, cells in by_note.items())]

    def parts(self, elsewhere: Sequence[str] = ()) -> Iterator[Section]:
        """Yield the sections of a page about the spec, without notes that are `elsewhere` on the page."""
        results, cells = self.results, self.results.cells
        unplanned = results.whereabouts(cell for cell in cells if cell.published and not cell.runs)
        about = [*self._facts, *([("no run is planned", unplanned)] if unplanned else [])]
        text, folded = "\n\n".join((self.absent, self._warning())), "How these numbers are made and marked"
        words = f"{self.caption[1]} {legend(results)}".strip()
        yield Section(text, results=True, facts=about, folded=folded, note=words)
        if self._confounded:
            settings = PlainTable(("axis", "setting", "most", "others"), self._confounded, labels=4)
            yield Section(title="Settings that are not held equal along an axis", table=settings)
        if spread := spread_table(results):
            yield Section(title="Spread", table=spread, note=SPREAD_LEGEND)
        if notes := [(note, "") for note in self.notes if note not in elsewhere]:
            yield Section(title="Notes", items=notes)
        if any(cell.is_compared for cell in cells):
            counts = Counter(cell.verdict for cell in cells if cell.published)
            tally = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
            columns = [results.column_title(column) for column in results.columns]
            header = (*self.row_axes, *(column or results.figure for column in columns))
            lines = [(*row.labels, *own) for row in self.rows if any(own := [cell.comparison for cell in row.cells])]
            table = PlainTable(header, lines, len(self.row_axes))
            numbers, folded = [("cells", tally), *self.agreement.numbers()], "Obtained minus published, in their units"
            title = "Against the published values"
            yield Section(AGREEMENT_LEGEND, title=title, facts=numbers, table=table, folded=folded)
        if self.judgements:
            text = f"The pairs that speak most against each claim; all of them are in {self.folder}claims.csv."
            pairs = weakest_pairs(self.judgements, self.table.decimals)
            more = Section(text, table=pairs, note=CLAIM_LEGEND) if pairs.rows else Section()
            yield replace(more, title="Claims", claims=self.judgements)
        yield from self.sections
        partitions = [(one.words, self.pages.get(one.federation, "")) for one in self.table.partitions]
        yield Section(title="Partitions", items=partitions)

    @cached_property
    def _facts(self) -> Facts:
        return facts(self.results)

    @cached_property
    def _confounded(self) -> list[tuple[str, ...]]:
        return confounded_settings(self.table, {run.id: run.settings for run in self.results.runs.values()})

    def _warning(self) -> str:
        """Return a warning if runs with one dataset or partition had different data (own files may cause it), or ""."""
        hashes = defaultdict[str, set[str]](set)
        for run in filter(lambda run: run.facts, self.results.runs.values()):
            hashes[run.resolved.data_id].add(run.facts.get("dataset_hash", ""))
            hashes[run.resolved.federation_id].add(run.facts.get("partition_hash", ""))
        unlike = ", ".join(sorted(part for part, found in hashes.items() if len(found - {""}) > 1))
        return f"NOT COMPARABLE: not all runs had the same data of {unlike} (see Provenance)." if unlike else ""


def banner_of(profile: str) -> str:
    """Return the warning on top of every page of a profile other than ``paper``; "" for ``paper``."""
    trial = (
        "a trial of the machinery with shrunk models, a few rounds and stand-in data. These numbers say nothing about"
    )
    return "" if profile == PAPER else f"SMOKE PROFILE: {trial} any method."
