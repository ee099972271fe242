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
from pipeline.report.printed import NO_VALUE, PrintedCell, axis_title, format_rank, format_value, print_cell
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
"""States of a cell, in order, and their printed names. ``partly``: some of its runs are done; ``quoted``: no run is
planned, and the paper quotes the value from an earlier one."""
CLAIM_STATES = (*CLAIM_VERDICTS, "contradicted")
"""Verdicts on obtained values, and ``contradicted``: claims that the paper's own table contradicts."""
Facts = list[tuple[str, str]]
_SMOKE_WARNING = (
    "SMOKE PROFILE: a trial of the machinery with shrunk models, a few rounds and stand-in data. These numbers say "
    "nothing about any method."
)
_CAPTION = 260  # characters of two lines


class PrintedRow(NamedTuple):
    """A printed row: labels, cells, and ranks as text and as a number to sort by."""

    labels: Key
    cells: list[PrintedCell]
    ranks: list[tuple[str, str]]

    @property
    def is_empty(self) -> bool:
        return all(cell.obtained in ("", NO_VALUE) and not cell.published for cell in self.cells)


@dataclass(frozen=True)
class SpecReport:
    """A spec with its results.

    Attributes:
        key: Name of the report in the page's scripts and drawings.
        folder: Folder of its pictures, relative to the page, with a slash; report_href: address of its report, or "".
        pages: Federation → address of its partition's page without suffix, relative to the page, if it has one.
        href: Address on the pages of its paper, relative to the first of these: ``#table2``, ``fedtp/table2.html``.
    """

    results: Results
    key: str = "table"
    folder: str = "figures/"
    pages: dict[str, str] = field(default_factory=dict)
    href: str = ""
    report_href: str = ""

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
        return Agreement.from_results(self.results, self.judgements)

    @cached_property
    def coverage(self) -> Counter[str]:
        """Number of cells by state. Cells with neither runs nor a published value are ignored."""
        counts = Counter[str]()
        for cell in self.results.cells:
            if cell.verdict in (MISSING, DIVERGED):
                counts[cell.verdict] += 1
            elif cell.runs:
                unreached = cell.verdict == NOT_REACHED and all(self.results.runs[run].finished for run in cell.runs)
                counts["done" if cell.complete or unreached else "partly"] += 1
            elif cell.published or cell.misprint:
                counts["quoted" if cell.published and cell.quoted else "unplanned"] += 1
        return counts

    @property
    def verdicts(self) -> Counter[str]:
        """Number of claims by :data:`CLAIM_STATES`."""
        verdicts = Counter(judgement.obtained.verdict for judgement in self.judgements)
        contradicted = sum(judgement.contradicted_by_paper for judgement in self.judgements)
        return verdicts + Counter(contradicted=contradicted)

    @cached_property
    def sections(self) -> list[Section]:
        return build_sections(self.results)

    @property
    def row_axes(self) -> list[str]:
        return [axis_title(axis) for axis in self.table.rows]

    @cached_property
    def has_published(self) -> bool:
        """Whether a cell has a published value, which may be a misprint."""
        return any(cell.published or cell.misprint for cell in self.results.cells)

    @cached_property
    def caption(self) -> tuple[str, str]:
        """The sentences of the caption that fit into two lines, at least one, and the remaining ones."""
        first, *others = re.split(r"(?<=\.) (?=[A-Z0-9])", self.table.caption or self.table.title)
        while others and len(first) + len(others[0]) < _CAPTION:
            first = f"{first} {others.pop(0)}"
        return first, " ".join(others)

    @cached_property
    def best(self) -> list[str]:
        """The best row of each column that has one, with its number: ``Dirichlet(1): FedPer 77.75±2.41``."""
        lines = []
        for cell in self.results.cells:
            if cell.best_obtained:
                row, number = " · ".join(cell.key(self.table.rows)), format_value(cell.obtained, self.table.decimals)
                column = self.results.column_title(cell.key(self.table.columns))
                lines.append(": ".join(filter(None, (column, f"{row} {number}"))))
        return lines

    @cached_property
    def rows(self) -> list[PrintedRow]:
        """The rows of the page: all, or those with a number if there is a sentence on the others."""
        return [row for row in self._all_rows if not (self.omitted_rows and row.is_empty)]

    @cached_property
    def omitted_rows(self) -> str:
        """A sentence on the rows without any number, if these are at least three but not all; else ""."""
        empty = [" · ".join(row.labels) for row in self._all_rows if row.is_empty]
        if not 3 <= len(empty) < len(self._all_rows):
            return ""
        return f"Without a number yet: {len(empty)} of {len(self._all_rows)} rows: {', '.join(empty)}."

    @cached_property
    def _all_rows(self) -> list[PrintedRow]:
        results, rows = self.results, []
        for row in results.rows:
            values = [ranks.values.get((row, i)) for ranks in results.rank_columns for i in range(len(ranks.groups))]
            printed = [(NO_VALUE, "") if rank is None else (format_rank(rank), f"{rank:.6g}") for rank in values]
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
            if cell.explained and cell.is_comparable and cell.verdict != WITHIN:
                by_note[f"obtained differs: {cell.explained}"].append(cell)
        described = {note: self.results.describe_cells(cells) for note, cells in by_note.items()}
        return [*self.table.notes, *(f"{cells}: {note}" for note, cells in described.items())]

    def parts(self, page_notes: Sequence[str] = ()) -> Iterator[Section]:
        """Yield the sections of a page about the spec, without notes that the page has already."""
        results, cells, facts = self.results, self.results.cells, self._facts
        if unplanned := results.describe_cells(cell for cell in cells if cell.published and not cell.runs):
            facts = [*facts, ("no run is planned", unplanned)]
        text, folded = "\n\n".join((self.omitted_rows, self._warning())), "How these numbers are made and marked"
        note = f"{self.caption[1]} {legend(results)}".strip()
        yield Section(text, results=True, facts=facts, folded=folded, note=note)
        if self._confounded:
            settings = PlainTable(("axis", "setting", "most", "others"), self._confounded, labels=4)
            yield Section(title="Settings that are not held equal along an axis", table=settings)
        if spread := spread_table(results):
            yield Section(title="Spread", table=spread, note=SPREAD_LEGEND)
        if notes := [(note, "") for note in self.notes if note not in page_notes]:
            yield Section(title="Notes", items=notes)
        if any(cell.is_comparable for cell in cells):
            yield self._comparison()
        if self.judgements:
            text = f"The pairs that speak most against each claim; all of them are in {self.folder}claims.csv."
            pairs = weakest_pairs(self.judgements, self.table.decimals)
            section = Section(text, table=pairs, note=CLAIM_LEGEND) if pairs.rows else Section()
            yield replace(section, title="Claims", claims=self.judgements)
        yield from self.sections
        partitions = [(entry.words, self.pages.get(entry.federation, "")) for entry in self.table.partitions]
        yield Section(title="Partitions", items=partitions)

    def _comparison(self) -> Section:
        """Return the section that compares obtained with published values."""
        counts = Counter(cell.verdict for cell in self.results.cells if cell.published)
        verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
        columns = [self.results.column_title(column) or self.results.heading for column in self.results.columns]
        lines = [(*row.labels, *(cell.comparison for cell in row.cells)) for row in self.rows]
        lines = [line for line in lines if any(line[len(self.row_axes) :])]
        return Section(
            AGREEMENT_LEGEND,
            title="Against the published values",
            facts=[("cells", verdicts), *self.agreement.numbers()],
            table=PlainTable((*self.row_axes, *columns), lines, len(self.row_axes)),
            folded="Obtained minus published, in their units",
        )

    @cached_property
    def _facts(self) -> Facts:
        return facts(self.results)

    @cached_property
    def _confounded(self) -> list[tuple[str, ...]]:
        return confounded_settings(self.table, {run.id: run.settings for run in self.results.runs.values()})

    def _warning(self) -> str:
        """Return a warning if runs with one dataset or partition had different data (files may change), or ""."""
        hashes = defaultdict[str, set[str]](set)
        for run in self.results.runs.values():
            hashes[run.resolved.data_id].add(run.facts.get("dataset_hash", ""))
            hashes[run.resolved.federation_id].add(run.facts.get("partition_hash", ""))
        unequal = ", ".join(sorted(part for part, values in hashes.items() if len(values - {""}) > 1))
        return f"NOT COMPARABLE: not all runs had the same data of {unequal} (see Provenance)." if unequal else ""


def profile_banner(profile: str) -> str:
    """Return the warning on top of every page of a profile other than ``paper``; "" for ``paper``."""
    return "" if profile == PAPER else _SMOKE_WARNING
