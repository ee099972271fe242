"""``pfl report``: the pages of papers and the index over all of them, written again when their inputs have changed.

A paper has a section per spec, with the content of the spec's report. In HTML a paper of many specs has a page with an
overview, and a page per spec.
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
from pipeline import workspace as at
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.dvc.program import Recorded
from pipeline.ledger import Entry, Ledger
from pipeline.papers.paper import PLACES, Paper, Summary, in_order, papers_of, read_contents
from pipeline.report.agreement import Agreement
from pipeline.report.collect import collect_frame
from pipeline.report.render import Document, html, latex, markdown
from pipeline.report.spec_report import SpecReport
from pipeline.report.statistics import NOISE_LEGEND
from pipeline.report.table import Results
from pipeline.report.write import put, write_pictures
from pipeline.spec.selection import select_specs
from pipeline.spec.specs import find_specs
from pipeline.workspace import INDEX, PAPERS, Workspace

MOST_TABLES = 4
"""The largest number of tables on one HTML page."""


@dataclass(frozen=True)
class Known:
    """The remembered state of a paper: a hash of its page's inputs, whether a page shows these, and its index entry."""

    state: str
    page: bool
    summary: Summary


_REMEMBERED = TypeAdapter(dict[str, Known])


@dataclass
class Papers:
    """The papers of a workspace, as compiled. If `partial`, there are more papers; the index shows their remembered
    state."""

    workspace: Workspace
    compilation: Compilation
    partial: bool = False

    @classmethod
    def compiled(cls, workspace: Workspace, only: Collection[str] = (), compiled: Compilation | None = None) -> Papers:
        """Return all papers of a workspace, or `only` some of them, compiled in memory without invalid specs. If a kept
        result is damaged, take the existing compilation `compiled`, or raise :class:`UserError` if there is none."""
        names = [name for name in find_specs(workspace.specs, {}) if not only or name.split("/")[0] in only]
        recorded = any((workspace.root / at.RECORDS).parent.rglob("dvc.lock"))  # if not, no stage can be stale
        try:
            compiled = compile_workspace(workspace, names, required=(), stages=recorded)
        except UserError:
            if compiled is None:
                raise
        return cls(workspace, compiled, partial=bool(only))

    @cached_property
    def papers(self) -> dict[str, Paper]:
        papers, specs = papers_of(self.compilation.tables, self.compilation.all_runs), self.workspace.specs
        found = find_specs(specs, {})
        for name, paper in papers.items():
            known = [spec.removeprefix(f"{name}/") for spec in found if spec.startswith(f"{name}/")]
            papers[name] = replace(paper, places=tuple(read_contents(specs, name, known)))
        return papers

    def chosen(self, names: Iterable[str]) -> list[str]:
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
        path, wanted, written = self.workspace.private / "papers.json", set(names), list[str]()
        try:
            known = _REMEMBERED.validate_json(path.read_bytes())
        except (OSError, ValidationError):  # the summaries are then made again
            known = {}
        now = dict(known) if self.partial else {}
        ledger, recorded = Ledger(self.workspace.root), Recorded(self.workspace.root, self.compilation)
        for name, paper in self.papers.items():
            runs = {run for table in paper.tables.values() for run in table.runs}
            ids = sorted(runs & self.compilation.kept)
            stale = sorted(filter(recorded.is_stale, runs.difference(ids)))
            lines = [ledger.lines[run][1] for run in ids if run in ledger.lines]
            state, before = self._state(paper, [*lines, *stale]), known.get(name)
            if before and before.state == state and (name not in wanted or (before.page and self.page(name).is_file())):
                now[name] = before
                continue
            kept = {run: entry for run in ids if (entry := ledger.get(run))}
            reports = reports_of(paper, self.workspace.root, {**kept, **dict.fromkeys(stale)})
            if name in wanted:
                write_paper(paper, reports, self.workspace.root)
                written.append(name)
            now[name] = Known(state, name in wanted, Summary.of(paper, reports))
        write_text(path, _REMEMBERED.dump_json(now).decode())
        self._write_index(sorted((entry.summary for entry in now.values()), key=in_order))
        return written

    def _write_index(self, summaries: list[Summary]) -> None:
        every = [one.agreement for one in summaries]
        agreement = Agreement.total(every, sum(one.published for one in every))
        text = html(
            "index.html.j2",
            numbers=agreement.numbers() if agreement.differences else [],
            legend=NOISE_LEGEND,
            papers=[(entry, self.page(entry.name).is_file()) for entry in summaries],
            total=sum((entry.of_paper for entry in summaries), Counter[str]()),
            places=PLACES,
            profile=self.workspace.profile,
        )
        put(self.index, text)

    def _state(self, paper: Paper, more: list[str]) -> str:
        """Return a hash of the inputs of a paper's page: specs, code, files, and `more`."""
        files = set[str]()
        for spec, table in paper.tables.items():
            files |= {f"{at.report_path(spec)}/report.html", *map(at.selection_path, table.tuned.values())}
            files |= {f"{at.partition_report_path(one.federation)}/index.html" for one in table.partitions}
            files |= {at.run_path(run, name) for run in table.runs for name in ("rounds.parquet", "analysis.parquet")}
            files |= set(map(at.partition_path, table.runs.values()))
        code = [path for kind in ("*.py", "*.j2") for path in Path(pipeline.__file__).parent.rglob(kind)]
        inputs = [*sorted(code), *(self.workspace.root / file for file in sorted(files))]
        tables = [table.model_dump_json() for table in paper.tables.values()]
        parts = [*tables, *(place.words for place in paper.places), *more, *map(stamp, inputs)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def stamp(path: Path) -> str:
    """Return the modification time, size and inode number of a file; a dash if it does not exist."""
    try:
        stat = path.stat()
    except OSError:  # DVC removes outputs before it makes them again
        return "-"
    return f"{stat.st_mtime_ns} {stat.st_size} {stat.st_ino}"


def reports_of(paper: Paper, root: Path, kept: Mapping[str, Entry | None] | None = None) -> list[SpecReport]:
    """Return the reports of a paper's specs from artifacts in the workspace `root` and from what replaces them, as
    :func:`collect_frame` takes it. Raises :class:`UserError` if an artifact is damaged."""
    reports = []
    for number, (spec, table) in enumerate(paper.tables.items(), start=1):
        folder, own = paper.folder(spec), f"{at.report_path(spec)}/report.html"
        pages = {one.federation: f"{at.partition_report_path(one.federation)}/index" for one in table.partitions}
        there = {name: page for name, page in pages.items() if (root / f"{page}.html").is_file()}
        report = SpecReport(
            Results.of(table, collect_frame(table, paper.runs, root, kept)),
            key=f"s{number}",
            folder=f"{folder}/",
            pages={name: posixpath.relpath(page, PAPERS) for name, page in there.items()},
            href=f"{folder}.html" if len(paper.tables) > MOST_TABLES else f"#{folder.removeprefix(f'{paper.name}/')}",
            own=posixpath.relpath(own, PAPERS) if (root / own).is_file() else "",
        )
        reports.append(report)
    return reports


def write_paper(paper: Paper, reports: list[SpecReport], root: Path) -> None:
    """Write ``reports/papers/<name>.md .tex .html``, ``<name>/<spec>.html`` if there are more than :data:`MOST_TABLES`,
    and their pictures. Unchanged files are not written, and old pages of specs are removed."""
    out = root / PAPERS
    notes = [note for note in reports[0].notes if all(note in report.notes for report in reports[1:])]
    whole = Document(
        paper.title,
        reports[0].table.profile,
        reports,
        citation=paper.citation,
        tables=reports,
        uncovered=[place.words for place in paper.places if not place.specs],
        notes=notes if len(reports) > 1 else [],
    )
    for report in reports:
        write_pictures(report, out / report.folder, tidy=True)
    put(out / f"{paper.name}.md", markdown("page.md.j2", page=whole))
    put(out / f"{paper.name}.tex", latex("page.tex.j2", page=whole))
    parts = {report.href: report for report in reports if not report.href.startswith("#")}
    put(out / f"{paper.name}.html", html("page.html.j2", page=replace(whole, reports=[]) if parts else whole))
    for number, (href, report) in enumerate(parts.items()):
        home = f"{paper.name}.html", paper.title
        alone = replace(whole, title=report.heading, citation="", reports=[report], notes=[], here=number, home=home)
        put(out / href, html("page.html.j2", page=replace(alone, up="../" * href.count("/"))))
    for path in (out / paper.name).rglob("*.html"):
        if path.relative_to(out).as_posix() not in parts:
            path.unlink(missing_ok=True)
