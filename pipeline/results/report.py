"""``pfl ledger report``: a page with the published numbers for which runs are kept, and their tables in a README.

It uses kept results only, so it is the same on every machine. Results of earlier code are included and marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.escape import escape_markdown
from pipeline.ledger import Entry, Ledger, difference
from pipeline.papers.obtained import Obtained
from pipeline.papers.paper import Brief, Paper, Summary, papers_of, read_contents
from pipeline.report.agreement import AGREEMENT_LEGEND, WITHIN_POINTS, Agreement, count_within
from pipeline.report.cells import Key
from pipeline.report.collect import collect_frame
from pipeline.report.drawing.sections import Picture, counted
from pipeline.report.figures import curves_of
from pipeline.report.formats import aligned
from pipeline.report.legend import TWO_NUMBERS, facts, period
from pipeline.report.printed import BESIDE, NO_VALUE, headed, print_cell
from pipeline.report.render import markdown
from pipeline.report.spec_report import SpecReport, heading
from pipeline.report.statistics import NOISE_LEGEND
from pipeline.report.table import Layout, Results
from pipeline.report.write import put
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace

PAGE = "docs/results.md"
EARLIER = "°"
"""The mark of a number that was obtained with an earlier state of the code."""
_EARLIER = f"{EARLIER}: by an earlier state of the code, see `pfl ledger list`."

_WRITTEN = "<!-- Written by `pfl ledger report`. -->"
_PLACE = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

Numbers = dict[str, str]
"""Heading of a column → a number, as printed."""


@dataclass(frozen=True)
class KeptTable:
    """The section of the page about one spec.

    Attributes:
        words: Sentences above the facts.
        curves: The picture below, in the file `picture`; None if there are no curves.
        cells: A table in Markdown, a line per number.
        small: A table in Markdown with the layout of the paper's table: obtained values, published ones in parentheses.
        elsewhere: A table in Markdown of the numbers under other protocols; "" for none.
        why: A line per explanation of differences.
    """

    report: SpecReport
    words: Sequence[str]
    facts: Sequence[tuple[str, str]]
    curves: Picture | None
    cells: str
    small: str
    elsewhere: str = ""
    why: Sequence[str] = ()

    @property
    def spec(self) -> str:
        return self.report.table.spec

    @property
    def picture(self) -> str:
        return _picture(self.spec)


def _picture(spec: str) -> str:
    return f"results/{spec.replace('/', '-')}.svg"


def write_report(workspace: Workspace) -> list[Path]:
    """Write ``docs/results.md``, its pictures, and the tables in ``README.md`` between the lines ``<!-- results: SPEC
    -->`` and ``<!-- end -->``; return the files that changed. Raises :class:`UserError` if a spec is invalid, nothing
    is kept of a spec in ``README.md``, or the page was not written by this command."""
    page, readme = workspace.root / PAGE, workspace.root / "README.md"
    if page.is_file() and not page.read_text(encoding="utf-8", errors="replace").startswith(_WRITTEN):
        raise UserError(f"{PAGE}: was not written by this command; move it away")
    compilation = compile_workspace(workspace, list(find_specs(workspace.specs)), ledger=False)
    entries = {one.run.id: one for one in Ledger(workspace.root).entries() if one.run.id in compilation.runs}
    old = {run for run, entry in entries.items() if difference(entry.made_by, compilation.made_by.get(run, {}))}
    published = [paper for paper in papers_of(compilation.tables, compilation.every_run).values() if paper.citation]
    papers = [_paper(paper, workspace, entries, old) for paper in published]
    tables = {one.spec: one for _, several in papers for one in several}
    files = {page: _page(papers, sum(entry.seconds or 0.0 for entry in entries.values()))}
    files |= {page.parent / one.picture: one.curves.svg for one in tables.values() if one.curves}

    def table(place: re.Match[str]) -> str:
        if place[2] not in tables:
            raise UserError(f"README.md: a place for the results of {place[2]!r}, of which no published number is kept")
        small = tables[place[2]].small
        return f"{place[1]}{small}\n{f'{chr(10)}{_EARLIER}{chr(10)}' if EARLIER in small else ''}{place[3]}"

    if readme.is_file():
        files[readme] = _PLACE.sub(table, readme.read_text(encoding="utf-8"))
    for spec in compilation.tables:
        if (left := page.parent / _picture(spec)) not in files:
            left.unlink(missing_ok=True)
    return [path for path, text in files.items() if put(path, text)]


def _paper(
    paper: Paper, workspace: Workspace, entries: Mapping[str, Entry], old: set[str]
) -> tuple[Summary, list[KeptTable]]:
    """Return a paper's summary and tables: first the published ones, then those with runs that no other table has."""
    briefs, reports = list[Brief](), list[SpecReport]()
    for spec, table in paper.tables.items():
        if entries.keys() & table.runs.keys():
            with TemporaryDirectory() as scratch:  # an empty workspace, so that no artifacts of this machine are used
                reports.append(SpecReport(Results.of(table, collect_frame(table, paper.runs, Path(scratch), entries))))
            briefs.append(Brief.of(reports[-1]))
        else:
            briefs.append(Brief(spec, heading(table), published=table.published_accuracies))
    obtained = {brief.spec: brief.obtained for brief in briefs}
    compared = {run for several in obtained.values() for one in several for run in one.ids}
    kept = [_beside_published(report, own, entries, old) for report in reports if (own := obtained[report.table.spec])]
    for report in reports:
        if obtained[report.table.spec] or report.table.published_accuracies:
            continue
        if entries.keys() & report.results.runs.keys() - compared:
            kept.append(_without_published(report, entries, old))
    places = read_contents(workspace.specs, paper.name, [spec.partition("/")[2] for spec in paper.tables])
    return Summary(paper.name, paper.title, paper.citation, briefs, places), kept


