"""``pfl results report``: a page of the published numbers that the ledger has runs for, and the same table in a README.

It is made from kept results alone, those by earlier code included and marked, so that it is the same on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.escape import escape_markdown
from pipeline.ledger import Entry, Ledger, difference
from pipeline.papers.contents import read_contents
from pipeline.papers.coverage import Claims, Coverage
from pipeline.papers.obtained import Obtained, collect_obtained, count_published
from pipeline.papers.paper import Brief, Paper, Summary, heading, papers_of
from pipeline.report.claims.agreement import WITHIN_POINTS, Agreement, count_within
from pipeline.report.claims.claims import judge_claims
from pipeline.report.drawing.sections import NO_VALUE
from pipeline.report.figures import draw_curves
from pipeline.report.formats import aligned
from pipeline.report.pages.legend import TWO_NUMBERS, facts
from pipeline.report.pages.render import markdown
from pipeline.report.pages.study import put
from pipeline.report.statistics.noise import LEGEND
from pipeline.report.table.layout import Key
from pipeline.report.table.printed import BESIDE, format_value
from pipeline.report.table.results import Results
from pipeline.spec.specs import find_specs
from pipeline.stages.evaluate import evaluate
from pipeline.stages.recall import write_rounds
from pipeline.workspace import Workspace, run_path

PAGE = "docs/results.md"
EARLIER = "°"
"""Marks a number that was obtained with an earlier state of the code."""

_WRITTEN = "<!-- Written by `pfl results report`. -->"
_PLACE = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """What the page says about a spec.

    Attributes:
        told: How many numbers there are, or what they are for; from which runs, and by which protocol, in sentences.
        cells: The numbers, as a table in Markdown.
        elsewhere: Those beside published ones under other protocols, likewise; "" where there are none.
        why: A line per explanation.
        svg: The curves.
        small: The cells as rows and columns of the paper's table, in Markdown.
    """

    spec: str
    heading: str
    told: list[str]
    cells: str
    elsewhere: str
    why: list[str]
    svg: str
    alt: str
    small: str

    @property
    def picture(self) -> str:
        """The address of its curves, relative to the page."""
        return _picture(self.spec)


def _picture(spec: str) -> str:
    return f"results/{spec.replace('/', '-')}.svg"


def write_report(workspace: Workspace) -> list[Path]:
    """Write ``docs/results.md``, its pictures, and tables that ``README.md`` has a place for; what changed of these.

    A place is between the lines ``<!-- results: SPEC -->`` and ``<!-- end -->``.

    Raises:
        UserError: A spec is invalid, the README has a place for a spec of which nothing is kept, or the page is
            somebody's own.
    """
    page = workspace.root / PAGE
    if page.is_file() and not page.read_text(encoding="utf-8", errors="replace").startswith(_WRITTEN):
        raise UserError(f"{PAGE}: was not written by this command; move it away")
    compilation = compile_workspace(workspace, list(find_specs(workspace.specs)), ledger=False)
    entries = _entries(workspace, compilation)
    papers: list[tuple[Summary, list[Section]]] = []
    with TemporaryDirectory() as scratch:
        root = Path(scratch)
        for run, entry in entries.items():
            out = root / run_path(run, "rounds.parquet")
            write_rounds(entry, out)
            evaluate(entry.run, out.parent)
        for paper in papers_of(compilation.tables, compilation.every_run).values():
            if paper.citation:
                papers.append(_paper(paper, workspace, root, entries, compilation))
    files = {page: _page(papers, entries.values())}
    sections = {section.spec: section for _, several in papers for section in several}
    files |= {page.parent / section.picture: section.svg for section in sections.values() if section.svg}
    readme = workspace.root / "README.md"
    if readme.is_file():
        files[readme] = _filled(readme.read_text(encoding="utf-8"), sections)
    for spec in compilation.tables:
        if (left := page.parent / _picture(spec)) not in files:
            left.unlink(missing_ok=True)
    return [path for path, text in files.items() if put(path, text)]


def _entries(workspace: Workspace, compilation: Compilation) -> dict[str, Entry]:
    """Return what is kept of the runs that specs ask for, by id, whichever versions made it."""
    return {entry.run.id: entry for entry in Ledger(workspace.root).entries() if entry.run.id in compilation.runs}


def _paper(
    paper: Paper, workspace: Workspace, root: Path, entries: Mapping[str, Entry], compilation: Compilation
) -> tuple[Summary, list[Section]]:
    known = [spec.partition("/")[2] for spec in paper.tables]
    old = {run for run in entries if difference(entries[run].made_by, compilation.made_by.get(run, {}))}
    briefs, sections, others = list[Brief](), list[Section](), list[tuple[Results, Agreement]]()
    for spec, table in paper.tables.items():
        obtained: list[Obtained] = []
        agreement = Agreement()
        if entries.keys() & table.runs.keys():
            results = Results.read(table, paper.runs, root)
            agreement = Agreement.of(results, judge_claims(results))
            if obtained := collect_obtained(results):
                sections.append(_section(results, obtained, agreement, entries, old))
            elif not count_published(table):
                others.append((results, agreement))
        published = count_published(table)
        briefs.append(Brief(spec, heading(table), Coverage(), Claims(), published, tuple(obtained), agreement))
    compared = {run for brief in briefs for one in brief.obtained for run in one.ids}
    for results, agreement in others:
        if entries.keys() & results.runs.keys() - compared:
            sections.append(_unpublished(results, agreement, entries, old))
    places = read_contents(workspace.specs, paper.name, known)
    return Summary(paper.name, paper.title, paper.citation, briefs, places), sections


def _section(
    results: Results, obtained: list[Obtained], agreement: Agreement, entries: Mapping[str, Entry], old: set[str]
) -> Section:
    table = results.table
    curves = draw_curves(results)
    runs = list(dict.fromkeys(run for one in obtained for run in one.ids))
    told = [
        *agreement.words,
        *_told(results, runs, entries, old),
    ]
    if any(one.quoted for one in obtained):
        told.append("*: the paper quotes this value from an earlier paper.")
    return Section(
        spec=table.spec,
        heading=heading(table),
        told=told,
        cells=_cells(table.axes, obtained, old),
        elsewhere=_elsewhere(table.axes, obtained),
        why=_why(obtained),
        svg=curves.svg if curves else "",
        alt=curves.alt if curves else "",
        small=_small(results, obtained),
    )


def _unpublished(results: Results, agreement: Agreement, entries: Mapping[str, Entry], old: set[str]) -> Section:
    """A table of which nothing is published: what was tried to find out why others differ, or a part of one."""
    table = results.table
    curves = draw_curves(results)
    cells = _plain(results, old)
    return Section(
        spec=table.spec,
        heading=heading(table),
        told=[
            table.caption,
            *([TWO_NUMBERS] if any(cell.last for cell in results.cells) else []),
            *agreement.words,
            *_told(results, [run for run in results.runs if run in entries], entries, old),
        ],
        cells=cells,
        elsewhere="",
        why=[],
        svg=curves.svg if curves else "",
        alt=curves.alt if curves else "",
        small=cells,
    )


def _told(results: Results, runs: Sequence[str], entries: Mapping[str, Entry], old: set[str]) -> list[str]:
    """From which runs the numbers of a table are, and by which protocol."""
    about = "; ".join(f"{name}: {value}" for name, value in facts(results) if name != "kept results")
    told = [_made([entries[run] for run in runs]), f"{about[:1].upper()}{about[1:]}."]
    return [*told, f"{EARLIER}: by an earlier state of the code, see `pfl results list`."] if old & set(runs) else told


def _made(runs: list[Entry]) -> str:
    """``11 runs, 3.2 hours on cpu, obtained from 2026-11-22 to 2026-11-23.``"""
    hours = sum(run.seconds or 0.0 for run in runs) / 3600
    devices = ", ".join(sorted({str(run.facts["device"]) for run in runs}))
    first, last = min(run.obtained for run in runs), max(run.obtained for run in runs)
    when = f"on {first}" if first == last else f"from {first} to {last}"
    number = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    return f"{number}, {hours:.1f} hours on {devices}, obtained {when}."


def _heads(obtained: Sequence[Obtained]) -> list[str]:
    """Over the numbers of a cell beside its published one."""
    return ["published", "last ten", "last round"] if any(one.last for one in obtained) else ["published", "obtained"]


def _numbers(one: Obtained) -> list[str]:
    return [one.published, one.obtained, one.last] if one.last else [one.published, one.obtained]


def _cells(axes: list[str], obtained: list[Obtained], old: set[str]) -> str:
    rows = [[*axes, *_heads(obtained), "difference", "runs"]]
    for one in obtained:
        published, first, *last = _numbers(one)
        star, mark = "\\*" if one.quoted else "", EARLIER if old.intersection(one.ids) else ""
        values = [published + star, first + mark, *last, one.compared, f"{one.runs[0]} of {one.runs[1]}"]
        rows.append([*map(escape_markdown, one.labels), *values])
    return aligned(rows, len(axes))


def _elsewhere(axes: list[str], obtained: list[Obtained]) -> str:
    """Numbers under other protocols."""
    names = list(dict.fromkeys(name for one in obtained for name in one.elsewhere))
    rows = [[*axes, "published", *names, "reached in round"]]
    for one in obtained:
        numbers = [f"{one.elsewhere[name]:.2f}" if name in one.elsewhere else NO_VALUE for name in names]
        reached = NO_VALUE if one.reached is None else f"{one.reached}"
        rows.append([*map(escape_markdown, one.labels), one.published, *numbers, reached])
    return aligned(rows, len(axes))


def _why(obtained: list[Obtained]) -> list[str]:
    cells: dict[str, list[str]] = {}
    for one in obtained:
        if one.explained:
            cells.setdefault(one.explained, []).append(", ".join(one.labels))
    return [f"{'; '.join(several)}: {reason}" for reason, several in cells.items()]


def _small(results: Results, obtained: list[Obtained]) -> str:
    """A row per row of the table, and per column published and obtained numbers and how far apart they are."""
    layout = results.layout
    by_labels = {one.labels: one for one in obtained}
    found = {
        place: by_labels[tuple(cell.labels.values())]
        for place in layout.places
        if (cell := layout.cell(*place)) and tuple(cell.labels.values()) in by_labels
    }
    columns = [column for column in layout.columns if any(place[1] == column for place in found)]
    heads = [*_heads(obtained), "difference"]
    titles = [f"{layout.column_title(column)}: {head}" if column else head for column in columns for head in heads]
    rows = [[*layout.row_axes, *map(escape_markdown, titles)]]
    for row in layout.rows:
        ones = [found.get((row, column)) for column in columns]
        if any(ones):
            values = [[*_numbers(one), one.compared] if one else [""] * len(heads) for one in ones]
            rows.append([*map(escape_markdown, row), *(text for several in values for text in several)])
    return aligned(rows, len(layout.row_axes))


def _plain(results: Results, old: set[str]) -> str:
    """What is obtained, in the rows and columns of the table that have anything."""
    layout = results.layout

    def text(row: Key, column: Key) -> str:
        cell = layout.cell(row, column)
        if cell is None or cell.obtained is None:
            return NO_VALUE if cell else ""
        done = "" if cell.complete else f" [{cell.n}/{len(cell.runs)}]"
        last = f" {BESIDE} {format_value(cell.last, results.table.decimals)}" if cell.last else ""
        mark = EARLIER if old & set(cell.runs) else ""
        return format_value(cell.obtained, results.table.decimals) + last + done + mark

    found = {place for place in layout.places if (cell := layout.cell(*place)) and cell.obtained}
    columns = [column for column in layout.columns if any(place[1] == column for place in found)]
    titles = [layout.column_title(column) or layout.figure for column in columns]
    rows = [[*layout.row_axes, *map(escape_markdown, titles)]]
    for row in layout.rows:
        if any(place[0] == row for place in found):
            rows.append([*map(escape_markdown, row), *(text(row, column) for column in columns)])
    return aligned(rows, len(layout.row_axes))


def _page(papers: list[tuple[Summary, list[Section]]], entries: Iterable[Entry]) -> str:
    hours = sum(entry.seconds or 0.0 for entry in entries) / 3600
    published = sum(summary.published for summary, _ in papers)
    agreement = Agreement.total((summary.agreement for summary, _ in papers), published)
    distances = [f"within {points:g}" for points in WITHIN_POINTS]
    overview = [["paper", "published", "obtained", *distances, "explained"]]
    for summary, _ in papers:
        differences = summary.agreement.differences
        explained = sum(bool(one.explained) for one in summary.obtained)
        numbers = [summary.published, len(differences), *count_within(differences), explained]
        overview.append([escape_markdown(summary.title), *(f"{number:,}" for number in numbers)])
    return markdown(
        "results.md.j2",
        written=_WRITTEN,
        agreement=agreement.words,
        hours=f"{hours:,.1f}",
        overview=aligned(overview, 1),
        legend=LEGEND,
        papers=[(summary, sections) for summary, sections in papers if sections],
    )


def _filled(readme: str, sections: Mapping[str, Section]) -> str:
    """A README whose places for tables have them."""

    def table(place: re.Match[str]) -> str:
        if place[2] not in sections:
            raise UserError(f"README.md: a place for the results of {place[2]!r}, of which no published number is kept")
        return f"{place[1]}{sections[place[2]].small}\n{place[3]}"

    return _PLACE.sub(table, readme)
