"""Papers: the specs of a folder together, the contents of the paper, and its entry in the index.

Its folder may have ``contents.csv``: place, holds, specs (names separated by blanks), reason (why there is no spec).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.report.agreement import Agreement
from pipeline.report.spec_report import SpecReport
from pipeline.spec.published import csv_lines
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import INDEX, PAPERS

_COLUMNS = ["place", "holds", "specs", "reason"]

PLACES = {"done": "done", "partly": "partly done", "missing": "not run yet", "unplanned": "no spec"}
"""States of a table or figure of a paper, in order, and their printed names."""


@dataclass(frozen=True)
class Place:
    """A table, a figure or a statement of a paper: its content, and the specs about it or why there are none."""

    where: str
    holds: str
    specs: tuple[str, ...]
    reason: str = ""

    @property
    def shows_results(self) -> bool:
        return self.where.startswith(("Table", "Figure"))

    @property
    def words(self) -> str:
        """A description, ``Table 6, detection mAP: there is no detector``."""
        return f"{self.where}, {self.holds}: {self.reason}"


def read_contents(folder: Path, paper: str, names: Collection[str]) -> list[Place]:
    """Return the places in a paper's ``contents.csv``; [] without this file. `names` has the names of the paper's
    specs, such as ``table1``. Raises :class:`UserError` if a line is incomplete or names no spec of the paper."""
    path, label = folder / paper / "contents.csv", f"specs/{paper}/contents.csv"
    if not path.is_file():
        return []
    lines = csv_lines(path, label)
    _, columns = next(lines, ("", []))
    if columns != _COLUMNS:
        raise UserError(f"{label}:1: the columns are {', '.join(_COLUMNS)}")
    places = []
    for where, cells in lines:
        place, holds, specs, reason = cells if len(cells) == len(_COLUMNS) else [""] * len(_COLUMNS)
        if not place or not holds or bool(specs.strip()) == bool(reason):
            raise UserError(f"{where}: a line has a place, what it holds, and either specs or a reason for none")
        for spec in specs.split():
            if spec not in names:
                raise UserError(f"{where}: {spec!r} is no spec of this paper{did_you_mean(spec, list(names))}")
        places.append(Place(place, holds, tuple(specs.split()), reason))
    return places


@dataclass(frozen=True)
class Paper:
    """A folder of specs, or a spec outside of folders: its tables by :func:`_table_key`, their runs, and the places of
    ``contents.csv``. `citation` is "" unless all specs are about one publication."""

    name: str
    title: str
    citation: str
    tables: dict[str, ResolvedTable]
    runs: Mapping[str, Run]
    places: tuple[Place, ...] = ()

    @property
    def published(self) -> int:
        """The number of accuracies that the paper prints; of several specs about one table only the first counts."""
        first = {place.specs[0] for place in self.places if place.specs}
        counts = {spec.partition("/")[2]: table.published_accuracies for spec, table in self.tables.items()}
        return sum(count for spec, count in counts.items() if not first or spec in first)

    def folder(self, spec: str) -> str:
        """Return the folder of the pictures of a spec, relative to the page of the paper."""
        return f"{self.name}/{spec.removeprefix(f'{self.name}/')}"


@dataclass(frozen=True)
class Summary:
    """The entry of a paper in the index: its tables and figures, their cells and their claims by state; tables and
    figures without a spec; the best row of each column, by heading of its table; the agreement with the paper."""

    name: str
    title: str
    citation: str
    of_paper: Counter[str]
    coverage: Counter[str]
    claims: Counter[str]
    lacking: list[str]
    best: list[tuple[str, list[str]]]
    agreement: Agreement

    @classmethod
    def from_reports(cls, paper: Paper, reports: Sequence[SpecReport]) -> Summary:
        """Return the entry of a paper; without places with a table per spec. Missing specs count as not run yet."""
        by_spec = {report.table.spec.removeprefix(f"{paper.name}/"): report.coverage for report in reports}
        places = paper.places or [Place("Table", "", (spec,)) for spec in by_spec]
        places = [place for place in places if place.shows_results]
        return cls(
            paper.name,
            paper.title,
            paper.citation,
            of_paper=Counter(_state(place, by_spec) for place in places),
            coverage=sum((report.coverage for report in reports), Counter[str]()),
            claims=sum((report.verdicts for report in reports), Counter[str]()),
            lacking=[place.words for place in places if not place.specs],
            best=[(report.heading, report.best) for report in reports],
            agreement=Agreement.total((report.agreement for report in reports), paper.published),
        )


def _state(place: Place, by_spec: Mapping[str, Counter[str]]) -> str:
    """Return the state of a place, one of :data:`PLACES`, from cells by state of each spec."""
    if not place.specs:
        return "unplanned"
    cells = sum((by_spec.get(spec, Counter(missing=1)) for spec in place.specs), Counter[str]())
    if not cells["missing"] + cells["partly"] + cells["diverged"]:
        return "done"
    return "partly" if cells["done"] + cells["partly"] + cells["diverged"] else "missing"


def papers_of(tables: Mapping[str, ResolvedTable], runs: Mapping[str, Run]) -> dict[str, Paper]:
    """Return papers by name from resolved tables and runs: publications first, then other specs, both sorted by name.
    Raises :class:`UserError` if the name of a paper is used for something else in ``reports/``."""
    groups = dict[str, dict[str, ResolvedTable]]()
    for spec in sorted(tables, key=_table_key):
        groups.setdefault(spec.split("/")[0], {})[spec] = tables[spec]
    papers = sorted((_paper(name, group, runs) for name, group in groups.items()), key=sort_key)
    return {paper.name: paper for paper in papers}


def sort_key(paper: Paper | Summary) -> Any:
    """Return a sort key: publications before other specs, then by name."""
    return not paper.citation, _natural_key(paper.name)


def _paper(name: str, tables: dict[str, ResolvedTable], runs: Mapping[str, Run]) -> Paper:
    if name in (path.rpartition("/")[2] for path in (PAPERS, INDEX)):
        path = f"specs/{name}/" if any("/" in spec for spec in tables) else f"specs/{name}.yaml"
        raise UserError(f"{path}: reports/{name} is where the pages of papers are; rename it")
    papers = [table.paper for table in tables.values() if table.paper]
    if len(papers) == len(tables) and len({paper.name for paper in papers}) == 1:
        return Paper(name, papers[0].name, papers[0].citation, tables, runs)
    titles = {table.title for table in tables.values()}
    return Paper(name, titles.pop() if len(titles) == 1 else name, "", tables, runs)


def _table_key(spec: str) -> Any:
    """Return a sort key: specs named like a table first, then those named like a figure, then all others."""
    name = spec.partition("/")[2]
    return 0 if name.startswith("table") else 1 if name.startswith("fig") else 2, _natural_key(spec)


def _natural_key(spec: str) -> Any:
    """Return a sort key that puts table10 after table2."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", spec)]
