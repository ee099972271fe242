"""``pfl results report``: a page of the published numbers that the ledger has runs for, and the same table in a README.

It is made from kept results alone, those by earlier code included and marked, so that it is the same on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.escape import escape_markdown
from pipeline.ledger import Entry, Ledger, difference
from pipeline.papers.paper import Brief, Obtained, Paper, Summary, count_published, papers_of, read_contents
from pipeline.report.drawing.sections import counted
from pipeline.report.figures import curves_of
from pipeline.report.formats import aligned
from pipeline.report.frame import collect_frame
from pipeline.report.legend import TWO_NUMBERS, facts
from pipeline.report.render import markdown
from pipeline.report.statistics import LEGEND
from pipeline.report.study import LEGEND as AGREEMENT_LEGEND
from pipeline.report.study import WITHIN_POINTS, Agreement, Study, count_within, heading
from pipeline.report.table import BESIDE, NO_VALUE, Key, Layout, Results, format_value, headed
from pipeline.report.write import put
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace

PAGE = "docs/results.md"
EARLIER = "°"
"""Marks a number that was obtained with an earlier state of the code."""

_WRITTEN = "<!-- Written by `pfl results report`. -->"
_PLACE = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

Numbers = dict[str, str]
"""What heads a number → the number, as printed."""


Section = dict[str, Any]
"""What the page says of a spec: ``study``, ``words``, ``facts``; ``curves`` and their address, ``picture``; ``why``, a
line per explanation of differences; tables in Markdown: ``cells``, a line per number, ``elsewhere``, those under other
protocols, and ``small``, laid out as the paper's table is."""


def _picture(spec: str) -> str:
    return f"results/{spec.replace('/', '-')}.svg"


def write_report(workspace: Workspace) -> list[Path]:
    """Write ``docs/results.md``, its pictures, and tables that ``README.md`` has a place for, between the lines ``<!--
    results: SPEC -->`` and ``<!-- end -->``; return what changed. Raises :class:`UserError`: a spec is invalid, a place
    is for a spec of which nothing is kept, or the page is somebody's own."""
    page, readme = workspace.root / PAGE, workspace.root / "README.md"
    if page.is_file() and not page.read_text(encoding="utf-8", errors="replace").startswith(_WRITTEN):
        raise UserError(f"{PAGE}: was not written by this command; move it away")
    compilation = compile_workspace(workspace, list(find_specs(workspace.specs)), ledger=False)
    entries = {one.run.id: one for one in Ledger(workspace.root).entries() if one.run.id in compilation.runs}
    old = {run for run, entry in entries.items() if difference(entry.made_by, compilation.made_by.get(run, {}))}
    published = [paper for paper in papers_of(compilation.tables, compilation.every_run).values() if paper.citation]
    papers = [_paper(paper, workspace, entries, old) for paper in published]
    sections = {section["study"].table.spec: section for _, several in papers for section in several}
    files = {page: _page(papers, sum(entry.seconds or 0.0 for entry in entries.values()))}
    files |= {page.parent / one["picture"]: one["curves"].svg for one in sections.values() if one["curves"]}

    def table(place: re.Match[str]) -> str:
        if place[2] not in sections:
            raise UserError(f"README.md: a place for the results of {place[2]!r}, of which no published number is kept")
        return f"{place[1]}{sections[place[2]]['small']}\n{place[3]}"

    if readme.is_file():
        files[readme] = _PLACE.sub(table, readme.read_text(encoding="utf-8"))
    for spec in compilation.tables:
        if (left := page.parent / _picture(spec)) not in files:
            left.unlink(missing_ok=True)
    return [path for path, text in files.items() if put(path, text)]


def _paper(
    paper: Paper, workspace: Workspace, entries: Mapping[str, Entry], old: set[str]
) -> tuple[Summary, list[Section]]:
    """Return what is obtained of a paper: first its published tables, then those that show runs which no other has."""
    briefs, studies = list[Brief](), list[Study]()
    for spec, table in paper.tables.items():
        if entries.keys() & table.runs.keys():
            with TemporaryDirectory() as scratch:  # no artifacts of this machine
                studies.append(Study(Results.of(table, collect_frame(table, paper.runs, Path(scratch), entries))))
            briefs.append(Brief.of(studies[-1]))
        else:
            briefs.append(Brief(spec, heading(table), published=count_published(table)))
    obtained = {brief.spec: brief.obtained for brief in briefs}
    compared = {run for several in obtained.values() for one in several for run in one.ids}
    shown = [study for study in studies if obtained[study.table.spec]]
    for study in studies:
        own = entries.keys() & study.results.runs.keys() - compared
        shown += [study] if study not in shown and not count_published(study.table) and own else []
    sections = [_section(study, obtained[study.table.spec], entries, old) for study in shown]
    places = read_contents(workspace.specs, paper.name, [spec.partition("/")[2] for spec in paper.tables])
    return Summary(paper.name, paper.title, paper.citation, briefs, places), sections


