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
from pipeline.report.drawing.sections import Picture, pluralize
from pipeline.report.figures import curves_of
from pipeline.report.formats import escape_markdown, md_table
from pipeline.report.frame import LAST, LAST_TEN
from pipeline.report.legend import LAST_LEGEND, PROTOCOL_NAMES, facts, period
from pipeline.report.printed import NO_VALUE, full_label, print_cell
from pipeline.report.render import markdown
from pipeline.report.spec_report import SpecReport
from pipeline.report.statistics import NOISE_LEGEND
from pipeline.report.table import Results
from pipeline.report.write import write_if_changed
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace

PAGE = "docs/results.md"
EARLIER = "°"
"""The mark of a number that was obtained with an earlier state of the code."""
REACHED = "reached in round"
_EARLIER = f"{EARLIER}: by an earlier state of the code, see `pfl ledger list`."

_WRITTEN = "<!-- Written by `pfl ledger report`. -->"
_PLACE = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

Line = dict[str, str]
"""Heading of a column → text."""


@dataclass(frozen=True)
class KeptTable:
    """The section of the page about a spec.

    Attributes:
        sentences: Above the facts.
        curves: The picture below, for the file `picture`; None if there are no curves.
        cells: A table in Markdown, a line per number.
        grid: A table in Markdown with the layout of the paper's table: obtained values, published ones in parentheses.
        other_protocols: A table in Markdown of the numbers under other protocols; "" for none.
        explanations: A line per explanation of differences.
    """

    report: SpecReport
    sentences: Sequence[str]
    facts: Sequence[tuple[str, str]]
    curves: Picture | None
    cells: str
    grid: str
    picture: str
    other_protocols: str = ""
    explanations: Sequence[str] = ()


def _picture(spec: str) -> str:
    return f"results/{spec.replace('/', '-')}.svg"


def write_report(workspace: Workspace) -> list[Path]:
    """Write ``docs/results.md``, its pictures, and the tables in ``README.md`` between the lines ``<!-- results: SPEC
    -->`` and ``<!-- end -->``; return the files that changed. Raises :class:`UserError` if a spec is invalid, a spec in
    ``README.md`` has no kept results, or the page was not written by this command."""
    page, readme = workspace.root / PAGE, workspace.root / "README.md"
    if page.is_file() and not page.read_text(encoding="utf-8", errors="replace").startswith(_WRITTEN):
        raise UserError(f"{PAGE}: was not written by this command; move it away")
    compilation = compile_workspace(workspace, list(find_specs(workspace.specs)), ledger=False)
    entries = {entry.run.id: entry for entry in Ledger(workspace.root).entries() if entry.run.id in compilation.runs}
    old = {run for run, entry in entries.items() if difference(entry.made_by, compilation.made_by.get(run, {}))}
    published = [paper for paper in papers_of(compilation.tables, compilation.all_runs).values() if paper.citation]
    papers = [_paper(paper, workspace, entries, old) for paper in published]
    tables = {table.report.table.spec: table for _, paper_tables in papers for table in paper_tables}
    files = {page: _page(papers, sum(entry.seconds or 0.0 for entry in entries.values()))}
    files |= {page.parent / table.picture: table.curves.svg for table in tables.values() if table.curves}

    def insert(match: re.Match[str]) -> str:
        start, spec, end = match.groups()
        if spec not in tables:
            raise UserError(f"README.md: a place for the results of {spec!r}, of which no published number is kept")
        note = f"\n{_EARLIER}\n" if EARLIER in tables[spec].grid else ""
        return f"{start}{tables[spec].grid}\n{note}{end}"

    if readme.is_file():
        files[readme] = _PLACE.sub(insert, readme.read_text(encoding="utf-8"))
    for spec in compilation.tables:
        if (picture := page.parent / _picture(spec)) not in files:
            picture.unlink(missing_ok=True)
    return [path for path, text in files.items() if write_if_changed(path, text)]


