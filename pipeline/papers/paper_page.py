"""The page of a paper in three formats: a section per spec, each with what the spec's own report has.

In HTML a paper of many specs is a page with an overview, and a page per spec.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from pipeline.papers.coverage import STATES, Claims, Coverage
from pipeline.papers.paper import Brief, Paper, Summary, brief
from pipeline.report.drawing.sections import PlainTable
from pipeline.report.pages.details import Details
from pipeline.report.pages.provenance import provenance
from pipeline.report.pages.render import html, latex, markdown
from pipeline.report.pages.study import Study, examine, put, write_pictures
from pipeline.report.pages.view import Page, banner
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import PAPER, PAPERS, report_path

MOST_TABLES = 4
"""On one HTML page."""


@dataclass(frozen=True)
class SpecSection:
    """One spec on the page.

    Attributes:
        key: Its name in the page's scripts and drawings.
        anchor: Its name in addresses.
        href: Where it is, from the paper's page: ``#table2``, or ``fedtp/table2.html``.
        folder: Where its pictures lie, relative to the page.
        report: Where its own report lies, relative to the page; "" when it has not been made.
    """

    key: str
    anchor: str
    href: str
    folder: str
    report: str
    heading: str
    brief: Brief
    study: Study
    page: Page


@dataclass(frozen=True)
class PaperPage:
    """Everything that the templates of a paper print.

    Attributes:
        mark: The shortest warning, for the title and for every page in print; "" under the profile ``paper``.
        overview: A header, a row per spec, and one for all.
        uncovered: What of the paper no spec is about, and why, a line each.
        notes: Those that all specs share, which their sections do not repeat.
        data: What scripts of the HTML page need.
        up: What leads from the HTML page to ``reports/papers/``.
        here: The section that the HTML page is about; None on a page about the whole paper.
    """

    name: str
    heading: str
    citation: str
    banner: str
    mark: str
    coverage: Coverage
    claims: Claims
    overview: list[list[str]]
    uncovered: list[str]
    notes: list[str]
    sections: list[SpecSection]
    provenance: PlainTable
    alike: str
    data: Markup
    up: str = ""
    here: SpecSection | None = None

    @property
    def shown(self) -> list[SpecSection]:
        """The sections that are on the HTML page."""
        if self.here:
            return [self.here]
        return self.sections if len(self.sections) <= MOST_TABLES else []


def write_paper(paper: Paper, root: Path) -> Summary:
    """Write ``reports/papers/<name>.md .tex .html``, ``<name>/<spec>.html`` if there are more than :data:`MOST_TABLES`,
    and the pictures they need; a file that would not change is left.

    Raises:
        UserError: An artifact is damaged.
    """
    pages = html_pages(paper)
    sections = [
        _section(f"s{i}", paper, table, root, pages[spec])
        for i, (spec, table) in enumerate(paper.tables.items(), start=1)
    ]
    briefs = [section.brief for section in sections]
    summary = Summary(paper.name, paper.title, paper.citation, briefs, list(paper.places))
    page = _page(paper, summary, sections)
    out = root / PAPERS
    for section in sections:
        write_pictures(section.study, out / section.folder, tidy=True)
    put(out / f"{paper.name}.md", markdown("paper.md.j2", paper=page))
    put(out / f"{paper.name}.tex", latex("paper.tex.j2", paper=page))
    parts = {section.href: _alone(page, section) for section in sections if not section.href.startswith("#")}
    for name, part in {f"{paper.name}.html": page, **parts}.items():
        put(out / name, html("paper.html.j2", paper=part, states=STATES))
    for path in (out / paper.name).rglob("*.html"):
        if path.relative_to(out).as_posix() not in parts:
            path.unlink(missing_ok=True)
    return summary


def html_pages(paper: Paper) -> dict[str, str]:
    """Spec → where it is told of in HTML, relative to ``reports/papers/``; of a short paper, on its only page."""
    if len(paper.tables) <= MOST_TABLES:
        return {spec: f"{paper.name}.html#{_anchor(paper, spec)}" for spec in paper.tables}
    return {spec: f"{paper.folder(spec)}.html" for spec in paper.tables}


def _anchor(paper: Paper, spec: str) -> str:
    return paper.folder(spec).removeprefix(f"{paper.name}/")


def mark_of(profile: str) -> str:
    """``SMOKE PROFILE``; "" for the profile ``paper``."""
    return "" if profile == PAPER else f"{profile.upper()} PROFILE"


def _page(paper: Paper, summary: Summary, sections: list[SpecSection]) -> PaperPage:
    mark, notes = mark_of(paper.profile), _common([section.page.notes for section in sections])
    runs = {id_: run for section in sections for id_, run in section.study.results.runs.items()}
    where_from, alike = provenance(dict(sorted(runs.items())))
    page = PaperPage(
        name=paper.name,
        heading=f"{paper.title} ({mark})" if mark else paper.title,
        citation=paper.citation,
        banner=banner(paper.profile),
        mark=mark,
        coverage=summary.coverage,
        claims=summary.claims,
        overview=_overview(summary),
        uncovered=[place.words for place in paper.places if not place.specs],
        notes=notes,
        sections=[_without(section, notes) for section in sections],
        provenance=where_from,
        alike=alike,
        data=Markup(),
    )
    return replace(page, data=_data(page.shown))


def _alone(page: PaperPage, section: SpecSection) -> PaperPage:
    """One section of a long paper as a page of its own."""
    up = "../" * section.href.count("/")
    links = [(words, href and up + href) for words, href in section.page.partitions]
    here = replace(section, page=replace(section.page, partitions=links), report=section.report and up + section.report)
    return replace(
        page,
        provenance=section.page.provenance,
        alike=section.page.alike,
        data=_data([section]),
        up=up,
        here=here,
    )


def _data(sections: list[SpecSection]) -> Markup:
    details = Details()
    for section in sections:
        details.add(section.key, section.study)
    return details.script()


def _overview(summary: Summary) -> list[list[str]]:
    def row(heading: str, coverage: Coverage, claims: Claims) -> list[str]:
        told = ", ".join(f"{number} {verdict}" for verdict, number in claims.numbers.items())
        return [heading, str(coverage.total()), *map(str, coverage.numbers.values()), told]

    rows = [row(one.heading, one.coverage, one.claims) for one in summary.briefs]
    if len(rows) > 1:
        rows.append(row("all", summary.coverage, summary.claims))
    return [["", "cells", *STATES.values(), "claims"], *rows]


def _common(notes: list[list[str]]) -> list[str]:
    """Notes that each of several lists has."""
    return [note for note in notes[0] if all(note in other for other in notes)] if len(notes) > 1 else []


def _without(section: SpecSection, notes: list[str]) -> SpecSection:
    own = [note for note in section.page.notes if note not in notes]
    return replace(section, page=replace(section.page, notes=own))


def _section(key: str, paper: Paper, table: ResolvedTable, root: Path, href: str) -> SpecSection:
    study = examine(table, paper.runs, root)
    folder, report = paper.folder(study.spec), f"{report_path(study.spec)}/report.html"
    partitions = [(words, _from_page(href, study.spec, root)) for words, href in study.page.partitions]
    in_brief = brief(study.results, study.judgements)
    return SpecSection(
        key=key,
        anchor=_anchor(paper, study.spec),
        href=href.removeprefix(f"{paper.name}.html"),
        folder=folder,
        report=posixpath.relpath(report, PAPERS) if (root / report).is_file() else "",
        heading=in_brief.heading,
        brief=in_brief,
        study=study,
        page=replace(study.page, partitions=partitions),
    )


def _from_page(href: str, spec: str, root: Path) -> str:
    """A link in the report of a spec as one from the page of a paper; "" where it would lead nowhere."""
    target = posixpath.normpath(posixpath.join(report_path(spec), href))
    return posixpath.relpath(target, PAPERS) if (root / f"{target}.html").is_file() else ""
