"""``pfl report``: the pages of papers and the index over all of them, updated when their inputs have changed.

A paper has a section per spec. In HTML a paper of many specs has a page with an overview, and a page per spec.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

import pipeline
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline import workspace as paths
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.dvc.program import Recorded
from pipeline.ledger import Entry, Ledger
from pipeline.papers.paper import PLACES, Paper, Summary, papers_of, read_contents, sort_key
from pipeline.report.agreement import Agreement
from pipeline.report.collect import collect_frame
from pipeline.report.render import Document, html, latex, markdown
from pipeline.report.spec_report import SpecReport
from pipeline.report.statistics import NOISE_LEGEND
from pipeline.report.table import Results
from pipeline.report.write import write_if_changed, write_pictures
from pipeline.spec.selection import select_specs
from pipeline.spec.specs import find_specs
from pipeline.workspace import INDEX, PAPERS, Workspace

MAX_TABLES = 4
"""The largest number of tables on one HTML page."""


@dataclass(frozen=True)
class PaperState:
    """The stored state of a paper: a hash of its page's inputs, whether a page shows these, and its index entry."""

    state: str
    page: bool
    summary: Summary


_STATES = TypeAdapter(dict[str, PaperState])


@dataclass
class Papers:
    """The papers of a workspace, as compiled. If `partial`, the index shows the stored state of all other papers."""

    workspace: Workspace
    compilation: Compilation
    partial: bool = False

    @classmethod
    def compile(cls, workspace: Workspace, only: Collection[str] = (), fallback: Compilation | None = None) -> Papers:
        """Return all papers of a workspace, or `only` some of them, compiled in memory without invalid specs. If a kept
        result is damaged, use the compilation `fallback`, or raise :class:`UserError` if there is none."""
        names = [name for name in find_specs(workspace.specs, {}) if not only or name.split("/")[0] in only]
        recorded = any((workspace.root / paths.RECORDS).parent.rglob("dvc.lock"))  # if not, no stage can be stale
        try:
            compilation = compile_workspace(workspace, names, required=(), stages=recorded)
        except UserError:
            if fallback is None:
                raise
            compilation = fallback
        return cls(workspace, compilation, partial=bool(only))

    @cached_property
    def papers(self) -> dict[str, Paper]:
        papers, folder = papers_of(self.compilation.tables, self.compilation.all_runs), self.workspace.specs
        all_specs = find_specs(folder, {})
        for name, paper in papers.items():
            specs = [spec.removeprefix(f"{name}/") for spec in all_specs if spec.startswith(f"{name}/")]
            papers[name] = replace(paper, places=tuple(read_contents(folder, name, specs)))
        return papers

    def select(self, names: Iterable[str]) -> list[str]:
        """Return the papers with these names or with specs of these names; all papers for no names. Raises
        :class:`UserError` if there is no such paper or spec."""
        specs = select_specs(names, [spec for paper in self.papers.values() for spec in paper.tables])
        return list(dict.fromkeys(spec.split("/")[0] for spec in specs)) or list(self.papers)

    def page(self, name: str) -> Path:
        """Return the path of the HTML page of a paper."""
        return self.workspace.root / PAPERS / f"{name}.html"

    @property
    def index(self) -> Path:
        return self.workspace.root / INDEX

    def write(self, names: Iterable[str]) -> list[str]:
        """Update the pages of some papers and the index over all papers. Return the papers whose pages were written,
        because an input had changed or a page was missing. Raises :class:`UserError` if an artifact is damaged."""
        path, requested, written = self.workspace.private / "papers.json", set(names), list[str]()
        try:
            stored = _STATES.validate_json(path.read_bytes())
        except (OSError, ValidationError):  # the summaries are then made again
            stored = {}
        states = dict(stored) if self.partial else {}
        ledger, recorded = Ledger(self.workspace.root), Recorded(self.workspace.root, self.compilation)
        for name, paper in self.papers.items():
            runs = {run for table in paper.tables.values() for run in table.runs}
            kept = sorted(runs & self.compilation.kept)
            stale = sorted(filter(recorded.is_stale, runs.difference(kept)))
            lines = [ledger.lines[run][1] for run in kept if run in ledger.lines]
            digest, state = self._digest(paper, [*lines, *stale]), stored.get(name)
            page_exists = bool(state and state.page and self.page(name).is_file())
            if state and state.state == digest and (page_exists or name not in requested):
                states[name] = state
                continue
            entries = {run: entry for run in kept if (entry := ledger.get(run))}
            reports = reports_of(paper, self.workspace.root, {**entries, **dict.fromkeys(stale)})
            if name in requested:
                write_paper(paper, reports, self.workspace.root)
                written.append(name)
            states[name] = PaperState(digest, name in requested, Summary.from_reports(paper, reports))
        write_text(path, _STATES.dump_json(states).decode())
        self._write_index(sorted((state.summary for state in states.values()), key=sort_key))
        return written

    def _write_index(self, summaries: list[Summary]) -> None:
        agreements = [summary.agreement for summary in summaries]
        agreement = Agreement.total(agreements, sum(agreement.published for agreement in agreements))
        text = html(
            "index.html.j2",
            numbers=agreement.numbers() if agreement.differences else [],
            legend=NOISE_LEGEND,
            papers=[(summary, self.page(summary.name).is_file()) for summary in summaries],
            total=sum((summary.of_paper for summary in summaries), Counter[str]()),
            places=PLACES,
            profile=self.workspace.profile,
        )
        write_if_changed(self.index, text)

    def _digest(self, paper: Paper, results: list[str]) -> str:
        """Return a hash of the inputs of a paper's page: specs, code, files, and `results` that files do not show."""
        files = set[str]()
        for spec, table in paper.tables.items():
            files |= {f"{paths.report_path(spec)}/report.html", *map(paths.selection_path, table.tuned.values())}
            files |= {f"{paths.partition_report_path(entry.federation)}/index.html" for entry in table.partitions}
            files |= {paths.run_path(run, "rounds.parquet") for run in table.runs}
            files |= {paths.run_path(run, "analysis.parquet") for run in table.runs}
            files |= set(map(paths.partition_path, table.runs.values()))
        code = [path for kind in ("*.py", "*.j2") for path in Path(pipeline.__file__).parent.rglob(kind)]
        inputs = [*sorted(code), *(self.workspace.root / file for file in sorted(files))]
        tables = [table.model_dump_json() for table in paper.tables.values()]
        parts = [*tables, *(place.words for place in paper.places), *results, *map(stamp, inputs)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def stamp(path: Path) -> str:
    """Return the modification time, size and inode number of a file; a dash if it does not exist."""
    try:
        stat = path.stat()
    except OSError:  # DVC removes outputs before a stage writes them again
        return "-"
    return f"{stat.st_mtime_ns} {stat.st_size} {stat.st_ino}"


def reports_of(paper: Paper, root: Path, entries: Mapping[str, Entry | None] | None = None) -> list[SpecReport]:
    """Return the reports of a paper's specs from artifacts in the workspace `root`, and from `entries` in their place
    (:func:`collect_frame`). Raises :class:`UserError` if an artifact is damaged."""
    reports = []
    for number, (spec, table) in enumerate(paper.tables.items(), start=1):
        folder, report_page = paper.folder(spec), f"{paths.report_path(spec)}/report.html"
        pages = {}
        for partition in table.partitions:
            page = f"{paths.partition_report_path(partition.federation)}/index"
            if (root / f"{page}.html").is_file():
                pages[partition.federation] = posixpath.relpath(page, PAPERS)
        report = SpecReport(
            Results.from_frame(table, collect_frame(table, paper.runs, root, entries)),
            key=f"s{number}",
            folder=f"{folder}/",
            pages=pages,
            href=f"{folder}.html" if len(paper.tables) > MAX_TABLES else f"#{folder.removeprefix(f'{paper.name}/')}",
            report_href=posixpath.relpath(report_page, PAPERS) if (root / report_page).is_file() else "",
        )
        reports.append(report)
    return reports


def write_paper(paper: Paper, reports: list[SpecReport], root: Path) -> None:
    """Write ``reports/papers/<name>.md .tex .html``, ``<name>/<spec>.html`` if there are more than :data:`MAX_TABLES`,
    and their pictures. Unchanged files are not written, and old pages of specs are removed."""
    out = root / PAPERS
    notes = [note for note in reports[0].notes if all(note in report.notes for report in reports[1:])]
    document = Document(
        paper.title,
        reports[0].table.profile,
        reports,
        citation=paper.citation,
        tables=reports,
        uncovered=[place.words for place in paper.places if not place.specs],
        notes=notes if len(reports) > 1 else [],
    )
    for report in reports:
        write_pictures(report, out / report.folder, clean=True)
    write_if_changed(out / f"{paper.name}.md", markdown("page.md.j2", page=document))
    write_if_changed(out / f"{paper.name}.tex", latex("page.tex.j2", page=document))
    pages = {report.href: report for report in reports if not report.href.startswith("#")}
    first = replace(document, reports=[]) if pages else document
    write_if_changed(out / f"{paper.name}.html", html("page.html.j2", page=first))
    for index, (href, report) in enumerate(pages.items()):
        home, up = (f"{paper.name}.html", paper.title), "../" * href.count("/")
        page = replace(document, title=report.heading, citation="", reports=[report], notes=[], index=index)
        write_if_changed(out / href, html("page.html.j2", page=replace(page, home=home, up=up)))
    for path in (out / paper.name).rglob("*.html"):
        if path.relative_to(out).as_posix() not in pages:
            path.unlink(missing_ok=True)
