"""``pfl ledger report``: a page with the published numbers for which runs are kept, and their tables in a README.

It uses kept results only, so it is the same on every machine. Results of earlier code are included and marked.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Entry, Ledger, difference
from pipeline.papers.paper import Paper, Summary, papers_of, read_contents
from pipeline.report.agreement import AGREEMENT_LEGEND, WITHIN_POINTS, Agreement, compared_cells, count_within
from pipeline.report.cells import Cell, Key
from pipeline.report.collect import collect_frame
from pipeline.report.drawing.sections import Picture, counted
from pipeline.report.figures import curves_of
from pipeline.report.formats import aligned, escape_markdown
from pipeline.report.frame import LAST, LAST_TEN
from pipeline.report.legend import PROTOCOL_NAMES, TWO_NUMBERS, facts, period
from pipeline.report.printed import NO_VALUE, headed, print_cell
from pipeline.report.render import markdown
from pipeline.report.spec_report import SpecReport
from pipeline.report.statistics import NOISE_LEGEND
from pipeline.report.table import Results
from pipeline.report.write import put
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace

PAGE = "docs/results.md"
EARLIER = "°"
"""The mark of a number that was obtained with an earlier state of the code."""
REACHED = "reached in round"
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
        curves: The picture below, for the file `picture`; None if there are no curves.
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
    picture: str
    elsewhere: str = ""
    why: Sequence[str] = ()


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
    published = [paper for paper in papers_of(compilation.tables, compilation.all_runs).values() if paper.citation]
    papers = [_paper(paper, workspace, entries, old) for paper in published]
    tables = {one.report.table.spec: one for _, several in papers for one in several}
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
    reports = []
    for table in (table for table in paper.tables.values() if entries.keys() & table.runs.keys()):
        with TemporaryDirectory() as scratch:  # an empty workspace, so that no artifacts of this machine are used
            reports.append(SpecReport(Results.of(table, collect_frame(table, paper.runs, Path(scratch), entries))))
    shown = [report for report in reports if compared_cells(report.results)]
    compared = {run for report in shown for cell in compared_cells(report.results) for run in cell.runs}
    for report in reports:
        if not report.table.published_accuracies and entries.keys() & report.results.runs.keys() - compared:
            shown.append(report)
    places = read_contents(workspace.specs, paper.name, [spec.partition("/")[2] for spec in paper.tables])
    summary = Summary.of(replace(paper, places=tuple(places)), reports)
    return summary, [_section(report, entries, old) for report in shown]


def _section(report: SpecReport, entries: Mapping[str, Entry], old: set[str]) -> KeptTable:
    """Return the section of a table: a line per number that has a published one; of a table without such numbers all
    that were obtained, in its layout."""
    table, results, compared = report.table, report.results, compared_cells(report.results)
    cells, grid = compared or [cell for cell in results.cells if cell.obtained], dict[tuple[Key, Key], str]()
    for cell in cells:
        printed = print_cell(cell, table.decimals)
        partial = "" if cell.n == len(cell.runs) else f" \\[{cell.n}/{len(cell.runs)}\\]"
        mark = _mark(cell.runs, old)
        text = f"{mark}{partial} ({printed.published})" if compared else printed.more + mark
        grid[cell.key(table.rows), cell.key(table.columns)] = printed.obtained + text
    small = _grid(results, grid, "" if compared else NO_VALUE)
    runs = [run for run in dict.fromkeys(run for cell in cells for run in cell.runs) if run in entries]
    words = [] if compared else [table.caption]
    if not compared and any(cell.last for cell in cells):
        words.append(TWO_NUMBERS)
    if _mark(runs, old):
        words.append(_EARLIER)
    if any(cell.quoted for cell in compared):
        words.append("*: the paper quotes this value from an earlier paper.")
    why = defaultdict[str, list[str]](list)
    for cell in compared:
        if cell.explained:
            why[cell.explained].append(", ".join(cell.labels.values()))
    about = [fact for fact in facts(report.results) if fact[0] != "kept results"]
    made = _made([entries[run] for run in runs])
    return KeptTable(
        report=report,
        words=words,
        facts=[*report.agreement.numbers(), ("obtained from", made), *about],
        curves=curves_of(report.results),
        cells=_lines(report, compared, old) if compared else small,
        small=small,
        picture=_picture(table.spec),
        elsewhere=_elsewhere(report, compared),
        why=[f"{'; '.join(own)}: {reason}" for reason, own in why.items()],
    )


def _lines(report: SpecReport, compared: Sequence[Cell], old: set[str]) -> str:
    """Return a table of obtained and published numbers."""
    lines = []
    for cell in compared:
        printed = print_cell(cell, report.table.decimals)
        obtained = printed.obtained + _mark(cell.runs, old)
        ours = {"last ten": obtained, "last round": printed.last} if printed.last else {"obtained": obtained}
        published = {"published": printed.published + "\\*" * cell.quoted}
        counted = {"difference": printed.comparison, "runs": f"{cell.n} of {len(cell.runs)}"}
        lines.append(_labels(report.table.axes, cell.labels.values()) | published | ours | counted)
    return _markdown(lines, len(report.table.axes))


def _elsewhere(report: SpecReport, compared: Sequence[Cell]) -> str:
    """Return a table of the same runs under other protocols, and in which round they reach the published number."""
    under, lines = [under_other_protocols(report.results, cell) for cell in compared], []
    names = [name for name in (*PROTOCOL_NAMES.values(), REACHED) if any(name in own for own in under)]
    for cell, own in zip(compared, under, strict=True):
        published = {"published": print_cell(cell, report.table.decimals).published}
        others = {name: own.get(name, NO_VALUE) for name in names}
        lines.append(_labels(report.table.axes, cell.labels.values()) | published | others)
    return _markdown(lines, len(report.table.axes))


def under_other_protocols(results: Results, cell: Cell) -> Numbers:
    """Return the mean over the runs of a compared cell under each protocol that its table does not show, and the first
    round at the published accuracy or above, the mean over runs, if all of them reach it."""
    assert cell.published
    runs = [run for run in map(results.runs.__getitem__, cell.runs) if run.values_of(cell.client)]
    shown, found, reached = {results.table.metric, "last_position"}, [], list[int]()
    shown |= {"final"} if results.table.metric == LAST_TEN else set()
    if not any(run.resolved.evaluation.window for run in runs):
        shown.add("last_rounds")  # the window is then the last round
    for run in runs:
        curve = run.curve(cell.client)
        more = {"best_by_test": float(curve.max()), LAST_TEN: float(curve.iloc[-LAST:].mean())}
        found.append({name: value.mean for name, value in run.values_of(cell.client).items()} | more)
        reached += curve.index[curve >= cell.published.mean].tolist()[:1]
    names = [name for name in PROTOCOL_NAMES if name not in shown and all(name in own for own in found)]
    means = {PROTOCOL_NAMES[name]: round(statistics.fmean(own[name] for own in found), 6) for name in names}
    first = str(round(statistics.fmean(reached))) if len(reached) == len(runs) else NO_VALUE
    return {name: f"{mean:.2f}" for name, mean in means.items()} | {REACHED: first}


def _mark(runs: Iterable[str], old: set[str]) -> str:
    return EARLIER if old.intersection(runs) else ""


def _made(runs: list[Entry]) -> str:
    """Return ``11 runs, 3.2 hours on cpu, from 2026-11-22 to 2026-11-23``."""
    hours = sum(run.seconds or 0.0 for run in runs) / 3600
    devices = ", ".join(sorted({str(run.facts["device"]) for run in runs}))
    when = period([run.obtained for run in runs])
    return f"{counted(len(runs), 'run')}, {hours:.1f} hours on {devices}, {when}"


def _grid(results: Results, numbers: Mapping[tuple[Key, Key], str], lacking: str = "") -> str:
    """Return a table of the rows and columns that have numbers."""
    columns = [column for column in results.columns if any(at == column for _, at in numbers)]
    labels = [{column[at] for column in columns} for at in range(len(results.table.columns))]
    # Labels that all shown columns share are in the text around the table; a single column shows all its labels.
    differing = [at for at, own in enumerate(labels) if len(own) > 1] or range(len(labels))
    rows = []
    for row in (row for row in results.rows if any(at == row for at, _ in numbers)):
        line = _labels(results.table.rows, row)
        for column in columns:
            title = " · ".join(headed(results.table.columns[at], column[at]) for at in differing) or results.figure
            missing = lacking if results.cell(row, column) else ""
            line[escape_markdown(title)] = numbers.get((row, column), missing)
        rows.append(line)
    return _markdown(rows, len(results.table.rows))


def _labels(axes: list[str], labels: Iterable[str]) -> Numbers:
    return dict(zip(axes, map(escape_markdown, labels), strict=True))


def _markdown(rows: Sequence[Numbers], labels: int) -> str:
    """Return rows, all with the same columns, as a table in Markdown."""
    return aligned([list(rows[0]), *(list(row.values()) for row in rows)], labels) if rows else ""


def _page(papers: list[tuple[Summary, list[KeptTable]]], seconds: float) -> str:
    every = [summary.agreement for summary, _ in papers]
    agreement = Agreement.total(every, sum(one.published for one in every))
    overview = [["paper", "published", "obtained", *(f"within {points:g}" for points in WITHIN_POINTS), "explained"]]
    for summary, tables in papers:
        differences = summary.agreement.differences
        explained = sum(bool(cell.explained) for table in tables for cell in compared_cells(table.report.results))
        numbers = [summary.agreement.published, len(differences), *count_within(differences), explained]
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
