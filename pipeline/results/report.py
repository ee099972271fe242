"""``pfl results report``: a page of the published numbers that the ledger has runs for, and the same table in a README.

It is made from kept results alone, those by earlier code included and marked, so that it is the same on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.escape import escape_markdown
from pipeline.ledger import Entry, Ledger, difference
from pipeline.papers.obtained import Obtained, count_published
from pipeline.papers.paper import Brief, Paper, Summary, papers_of, read_contents
from pipeline.report.agreement import LEGEND as AGREEMENT_LEGEND
from pipeline.report.agreement import WITHIN_POINTS, Agreement, count_within
from pipeline.report.drawing.sections import Picture
from pipeline.report.figures import draw_curves
from pipeline.report.formats import aligned
from pipeline.report.frame import collect_frame
from pipeline.report.legend import TWO_NUMBERS, facts
from pipeline.report.render import markdown
from pipeline.report.statistics import LEGEND
from pipeline.report.study import Study, heading
from pipeline.report.table.cells import Key
from pipeline.report.table.layout import Layout, headed
from pipeline.report.table.printed import BESIDE, NO_VALUE, format_value
from pipeline.report.table.results import Results
from pipeline.report.write import put
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace

PAGE = "docs/results.md"
EARLIER = "°"
"""Marks a number that was obtained with an earlier state of the code."""

_WRITTEN = "<!-- Written by `pfl results report`. -->"
_PLACE = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """What the page says about a spec.

    Attributes:
        words: Sentences under its heading.
        facts: How many numbers there are, or what they are for; from which runs, and by which protocol.
        cells: The numbers, as a table in Markdown.
        elsewhere: Those beside published ones under other protocols, likewise; "" where there are none.
        why: A line per explanation.
        small: The cells as rows and columns of the paper's table, in Markdown.
    """

    study: Study
    words: list[str]
    facts: list[tuple[str, str]]
    cells: str
    elsewhere: str
    why: list[str]
    small: str

    @property
    def picture(self) -> str:
        """The address of its curves, relative to the page."""
        return _picture(self.study.table.spec)

    @cached_property
    def curves(self) -> Picture | None:
        return draw_curves(self.study.results)


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
    entries = {one.run.id: one for one in Ledger(workspace.root).entries() if one.run.id in compilation.runs}
    published = [paper for paper in papers_of(compilation.tables, compilation.every_run).values() if paper.citation]
    papers = [_paper(paper, workspace, entries, compilation) for paper in published]
    files = {page: _page(papers, entries.values())}
    sections = {section.study.table.spec: section for _, several in papers for section in several}
    files |= {page.parent / one.picture: one.curves.svg for one in sections.values() if one.curves}
    readme = workspace.root / "README.md"
    if readme.is_file():
        files[readme] = _filled(readme.read_text(encoding="utf-8"), sections)
    for spec in compilation.tables:
        if (left := page.parent / _picture(spec)) not in files:
            left.unlink(missing_ok=True)
    return [path for path, text in files.items() if put(path, text)]


def _paper(
    paper: Paper, workspace: Workspace, entries: Mapping[str, Entry], compilation: Compilation
) -> tuple[Summary, list[Section]]:
    old = {run for run in entries if difference(entries[run].made_by, compilation.made_by.get(run, {}))}
    briefs, studies = list[Brief](), list[Study]()
    for spec, table in paper.tables.items():
        if entries.keys() & table.runs.keys():
            with TemporaryDirectory() as scratch:  # no artifacts of this machine
                study = Study(Results.of(table, collect_frame(table, paper.runs, Path(scratch), entries)))
            studies.append(study)
            briefs.append(Brief.of(study))
        else:
            briefs.append(Brief(spec, heading(table), published=count_published(table)))
    compared = {run for brief in briefs for one in brief.obtained for run in one.ids}
    obtained, others = {brief.spec: brief.obtained for brief in briefs}, list[Study]()
    sections = []
    for study in studies:
        if own := obtained[study.table.spec]:
            sections.append(_section(study, own, entries, old))
        elif not count_published(study.table) and entries.keys() & study.results.runs.keys() - compared:
            others.append(study)
    sections += [_unpublished(study, entries, old) for study in others]
    places = read_contents(workspace.specs, paper.name, [spec.partition("/")[2] for spec in paper.tables])
    return Summary(paper.name, paper.title, paper.citation, briefs, places), sections


def _section(study: Study, obtained: Sequence[Obtained], entries: Mapping[str, Entry], old: set[str]) -> Section:
    runs, axes = list(dict.fromkeys(run for one in obtained for run in one.ids)), study.table.axes
    quoted = ["*: the paper quotes this value from an earlier paper."] if any(one.quoted for one in obtained) else []
    return Section(
        study=study,
        words=[*_earlier(runs, old), *quoted],
        facts=[*study.agreement.numbers(), *_facts(study.results, [entries[run] for run in runs])],
        cells=_cells(axes, obtained, old),
        elsewhere=_elsewhere(axes, obtained),
        why=_why(obtained),
        small=_small(study.results.layout, obtained),
    )


def _unpublished(study: Study, entries: Mapping[str, Entry], old: set[str]) -> Section:
    """Return a table of which nothing is published: what was tried to find out why others differ, or a part of one."""
    runs, cells = [run for run in study.results.runs if run in entries], _plain(study.results, old)
    two = [TWO_NUMBERS] if any(cell.last for cell in study.results.cells) else []
    return Section(
        study=study,
        words=[study.table.caption, *two, *_earlier(runs, old)],
        facts=[*study.agreement.numbers(), *_facts(study.results, [entries[run] for run in runs])],
        cells=cells,
        elsewhere="",
        why=[],
        small=cells,
    )


def _earlier(runs: Iterable[str], old: set[str]) -> list[str]:
    return [f"{EARLIER}: by an earlier state of the code, see `pfl results list`."] if old.intersection(runs) else []


def _facts(results: Results, entries: list[Entry]) -> list[tuple[str, str]]:
    """Return from which runs the numbers of a table are, and by which protocol."""
    return [("obtained from", _made(entries)), *(pair for pair in facts(results) if pair[0] != "kept results")]


def _made(runs: list[Entry]) -> str:
    """Return ``11 runs, 3.2 hours on cpu, from 2026-11-22 to 2026-11-23``."""
    hours = sum(run.seconds or 0.0 for run in runs) / 3600
    devices = ", ".join(sorted({str(run.facts["device"]) for run in runs}))
    first, last = min(run.obtained for run in runs), max(run.obtained for run in runs)
    when = f"on {first}" if first == last else f"from {first} to {last}"
    number = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    return f"{number}, {hours:.1f} hours on {devices}, {when}"


def _cells(axes: list[str], obtained: Sequence[Obtained], old: set[str]) -> str:
    rows = []
    for one in obtained:
        mark = EARLIER if old.intersection(one.ids) else ""
        runs = f"{one.runs[0]} of {one.runs[1]}"
        rows.append(
            {**_labels(axes, one.labels), **_numbers(one, mark, "\\*"), "difference": one.compared, "runs": runs}
        )
    return _markdown(rows, len(axes))


def _elsewhere(axes: list[str], obtained: Sequence[Obtained]) -> str:
    """Return numbers under other protocols."""
    names = dict.fromkeys(name for one in obtained for name in one.elsewhere)
    rows = []
    for one in obtained:
        numbers = {name: f"{one.elsewhere[name]:.2f}" if name in one.elsewhere else NO_VALUE for name in names}
        reached = NO_VALUE if one.reached is None else f"{one.reached}"
        about = {**_labels(axes, one.labels), "published": one.published}
        rows.append({**about, **numbers, "reached in round": reached})
    return _markdown(rows, len(axes))


def _why(obtained: Sequence[Obtained]) -> list[str]:
    cells: dict[str, list[str]] = {}
    for one in obtained:
        if one.explained:
            cells.setdefault(one.explained, []).append(", ".join(one.labels))
    return [f"{'; '.join(several)}: {reason}" for reason, several in cells.items()]


def _small(layout: Layout, obtained: Sequence[Obtained]) -> str:
    """Return per row and column of the table published and obtained numbers and how far apart they are."""
    by_labels = {one.labels: one for one in obtained}
    return _grid(
        layout,
        {
            place: {**_numbers(one), "difference": one.compared}
            for place in layout.places
            if (cell := layout.cell(*place)) and (one := by_labels.get(tuple(cell.labels.values())))
        },
    )


def _plain(results: Results, old: set[str]) -> str:
    """Return what is obtained, in the rows and columns of the table that have anything."""
    layout, decimals, numbers = results.layout, results.table.decimals, {}
    for place in layout.places:
        cell = layout.cell(*place)
        if cell and cell.obtained:
            last = f" {BESIDE} {format_value(cell.last, decimals)}" if cell.last else ""
            done = "" if cell.complete else f" [{cell.n}/{len(cell.runs)}]"
            mark = EARLIER if old & set(cell.runs) else ""
            numbers[place] = {"": format_value(cell.obtained, decimals) + last + done + mark}
    return _grid(layout, numbers, NO_VALUE)


def _grid(layout: Layout, numbers: Mapping[tuple[Key, Key], dict[str, str]], lacking: str = "") -> str:
    """Return the rows and columns that have any numbers; a column of the table is as many here as it has numbers."""
    columns = [column for column in layout.columns if any(at == column for _, at in numbers)]
    heads = next(iter(numbers.values()), {})
    labels = [{column[at] for column in columns} for at in range(len(layout.column_axes))]
    # What all shown columns share is in the text around the table; a single column says all.
    differing = [at for at, own in enumerate(labels) if len(own) > 1] or range(len(labels))
    rows = []
    for row in (row for row in layout.rows if any(at == row for at, _ in numbers)):
        line = _labels(layout.row_axes, row)
        for column in columns:
            own = numbers.get((row, column)) or dict.fromkeys(heads, lacking if layout.cell(row, column) else "")
            title = " · ".join(headed(layout.column_axes[at], column[at]) for at in differing)
            line |= {
                escape_markdown(": ".join(filter(None, (title, head))) or layout.figure): own[head] for head in heads
            }
        rows.append(line)
    return _markdown(rows, len(layout.row_axes))


def _labels(axes: list[str], labels: Sequence[str]) -> dict[str, str]:
    return dict(zip(axes, map(escape_markdown, labels), strict=True))


def _numbers(one: Obtained, mark: str = "", star: str = "") -> dict[str, str]:
    """Return the numbers of a cell, by what heads them."""
    published = one.published + (star if one.quoted else "")
    if one.last:
        return {"published": published, "last ten": one.obtained + mark, "last round": one.last}
    return {"published": published, "obtained": one.obtained + mark}


def _markdown(rows: Sequence[Mapping[str, str]], labels: int) -> str:
    """Return rows with the same columns as a table."""
    return aligned([list(rows[0]), *(list(row.values()) for row in rows)], labels) if rows else ""


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
        agreement=agreement.numbers(),
        hours=f"{hours:,.1f}",
        overview=aligned(overview, 1),
        legend=f"{LEGEND} {AGREEMENT_LEGEND}",
        papers=[(summary, sections) for summary, sections in papers if sections],
    )


def _filled(readme: str, sections: Mapping[str, Section]) -> str:
    """Return a README whose places for tables have them."""

    def table(place: re.Match[str]) -> str:
        if place[2] not in sections:
            raise UserError(f"README.md: a place for the results of {place[2]!r}, of which no published number is kept")
        return f"{place[1]}{sections[place[2]].small}\n{place[3]}"

    return _PLACE.sub(table, readme)
