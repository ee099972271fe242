"""``pfl report``: the pages of papers and the index over all of them, written again when what they show has changed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pipeline.report
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.json_text import parse_json
from pflcore.registry import did_you_mean
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.papers.contents import PLACES, Places, read_contents
from pipeline.papers.paper import Paper, Summary, in_order, papers_of, summary
from pipeline.papers.paper_page import html_pages, mark_of, write_paper
from pipeline.papers.recalled import recall
from pipeline.report.claims.agreement import Agreement
from pipeline.report.pages.render import html
from pipeline.report.pages.study import put
from pipeline.report.pages.view import banner
from pipeline.report.statistics.noise import LEGEND
from pipeline.spec.specs import find_specs
from pipeline.workspace import (
    INDEX,
    PAPERS,
    Workspace,
    partition_path,
    partition_report_path,
    report_path,
    run_path,
)


@dataclass
class Papers:
    """The papers of a workspace, as compiled.

    Attributes:
        compilation: What it was compiled to.
        inputs: Paper → the files that its page is made of, relative to the workspace.
        identities: Paper → a hash of what it asks for, and of the code that renders it.
        partial: There are more, of which the index says what was known of them last.
    """

    workspace: Workspace
    papers: dict[str, Paper]
    compilation: Compilation
    inputs: dict[str, list[str]] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    partial: bool = False

    @classmethod
    def of(cls, workspace: Workspace, compilation: Compilation) -> Papers:
        """Those of a compilation, of which nothing needs to have been written."""
        papers = {
            name: replace(paper, places=tuple(read_contents(workspace.specs, name, _known(workspace, name))))
            for name, paper in papers_of(compilation.tables, compilation.every_run).items()
        }
        return cls(
            workspace,
            papers,
            compilation,
            {name: sorted(set(_inputs(paper))) for name, paper in papers.items()},
            {
                name: _hash(
                    [
                        *(table.model_dump_json() for table in paper.tables.values()),
                        *(place.words for place in paper.places),
                        *sorted(
                            run for table in paper.tables.values() for run in compilation.kept.intersection(table.runs)
                        ),
                        _source(),
                    ]
                )
                for name, paper in papers.items()
            },
        )

    @classmethod
    def compiled(cls, workspace: Workspace, only: Iterable[str] = ()) -> Papers:
        """All papers of a workspace, or `only` some of them, compiled in memory.

        Raises:
            UserError: A spec is invalid.
        """
        specs, wanted = find_specs(workspace.specs), set(only)
        names = [name for name in specs if not wanted or name.split("/")[0] in wanted]
        papers = cls.of(workspace, compile_workspace(workspace, names))
        papers.partial = bool(wanted)
        return papers

    def chosen(self, names: Iterable[str]) -> list[str]:
        """The papers that are meant by their names or by specs of theirs; all for no names.

        Raises:
            UserError: There is no such paper or spec.
        """
        words = [name.removeprefix("specs/").removesuffix(".yaml").rstrip("/") for name in names]
        for name in words:
            paper = self.papers.get(name.split("/")[0])
            if not paper or ("/" in name and name not in paper.tables):
                specs = [spec for paper in self.papers.values() for spec in paper.tables]
                raise UserError(
                    f"unknown paper {name!r}{did_you_mean(name, list(dict.fromkeys([*self.papers, *specs])))}"
                )
        return list(dict.fromkeys(name.split("/")[0] for name in words)) or list(self.papers)

    def page(self, name: str) -> Path:
        """The HTML page of a paper."""
        return self.workspace.root / PAPERS / f"{name}.html"

    @property
    def index(self) -> Path:
        return self.workspace.root / INDEX

    def write(self, names: Iterable[str]) -> list[str]:
        """Bring the pages of some papers and the index up to date; the papers whose pages were made anew.

        A page is made anew when any of its inputs is another file than last time, which is remembered in
        ``.pfl/papers.json``. Of other papers only the index tells.

        Raises:
            UserError: An artifact is damaged.
        """
        recall(self.workspace.root, self.compilation)
        path = self.workspace.private / "papers.json"
        known, wanted, written = _remembered(path), set(names), []
        now: dict[str, Any] = {name: entry for name, entry in known.items() if self.partial and _readable(entry)}
        for name, paper in self.papers.items():
            state, before = self._state(name), known.get(name, {})
            same = before.get("state") == state and _readable(before)
            if name not in wanted:
                entry = before if same else {"page": False, "summary": summary(paper, self.workspace.root).to_json()}
            elif same and before["page"] and self._complete(name):
                entry = before
            else:
                entry = {"page": True, "summary": write_paper(paper, self.workspace.root).to_json()}
                written.append(name)
            now[name] = {**entry, "state": state}
        if now != known:
            write_text(path, json.dumps(now))
        summaries = [Summary.from_json(entry["summary"]) for entry in now.values()]
        self._write_index(sorted(summaries, key=in_order))
        return written

    def _write_index(self, summaries: list[Summary]) -> None:
        profile = self.workspace.profile
        published = sum(entry.published for entry in summaries)
        agreement = Agreement.total((entry.agreement for entry in summaries), published)
        text = html(
            "index.html.j2",
            numbers=agreement.words if agreement.differences else [],
            legend=LEGEND,
            papers=[(entry, self.page(entry.name).is_file()) for entry in summaries],
            total=Places(sum((entry.of_paper for entry in summaries), Counter())),
            states=PLACES,
            banner=banner(profile),
            mark=mark_of(profile),
        )
        put(self.index, text)

    def _complete(self, name: str) -> bool:
        parts = {page.partition("#")[0] for page in html_pages(self.papers[name]).values()}
        files = [f"{name}.md", f"{name}.tex", f"{name}.html", *parts]
        return all((self.workspace.root / PAPERS / file).is_file() for file in files)

    def _state(self, name: str) -> str:
        """What the page of a paper depends on, as a hash: specs, code, and which files there are."""
        stamps = [_stamp(self.workspace.root / file) for file in self.inputs[name]]
        return _hash([self.identities[name], *stamps])


def _known(workspace: Workspace, paper: str) -> list[str]:
    """The names of a paper's specs, compiled or not."""
    return [name.removeprefix(f"{paper}/") for name in find_specs(workspace.specs) if name.startswith(f"{paper}/")]


def _inputs(paper: Paper) -> Iterator[str]:
    for spec, table in paper.tables.items():
        yield f"{report_path(spec)}/report.html"
        for partition in table.partitions:
            yield f"{partition_report_path(partition.federation)}/index.html"
        for run, federation in table.runs.items():
            yield run_path(run, "rounds.parquet")
            yield run_path(run, "analysis.parquet")
            yield partition_path(federation)


def _source() -> str:
    """The code of reports, by when its files were written."""
    folders = [Path(__file__).parent, Path(pipeline.report.__file__).parent]
    files = [path for folder in folders for kind in ("*.py", "*.j2") for path in folder.rglob(kind)]
    return "".join(map(_stamp, sorted(files)))


def _stamp(path: Path) -> str:
    """Which file there is, by when it was written, its size and its number; a dash where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return "-"
    return f"{stat.st_mtime_ns} {stat.st_size} {stat.st_ino}"


def _hash(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _remembered(path: Path) -> dict[str, Any]:
    """What the last call wrote down; nothing where it is damaged, which costs no more than time."""
    try:
        known = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) and all(isinstance(entry, dict) for entry in known.values()) else {}


def _readable(entry: dict[str, Any]) -> bool:
    try:
        Summary.from_json(entry["summary"])
    except (KeyError, TypeError):
        return False
    return "page" in entry
