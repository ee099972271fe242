"""What a report says, before any format: every text of the page in reading order, unescaped."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from pipeline.report.claims.agreement import Agreement
from pipeline.report.claims.claims import Judgement
from pipeline.report.claims.columns import LEGEND, PrintedClaim, printed_claim, weakest_pairs
from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section
from pipeline.report.pages.derived import headers_with_derived, numbers_of
from pipeline.report.pages.legend import Facts, facts, legend
from pipeline.report.pages.provenance import provenance, unlike_data
from pipeline.report.pages.unlike import unlike_settings
from pipeline.report.statistics.noise import NO_VERDICT, WITHIN
from pipeline.report.table.cells import VERDICTS, Cell
from pipeline.report.table.derived import derive
from pipeline.report.table.layout import Key, Layout, Span, short
from pipeline.report.table.printed import MISPRINT, TIED, UNPLANNED, format_value, signed
from pipeline.report.table.results import Results
from pipeline.spec.metrics import PERCENT
from pipeline.spec.table import Publication, TablePartition
from pipeline.workspace import partition_report_path, report_path, timings_path


@dataclass(frozen=True)
class Text:
    """A printed cell.

    Attributes:
        obtained: ``"90.31±0.26"``, a dash while missing, "diverged", or "" where no run is planned.
        published: ``"90.31±0.26"`` or "", with a mark where it is a misprint.
        tied: The mark of a value that cannot be told apart from the best of its column, or "".
        dagger: The mark of a published value for which no run is planned, or "".
        partial: ``"2/3"`` where 2 of 3 runs are done, or "".
        last: The same as `obtained` after the last round, where that is the mean over the last measurements; or "".
        difference: Signed points, or "".
        noise: By how much obtained and published value may differ by chance, or "".
        sort: Obtained mean, published mean and difference as numbers, for sorting; "" where there is none.
    """

    obtained: str = ""
    published: str = ""
    quoted: bool = False
    best_obtained: bool = False
    best_published: bool = False
    tied: str = ""
    dagger: str = ""
    partial: str = ""
    last: str = ""
    difference: str = ""
    noise: str = ""
    verdict: str = ""
    sort: tuple[str, str, str] = ("", "", "")

    @property
    def compared(self) -> str:
        """``+1.53 beyond noise (0.90)``; without a verdict the difference alone."""
        words = self.verdict if self.verdict != NO_VERDICT else ""
        return " ".join(filter(None, (self.difference, words, self.noise and f"({self.noise})")))


@dataclass(frozen=True)
class TableRow:
    """One row: its labels on the row axes, its cells in column order, and its derived numbers, each as printed and for
    sorting."""

    labels: tuple[str, ...]
    cells: list[Text]
    derived: list[tuple[str, str]]


@dataclass(frozen=True)
class Page:
    """Everything that a template prints.

    Attributes:
        paper: The publication: its name, the table and how to cite it.
        where: The table alone, as "Table II".
        headers: Over the cells, outer to inner.
        all_headers: Over the cells and the derived numbers of a row.
        in_units: What differences to published values are in.
        unplanned: The cells for which no run is planned though there is a published value; "" where there are none.
        warning: That runs are not comparable; "" where they are.
        unlike: Settings that are not held equal.
        weakest: Of each claim the pairs that speak most against it.
        agreement: How published values compare with the obtained ones as a whole, a sentence each.
        alike: What the provenance of all runs has in common.
    """

    spec: str
    title: str
    paper: str
    where: str
    caption: str
    banner: str
    row_axes: list[str]
    headers: list[list[Span]]
    all_headers: list[list[Span]]
    rows: list[TableRow]
    has_published: bool
    has_differences: bool
    in_units: str
    agreement: list[str]
    legend: list[str]
    facts: Facts
    unplanned: str
    warning: str
    unlike: PlainTable
    notes: list[str]
    claims: list[PrintedClaim]
    weakest: PlainTable
    claims_legend: str
    partitions: list[tuple[str, str]]
    sections: list[Section]
    provenance: PlainTable
    alike: str
    timings: str


def build_page(results: Results, judgements: list[Judgement], sections: list[Section]) -> Page:
    """The page of a table. Nothing published: no word about published values."""
    table, layout, cells = results.table, results.layout, results.cells
    derived = derive(results)

    def texts(row: Key) -> list[Text]:
        return [_text(layout.cell(row, column), table.decimals) for column in layout.columns]

    has_published = any(cell.published for cell in cells)
    where_from, alike = provenance(results.runs)
    claims = [printed_claim(judgement, table.decimals) for judgement in judgements]
    return Page(
        spec=table.spec,
        title=table.title,
        paper=_paper(table.paper),
        where=table.paper.table if table.paper else "",
        caption=table.caption or table.title,
        banner=banner(table.profile),
        row_axes=[short(axis) for axis in layout.row_axes],
        headers=layout.headers,
        all_headers=headers_with_derived(layout, derived),
        rows=[TableRow(row, texts(row), numbers_of(row, derived)) for row in layout.rows],
        has_published=has_published,
        has_differences=has_published and any(map(_compared, cells)),
        in_units="each in its own unit" if any(cell.quantity for cell in cells) else "in percentage points",
        agreement=[f"{_tally(cells)}.", *Agreement.of(results, judgements).words],
        legend=legend(results),
        facts=facts(results),
        unplanned=layout.whereabouts([cell for cell in layout.cells if _unplanned(cell)]),
        warning=unlike_data(results.runs.values()),
        unlike=unlike_settings(table, {run.id: run.resolved for run in results.runs.values()}),
        notes=[*table.notes, *_published_notes(layout, cells)],
        claims=claims,
        weakest=weakest_pairs(claims),
        claims_legend=LEGEND,
        partitions=[(one.words, _page_of(table.spec, one)) for one in table.partitions],
        sections=sections,
        provenance=where_from,
        alike=alike,
        timings=timings_path(table.spec).as_posix(),
    )


def _page_of(spec: str, partition: TablePartition) -> str:
    """The page of a partition, as a link in the report of a spec; "" when there is none."""
    page = f"{partition_report_path(partition.federation)}/index"
    return posixpath.relpath(page, report_path(spec)) if partition.page else ""


def _text(cell: Cell | None, decimals: int) -> Text:
    if cell is None:
        return Text()
    obtained = ""
    if cell.runs:
        obtained = "diverged" if cell.verdict == "diverged" else NO_VALUE
    if cell.obtained:
        obtained = format_value(cell.obtained, decimals)
    difference = cell.difference if _compared(cell) else None
    numbers = (cell.obtained and cell.obtained.mean, cell.published and cell.published.mean, difference)
    obtained_sort, published_sort, difference_sort = ("" if x is None else f"{x:.6g}" for x in numbers)
    return Text(
        obtained=obtained,
        published=_printed(cell, decimals),
        quoted=cell.quoted,
        best_obtained=cell.best_obtained,
        best_published=cell.best_published,
        tied=TIED if cell.tied else "",
        dagger=UNPLANNED if _unplanned(cell) else "",
        partial=f"{cell.n}/{len(cell.runs)}" if cell.obtained and not cell.complete else "",
        last=format_value(cell.last, decimals) if cell.last else "",
        difference=""
        if difference is None
        else signed(difference, decimals, cell.quantity.unit if cell.quantity else PERCENT),
        noise="" if cell.noise is None else f"{cell.noise:.{decimals}f}",
        verdict=cell.verdict,
        sort=(obtained_sort, published_sort, difference_sort),
    )


def _printed(cell: Cell, decimals: int) -> str:
    """The published value, with a mark where it is a misprint."""
    if cell.misprint:
        return cell.misprint + MISPRINT
    return format_value(cell.published, decimals) if cell.published else ""


def _compared(cell: Cell) -> bool:
    """Whether it says something how far a cell is from its published value."""
    return cell.difference is not None and cell.verdict != "trial"


def _unplanned(cell: Cell) -> bool:
    return bool(cell.published and not cell.runs)


def _published_notes(layout: Layout, cells: list[Cell]) -> list[str]:
    by_note: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.note:
            by_note.setdefault(cell.note, []).append(cell)
    for cell in cells:
        if cell.explained and _compared(cell) and cell.verdict != WITHIN:
            by_note.setdefault(f"obtained differs: {cell.explained}", []).append(cell)
    return [f"{layout.whereabouts(of_note)}: {note}" for note, of_note in by_note.items()]


def _paper(paper: Publication | None) -> str:
    return ", ".join(filter(None, (paper.name, paper.table, paper.citation))) if paper else ""


def banner(profile: str) -> str:
    """What stands over every page of the profile ``smoke``."""
    if profile == "paper":
        return ""
    return (
        "SMOKE PROFILE: a trial of the machinery with shrunk models, a few rounds and stand-in data. "
        "These numbers say nothing about any method."
    )


def _tally(cells: list[Cell]) -> str:
    counts = {verdict: sum(cell.verdict == verdict for cell in cells if cell.published) for verdict in VERDICTS}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