def _paper(
    paper: Paper, workspace: Workspace, entries: Mapping[str, Entry], old: set[str]
) -> tuple[Summary, list[KeptTable]]:
    """Return a paper's summary and tables: first the published ones, then those with runs that no other table has."""
    reports = []
    for table in paper.tables.values():
        if entries.keys() & table.runs.keys():
            with TemporaryDirectory() as scratch:  # an empty workspace, so that no artifacts of this machine are used
                frame = collect_frame(table, paper.runs, Path(scratch), entries)
            reports.append(SpecReport(Results.from_frame(table, frame)))
    shown = [report for report in reports if compared_cells(report.results)]
    compared = {run for report in shown for cell in compared_cells(report.results) for run in cell.runs}
    for report in reports:
        if not report.table.published_accuracies and entries.keys() & report.results.runs.keys() - compared:
            shown.append(report)
    places = read_contents(workspace.specs, paper.name, [spec.partition("/")[2] for spec in paper.tables])
    summary = Summary.from_reports(replace(paper, places=tuple(places)), reports)
    return summary, [_section(report, entries, old) for report in shown]


def _section(report: SpecReport, entries: Mapping[str, Entry], old: set[str]) -> KeptTable:
    """Return the section of a table: a line per number that has a published one; if there is none, all obtained numbers
    in the table's layout."""
    table, results, compared = report.table, report.results, compared_cells(report.results)
    cells, texts = compared or [cell for cell in results.cells if cell.obtained], dict[tuple[Key, Key], str]()
    for cell in cells:
        printed = print_cell(cell, table.decimals)
        partial = "" if cell.n == len(cell.runs) else f" \\[{cell.n}/{len(cell.runs)}\\]"
        mark = _mark(cell.runs, old)
        suffix = f"{mark}{partial} ({printed.published})" if compared else printed.suffix + mark
        texts[cell.key(table.rows), cell.key(table.columns)] = printed.obtained + suffix
    grid = _grid(results, texts, "" if compared else NO_VALUE)
    runs = [run for run in dict.fromkeys(run for cell in cells for run in cell.runs) if run in entries]
    sentences = [] if compared else [table.caption]
    if not compared and any(cell.last for cell in cells):
        sentences.append(LAST_LEGEND)
    if _mark(runs, old):
        sentences.append(_EARLIER)
    if any(cell.quoted for cell in compared):
        sentences.append("*: the paper quotes this value from an earlier paper.")
    labels = defaultdict[str, list[str]](list)
    for cell in compared:
        if cell.explained:
            labels[cell.explained].append(", ".join(cell.labels.values()))
    source = "obtained from", _describe_source([entries[run] for run in runs])
    return KeptTable(
        report=report,
        sentences=sentences,
        facts=[*report.agreement.numbers(), source, *(fact for fact in facts(results) if fact[0] != "kept results")],
        curves=curves_of(results),
        cells=_lines(report, compared, old) if compared else grid,
        grid=grid,
        picture=_picture(table.spec),
        other_protocols=_other_protocols(report, compared),
        explanations=[f"{'; '.join(cells)}: {reason}" for reason, cells in labels.items()],
    )


def _lines(report: SpecReport, compared: Sequence[Cell], old: set[str]) -> str:
    """Return a table of obtained and published numbers."""
    lines = []
    for cell in compared:
        printed = print_cell(cell, report.table.decimals)
        obtained = printed.obtained + _mark(cell.runs, old)
        line = _labels(report.table.axes, cell.labels.values())
        line["published"] = f"{printed.published}\\*" if cell.quoted else printed.published
        line |= {"last ten": obtained, "last round": printed.last} if printed.last else {"obtained": obtained}
        lines.append(line | {"difference": printed.comparison, "runs": f"{cell.n} of {len(cell.runs)}"})
    return _markdown(lines, len(report.table.axes))


def _other_protocols(report: SpecReport, compared: Sequence[Cell]) -> str:
    """Return a table of the same runs under other protocols, and in which round they reach the published number."""
    numbers, lines = [under_other_protocols(report.results, cell) for cell in compared], []
    names = [name for name in (*PROTOCOL_NAMES.values(), REACHED) if any(name in of_cell for of_cell in numbers)]
    for cell, of_cell in zip(compared, numbers, strict=True):
        published = {"published": print_cell(cell, report.table.decimals).published}
        others = {name: of_cell.get(name, NO_VALUE) for name in names}
        lines.append(_labels(report.table.axes, cell.labels.values()) | published | others)
    return _markdown(lines, len(report.table.axes))