def _section(study: Study, obtained: Sequence[Obtained], entries: Mapping[str, Entry], old: set[str]) -> Section:
    """Return a table beside its published values, or, where none is obtained, one that nothing is published of."""
    results, layout, decimals = study.results, study.results.layout, study.table.decimals
    runs = list(dict.fromkeys(run for one in obtained for run in one.ids)) or [r for r in results.runs if r in entries]
    about = [*study.agreement.numbers(), ("obtained from", _made([entries[run] for run in runs]))]
    about += [fact for fact in facts(results) if fact[0] != "kept results"]
    earlier = [f"{EARLIER}: by an earlier state of the code, see `pfl results list`."] * bool(old.intersection(runs))
    by_labels = {one.labels: one for one in obtained}
    small = dict[tuple[Key, Key], Numbers]()
    for place in layout.places:
        cell = layout.cell(*place)
        if cell and (one := by_labels.get(tuple(cell.labels.values()))):
            small[place] = {**_numbers(one), "difference": one.compared}
        elif cell and cell.obtained and not obtained:
            last = f" {BESIDE} {format_value(cell.last, decimals)}" if cell.last else ""
            done = "" if cell.complete else f" [{cell.n}/{len(cell.runs)}]"
            small[place] = {
                "": format_value(cell.obtained, decimals) + last + done + EARLIER * bool(old & {*cell.runs})
            }
    section = {"study": study, "facts": about, "picture": _picture(study.table.spec), "curves": curves_of(results)}
    if not obtained:
        two = [TWO_NUMBERS] * any(cell.last for cell in results.cells)
        cells = _grid(layout, small, NO_VALUE)
        more = {"cells": cells, "small": cells, "elsewhere": "", "why": []}
        return {**section, "words": [study.table.caption, *two, *earlier], **more}
    lines, others, why = list[Numbers](), list[Numbers](), dict[str, list[str]]()
    names = dict.fromkeys(name for one in obtained for name in one.elsewhere)
    for one in obtained:
        labels = _labels(study.table.axes, one.labels)
        numbers = _numbers(one, EARLIER * bool(old.intersection(one.ids)), "\\*")
        lines.append({**labels, **numbers, "difference": one.compared, "runs": f"{one.runs[0]} of {one.runs[1]}"})
        under = {name: f"{one.elsewhere[name]:.2f}" if name in one.elsewhere else NO_VALUE for name in names}
        reached = NO_VALUE if one.reached is None else str(one.reached)
        others.append({**labels, "published": one.published, **under, "reached in round": reached})
        if one.explained:
            why.setdefault(one.explained, []).append(", ".join(one.labels))
    quoted = ["*: the paper quotes this value from an earlier paper."] * any(one.quoted for one in obtained)
    return {
        **section,
        "words": [*earlier, *quoted],
        "cells": _markdown(lines, len(study.table.axes)),
        "small": _grid(layout, small),
        "elsewhere": _markdown(others, len(study.table.axes)),
        "why": [f"{'; '.join(several)}: {reason}" for reason, several in why.items()],
    }


def _made(runs: list[Entry]) -> str:
    """Return ``11 runs, 3.2 hours on cpu, from 2026-11-22 to 2026-11-23``."""
    hours = sum(run.seconds or 0.0 for run in runs) / 3600
    devices = ", ".join(sorted({str(run.facts["device"]) for run in runs}))
    first, last = min(run.obtained for run in runs), max(run.obtained for run in runs)
    when = f"on {first}" if first == last else f"from {first} to {last}"
    return f"{counted(len(runs), 'run')}, {hours:.1f} hours on {devices}, {when}"


def _grid(layout: Layout, numbers: Mapping[tuple[Key, Key], Numbers], lacking: str = "") -> str:
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
            for head in heads:
                line[escape_markdown(": ".join(filter(None, (title, head))) or layout.figure)] = own[head]
        rows.append(line)
    return _markdown(rows, len(layout.row_axes))


def _labels(axes: list[str], labels: Sequence[str]) -> Numbers:
    return dict(zip(axes, map(escape_markdown, labels), strict=True))


def _numbers(one: Obtained, mark: str = "", star: str = "") -> Numbers:
    published = {"published": one.published + star * one.quoted}
    if one.last:
        return published | {"last ten": one.obtained + mark, "last round": one.last}
    return published | {"obtained": one.obtained + mark}


def _markdown(rows: Sequence[Numbers], labels: int) -> str:
    """Return rows with the same columns as a table."""
    return aligned([list(rows[0]), *(list(row.values()) for row in rows)], labels) if rows else ""


def _page(papers: list[tuple[Summary, list[Section]]], seconds: float) -> str:
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
        legend=f"{LEGEND} {AGREEMENT_LEGEND}",
        papers=[(summary, sections) for summary, sections in papers if sections],
    )