def _beside_published(
    report: SpecReport, obtained: Sequence[Obtained], entries: Mapping[str, Entry], old: set[str]
) -> KeptTable:
    """Return the section of a table that has published values."""
    layout, axes = report.results.layout, report.table.axes
    by_labels = {one.labels: one for one in obtained}
    small = dict[tuple[Key, Key], str]()
    for place in layout.places:
        cell = layout.cell(*place)
        if cell and (one := by_labels.get(tuple(cell.labels.values()))):
            partial = "" if one.runs[0] == one.runs[1] else f" \\[{one.runs[0]}/{one.runs[1]}\\]"
            small[place] = f"{one.obtained}{_mark(one.ids, old)}{partial} ({one.published})"
    lines, others, why = list[Numbers](), list[Numbers](), dict[str, list[str]]()
    names = dict.fromkeys(name for one in obtained for name in one.elsewhere)
    for one in obtained:
        labels = _labels(axes, one.labels)
        numbers = _numbers(one, _mark(one.ids, old))
        lines.append({**labels, **numbers, "difference": one.comparison, "runs": f"{one.runs[0]} of {one.runs[1]}"})
        under = {name: f"{one.elsewhere[name]:.2f}" if name in one.elsewhere else NO_VALUE for name in names}
        reached = NO_VALUE if one.reached is None else str(one.reached)
        others.append({**labels, "published": one.published, **under, "reached in round": reached})
        if one.explained:
            why.setdefault(one.explained, []).append(", ".join(one.labels))
    runs = list(dict.fromkeys(run for one in obtained for run in one.ids))
    words = _on_earlier_code(runs, old)
    if any(one.quoted for one in obtained):
        words.append("*: the paper quotes this value from an earlier paper.")
    return KeptTable(
        report=report,
        words=words,
        facts=_facts(report, [entries[run] for run in runs]),
        curves=curves_of(report.results),
        cells=_markdown(lines, len(axes)),
        small=_grid(layout, small),
        elsewhere=_markdown(others, len(axes)),
        why=[f"{'; '.join(several)}: {reason}" for reason, several in why.items()],
    )