def under_other_protocols(results: Results, cell: Cell) -> Line:
    """Return the mean over the runs of a compared cell under each protocol that its table does not show, and the first
    round at the published accuracy or above, the mean over runs, if all of them reach it."""
    assert cell.published
    runs = [run for run in map(results.runs.__getitem__, cell.runs) if run.values(cell.client)]
    excluded, values, reached = {results.table.metric, "last_position"}, [], list[int]()
    if results.table.metric == LAST_TEN:
        excluded.add("final")
    if not any(run.resolved.evaluation.window for run in runs):
        excluded.add("last_rounds")  # the window is then the last round
    for run in runs:
        curve = run.curve(cell.client)
        by_test = {"best_by_test": float(curve.max()), LAST_TEN: float(curve.iloc[-LAST:].mean())}
        values.append({name: value.mean for name, value in run.values(cell.client).items()} | by_test)
        reached += curve.index[curve >= cell.published.mean].tolist()[:1]
    names = [name for name in PROTOCOL_NAMES if name not in excluded and all(name in of_run for of_run in values)]
    means = {PROTOCOL_NAMES[name]: round(statistics.fmean(of_run[name] for of_run in values), 6) for name in names}
    first = str(round(statistics.fmean(reached))) if len(reached) == len(runs) else NO_VALUE
    return {name: f"{mean:.2f}" for name, mean in means.items()} | {REACHED: first}


def _mark(runs: Iterable[str], old: set[str]) -> str:
    return EARLIER if old.intersection(runs) else ""


def _describe_source(entries: list[Entry]) -> str:
    """Return ``11 runs, 3.2 hours on cpu, from 2026-11-22 to 2026-11-23``."""
    hours = sum(entry.seconds or 0.0 for entry in entries) / 3600
    devices = ", ".join(sorted({str(entry.facts["device"]) for entry in entries}))
    days = period([entry.obtained for entry in entries])
    return f"{pluralize(len(entries), 'run')}, {hours:.1f} hours on {devices}, {days}"


def _grid(results: Results, texts: Mapping[tuple[Key, Key], str], placeholder: str) -> str:
    """Return a table of the rows and columns that have texts, with a placeholder in their other cells."""
    axes, columns = results.table.columns, [column for column in results.columns if any(column == c for _, c in texts)]
    # Labels that all columns share are in the text around the table; a single column shows all its labels.
    differing = [i for i in range(len(axes)) if len({column[i] for column in columns}) > 1] or range(len(axes))
    lines = []
    for row in results.rows:
        if any(row == r for r, _ in texts):
            line = _labels(results.table.rows, row)
            for column in columns:
                title = " · ".join(full_label(axes[i], column[i]) for i in differing) or results.heading
                default = placeholder if results.cell(row, column) else ""
                line[escape_markdown(title)] = texts.get((row, column), default)
            lines.append(line)
    return _markdown(lines, len(results.table.rows))


def _labels(axes: list[str], labels: Iterable[str]) -> Line:
    return dict(zip(axes, map(escape_markdown, labels), strict=True))


def _markdown(lines: Sequence[Line], label_columns: int) -> str:
    """Return lines, all with the same columns, as a table in Markdown."""
    return md_table([list(lines[0]), *(list(line.values()) for line in lines)], label_columns) if lines else ""


def _page(papers: list[tuple[Summary, list[KeptTable]]], seconds: float) -> str:
    agreements = [summary.agreement for summary, _ in papers]
    agreement = Agreement.total(agreements, sum(agreement.published for agreement in agreements))
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
        overview=md_table(overview, 1),
        legend=f"{NOISE_LEGEND} {AGREEMENT_LEGEND}",
        papers=[(summary, tables) for summary, tables in papers if tables],
    )
