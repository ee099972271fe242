"""Papers: the specs of one folder together, the contents of the paper, and its entry in the index.

A paper's folder of specs may have a file ``contents.csv`` with the columns place, holds, specs (names separated by
blanks) and reason, which says why there is no spec.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
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
"""States of a table or figure of a paper, in order, and their names in print."""


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
        """The place as text, ``Table 6, detection mAP: there is no detector``."""
        return f"{self.where}, {self.holds}: {self.reason}"


def read_contents(folder: Path, paper: str, known: Collection[str]) -> list[Place]:
    """Return the places in a paper's ``contents.csv``; [] without this file. `known` has the names of the paper's
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
        place, holds, names, reason = cells if len(cells) == len(_COLUMNS) else [""] * len(_COLUMNS)
        specs = tuple(names.split())
        if not place or not holds or bool(specs) == bool(reason):
            raise UserError(f"{where}: a line has a place, what it holds, and either specs or a reason for none")
        if unknown := [name for name in specs if name not in known]:
            raise UserError(f"{where}: {unknown[0]!r} is no spec of this paper{did_you_mean(unknown[0], list(known))}")
        places.append(Place(place, holds, specs, reason))
    return places


@dataclass(frozen=True)
class Paper:
    """A folder of specs, or a spec outside of folders: its tables in the order of :func:`_reading`, their runs and
    maybe others, and the places of ``contents.csv``. If the specs are not all about one publication, `citation` is ""
    and `title` is the one that all specs share, else the name."""

    name: str
    title: str
    citation: str
    tables: dict[str, ResolvedTable]
    runs: Mapping[str, Run]
    places: tuple[Place, ...] = ()

    def folder(self, spec: str) -> str:
        """Return the folder of the pictures of one of its specs, relative to its page."""
        return f"{self.name}/{spec.removeprefix(f'{self.name}/')}"


@dataclass(frozen=True)
class Brief:
    """The entry of a spec in the index: its cells and claims by state, how many accuracies are published of it,
    and the best of its columns."""

    spec: str
    heading: str
    coverage: Counter[str] = field(default_factory=Counter)
    claims: Counter[str] = field(default_factory=Counter)
    published: int = 0
    agreement: Agreement = field(default_factory=Agreement)
    best: tuple[str, ...] = ()

    @classmethod
    def of(cls, report: SpecReport) -> Brief:
        """Return the entry of a spec from its report."""
        counts = report.coverage, report.verdicts, report.table.published_accuracies
        return cls(report.table.spec, report.heading, *counts, report.agreement, tuple(report.best))


@dataclass(frozen=True)
class Summary:
    """The entry of a paper in the index."""

    name: str
    title: str
    citation: str
    briefs: list[Brief] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    @property
    def of_paper(self) -> Counter[str]:
        """The paper's tables and figures by state; without a list of places, one table per spec. Specs that a profile
        leaves out count as not run yet."""
        by_spec = {brief.spec.removeprefix(f"{self.name}/"): brief.coverage for brief in self.briefs}
        found = Counter[str]()
        for place in self.places or [Place("Table", "", (spec,)) for spec in by_spec]:
            if place.shows_results:
                found[_state(place, by_spec)] += 1
        return found

    @property
    def lacking(self) -> list[Place]:
        """The tables and figures that no spec is about."""
        return [place for place in self.places if place.shows_results and not place.specs]

    @property
    def coverage(self) -> Counter[str]:
        return sum((brief.coverage for brief in self.briefs), Counter[str]())

    @property
    def claims(self) -> Counter[str]:
        return sum((brief.claims for brief in self.briefs), Counter[str]())

    @property
    def published(self) -> int:
        """How many accuracies the paper prints; of several specs about one table only the first one counts."""
        first = {place.specs[0] for place in self.places if place.specs}
        return sum(brief.published for brief in self.briefs if not first or brief.spec.partition("/")[2] in first)

    @property
    def agreement(self) -> Agreement:
        return Agreement.total((brief.agreement for brief in self.briefs), self.published)


def _state(place: Place, by_spec: Mapping[str, Counter[str]]) -> str:
    """Return the state of a place, one of :data:`PLACES`, from cells by state of each spec."""
    if not place.specs:
        return "unplanned"
    cells = sum((by_spec.get(spec, Counter(missing=1)) for spec in place.specs), Counter[str]())
    if not cells["missing"] + cells["partly"] + cells["diverged"]:
        return "done"
    return "partly" if cells["done"] + cells["partly"] + cells["diverged"] else "missing"


def papers_of(tables: Mapping[str, ResolvedTable], runs: Mapping[str, Run]) -> dict[str, Paper]:
    """Return papers by name from resolved tables and runs: publications first, then own specs, both sorted by name.
    Raises :class:`UserError` if the name of a paper is used for something else in ``reports/``."""
    groups = dict[str, dict[str, ResolvedTable]]()
    for spec in sorted(tables, key=_reading):
        groups.setdefault(spec.split("/")[0], {})[spec] = tables[spec]
    papers = sorted((_paper(name, group, runs) for name, group in groups.items()), key=in_order)
    return {paper.name: paper for paper in papers}


def in_order(paper: Paper | Summary) -> Any:
    """Return a sort key: publications before own specs, then by name."""
    return not paper.citation, _natural(paper.name)


def _paper(name: str, tables: dict[str, ResolvedTable], runs: Mapping[str, Run]) -> Paper:
    if name in (path.rpartition("/")[2] for path in (PAPERS, INDEX)):
        what = f"specs/{name}/" if any("/" in spec for spec in tables) else f"specs/{name}.yaml"
        raise UserError(f"{what}: reports/{name} is where the pages of papers are; rename it")
    papers = [table.paper for table in tables.values() if table.paper]
    if len(papers) == len(tables) and len({paper.name for paper in papers}) == 1:
        return Paper(name, papers[0].name, papers[0].citation, tables, runs)
    titles = {table.title for table in tables.values()}  # own specs, some of which may be about a paper
    return Paper(name, titles.pop() if len(titles) == 1 else name, "", tables, runs)


def _reading(spec: str) -> Any:
    """Return a sort key: specs named like a table first, then those named like a figure, then all others."""
    name = spec.partition("/")[2]
    return 0 if name.startswith("table") else 1 if name.startswith("fig") else 2, _natural(spec)


def _natural(spec: str) -> Any:
    """Return a sort key that puts table10 after table2."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", spec)]