def _without_published(report: SpecReport, entries: Mapping[str, Entry], old: set[str]) -> KeptTable:
    """Return the section of a table without published values."""
    results, layout, decimals = report.results, report.results.layout, report.table.decimals
    numbers = dict[tuple[Key, Key], str]()
    for place in layout.places:
        cell = layout.cell(*place)
        if cell and cell.obtained:
            printed = print_cell(cell, decimals)
            text = printed.obtained
            if printed.last:
                text += f" {BESIDE} {printed.last}"
            if printed.partial:
                text += f" [{printed.partial}]"
            numbers[place] = text + _mark(cell.runs, old)
    runs = [run for run in results.runs if run in entries]
    words = [report.table.caption]
    if any(cell.last for cell in results.cells):
        words.append(TWO_NUMBERS)
    cells = _grid(layout, numbers, NO_VALUE)
    return KeptTable(
        report=report,
        words=[*words, *_on_earlier_code(runs, old)],
        facts=_facts(report, [entries[run] for run in runs]),
        curves=curves_of(results),
        cells=cells,
        small=cells,
    )


def _facts(report: SpecReport, runs: list[Entry]) -> list[tuple[str, str]]:
    about = [fact for fact in facts(report.results) if fact[0] != "kept results"]
    return [*report.agreement.numbers(), ("obtained from", _made(runs)), *about]


def _mark(runs: Iterable[str], old: set[str]) -> str:
    return EARLIER if old.intersection(runs) else ""


def _on_earlier_code(runs: Iterable[str], old: set[str]) -> list[str]:
    """Return a list with the line that explains the mark, empty if no number has it."""
    return [_EARLIER] if _mark(runs, old) else []


def _made(runs: list[Entry]) -> str:
    """Return ``11 runs, 3.2 hours on cpu, from 2026-11-22 to 2026-11-23``."""
    hours = sum(run.seconds or 0.0 for run in runs) / 3600
    devices = ", ".join(sorted({str(run.facts["device"]) for run in runs}))
    when = period([run.obtained for run in runs])
    return f"{counted(len(runs), 'run')}, {hours:.1f} hours on {devices}, {when}"


def _grid(layout: Layout, numbers: Mapping[tuple[Key, Key], str], lacking: str = "") -> str:
    """Return a table of the rows and columns that have numbers."""
    columns = [column for column in layout.columns if any(at == column for _, at in numbers)]
    labels = [{column[at] for column in columns} for at in range(len(layout.column_axes))]
    # Labels that all shown columns share are in the text around the table; a single column shows all its labels.
    differing = [at for at, own in enumerate(labels) if len(own) > 1] or range(len(labels))
    rows = []
    for row in (row for row in layout.rows if any(at == row for at, _ in numbers)):
        line = _labels(layout.row_axes, row)
        for column in columns:
            title = " · ".join(headed(layout.column_axes[at], column[at]) for at in differing) or layout.figure
            missing = lacking if layout.cell(row, column) else ""
            line[escape_markdown(title)] = numbers.get((row, column), missing)
        rows.append(line)
    return _markdown(rows, len(layout.row_axes))


def _labels(axes: list[str], labels: Sequence[str]) -> Numbers:
    return dict(zip(axes, map(escape_markdown, labels), strict=True))


def _numbers(one: Obtained, mark: str) -> Numbers:
    published = {"published": one.published + "\\*" * one.quoted}
    if one.last:
        return published | {"last ten": one.obtained + mark, "last round": one.last}
    return published | {"obtained": one.obtained + mark}


def _markdown(rows: Sequence[Numbers], labels: int) -> str:
    """Return rows, all with the same columns, as a table in Markdown."""
    return aligned([list(rows[0]), *(list(row.values()) for row in rows)], labels) if rows else ""


def _page(papers: list[tuple[Summary, list[KeptTable]]], seconds: float) -> str:
    published = sum(summary.published for summary, _ in papers)
    agreement = Agreement.total((summary.agreement for summary, _ in papers), published)
    overview = [["paper", "published", "obtained", *(f"within {points:g}" for points in WITHIN_POINTS), "explained"]]
    for summary, _ in papers:
        differences = summary.agreement.differences
        explained = sum(bool(one.explained) for brief in summary.briefs for one in brief.obtained)
        numbers = [summary.published, len(differences), *count_within(differences), explained]
        overview.append([escape_markdown(summary.title), *(f"{number:,}" for number in numbers)])
    return markdown(
        "results.md.j2",
        written=_WRITTEN,
        agreement=agreement.numbers(),
        hours=f"{seconds / 3600:,.1f}",
        overview=aligned(overview, 1),
        legend=f"{NOISE_LEGEND} {AGREEMENT_LEGEND}",
        papers=[(summary, tables) for summary, tables in papers if tables],
    )
