"""Papers: the specs of one folder together, what the paper holds, what was obtained of it, and what an index says.

A paper's folder of specs may have a file ``contents.csv`` with the columns place, holds, specs (names, apart by blanks)
and reason, which says why there is no spec.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.report.figures._comparisons import PROTOCOLS
from pipeline.report.frame import LAST, LAST_TEN
from pipeline.report.statistics import NO_VERDICT
from pipeline.report.study import Agreement, Study, compared_cells
from pipeline.report.table import Cell, Measured, Results, format_value, signed
from pipeline.spec.published import csv_lines
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import INDEX, PAPERS

_COLUMNS = ["place", "holds", "specs", "reason"]

PLACES = {"done": "done", "partly": "partly done", "missing": "not run yet", "unplanned": "no spec"}
"""States of a table or figure of a paper, in order, and their names in print."""


@dataclass(frozen=True)
class Place:
    """A table, a figure or a statement of a paper, what it holds, the specs that are about it, or why none is."""

    where: str
    holds: str
    specs: tuple[str, ...]
    reason: str = ""

    @property
    def shows_results(self) -> bool:
        return self.where.startswith(("Table", "Figure"))

    @property
    def words(self) -> str:
        """``Table 6, detection mAP: there is no detector``."""
        return f"{self.where}, {self.holds}: {self.reason}"


def read_contents(folder: Path, paper: str, known: Collection[str]) -> list[Place]:
    """Return what the paper of a folder of specs holds, by the names of its specs, as ``table1``; [] where no file says
    it. Raises :class:`UserError`: a line is not whole, or names no spec of the paper."""
    path, label = folder / paper / "contents.csv", f"specs/{paper}/contents.csv"
    lines, places = csv_lines(path, label) if path.is_file() else iter([("", _COLUMNS)]), list[Place]()
    if next(lines, ("", []))[1] != _COLUMNS:
        raise UserError(f"{label}:1: the columns are {', '.join(_COLUMNS)}")
    for where, cells in lines:
        if len(cells) != len(_COLUMNS) or not (cells[0] and cells[1]) or bool(cells[2].split()) == bool(cells[3]):
            raise UserError(f"{where}: a line has a place, what it holds, and either specs or a reason for none")
        places.append(Place(cells[0], cells[1], tuple(cells[2].split()), cells[3]))
        if unknown := [name for name in places[-1].specs if name not in known]:
            raise UserError(f"{where}: {unknown[0]!r} is no spec of this paper{did_you_mean(unknown[0], list(known))}")
    return places


@dataclass(frozen=True)
class Paper:
    """A folder of specs, or a spec that lies in no folder: its tables in the order of :func:`_reading`, the runs of
    these and maybe others, and the places that a file lists. Of one's own the citation is "", and the title that of its
    only spec, else the name."""

    name: str
    title: str
    citation: str
    tables: dict[str, ResolvedTable]
    runs: Mapping[str, Run]
    places: tuple[Place, ...] = ()

    def folder(self, spec: str) -> str:
        """Return where the pictures of one of its specs lie, relative to its page."""
        return f"{self.name}/{spec.removeprefix(f'{self.name}/')}"


@dataclass(frozen=True)
class Obtained:
    """A published accuracy and what was obtained for it, in percent and percentage points.

    Attributes:
        labels: Of the cell, in the order in which ``--cell`` takes them.
        last: What was obtained after the last round, where `obtained` is the mean over the last measurements; else "".
        runs: How many there are, of how many that are planned.
        quoted: The paper has the value from an earlier one.
        elsewhere: The number under other protocols, by their names.
        explained: Why they differ; "" where nobody knows, or where they do not.
        reached: The mean over runs of the first round at the published number or above; None where one never is.
    """

    labels: tuple[str, ...]
    published: str
    obtained: str
    last: str
    difference: float
    verdict: str
    noise: float | None
    runs: tuple[int, int]
    quoted: bool
    elsewhere: dict[str, float]
    explained: str
    ids: tuple[str, ...]
    reached: int | None = None

    @property
    def compared(self) -> str:
        """The difference with its sign, and the verdict where there is one: ``+1.53 beyond noise (0.90)``."""
        verdict = "" if self.verdict == NO_VERDICT else f" {self.verdict} ({self.noise:.2f})"
        return signed(self.difference, 2) + verdict


def collect_obtained(results: Results) -> list[Obtained]:
    """Return the cells of a table that have both values, in its order; quantities other than accuracy are left out."""
    return [_obtained(cell, results) for cell in compared_cells(results)]


def count_published(table: ResolvedTable) -> int:
    """Count the accuracies that are published of a table, whether a run is planned for them or not."""
    cells = (cell.published for cell in table.cells if cell.quantity is None)
    return sum(published is not None and published.mean is not None for published in cells)


def _obtained(cell: Cell, results: Results) -> Obtained:
    assert cell.obtained and cell.published and cell.difference is not None
    runs = [run for run in map(results.runs.__getitem__, cell.runs) if run.values_of(cell.client)]
    curves = [run.curve(cell.client) for run in runs]
    reached = [int(curve.index[at][0]) for curve in curves if (at := curve >= cell.published.mean).any()]
    decimals = results.table.decimals
    return Obtained(
        labels=tuple(cell.labels.values()),
        published=format_value(cell.published, decimals),
        obtained=format_value(cell.obtained, decimals),
        last=format_value(cell.last, decimals),
        difference=round(cell.difference, 6),
        verdict=cell.verdict,
        noise=cell.noise,
        runs=(cell.n, len(cell.runs)),
        quoted=cell.quoted,
        elsewhere=_elsewhere(runs, cell.client, results.table.metric),
        explained=cell.explained,
        ids=tuple(run.id for run in runs),
        reached=round(statistics.fmean(reached)) if reached and len(reached) == len(runs) else None,
    )


def _elsewhere(runs: list[Measured], client: int | None, metric: str) -> dict[str, float]:
    """Return the mean over runs under protocols that the table does not show, of a client or, for None, of all."""
    shown = {metric, "last_position", *(["final"] if metric == LAST_TEN else [])}
    if not any(run.resolved.evaluation.window for run in runs):
        shown.add("last_rounds")  # which is the last round
    found = []
    for run in runs:
        curve = run.curve(client)
        more = {"best_by_test": float(curve.max()), LAST_TEN: float(curve.iloc[-LAST:].mean())}
        found.append({name: value.mean for name, value in run.values_of(client).items()} | more)
    names = [name for name in PROTOCOLS if name not in shown and all(name in own for own in found)]
    return {PROTOCOLS[name]: round(statistics.fmean(own[name] for own in found), 6) for name in names}


@dataclass(frozen=True)
class Brief:
    """What an index says about one spec: its cells and claims by state, and how many accuracies are published of it."""

    spec: str
    heading: str
    coverage: Counter[str] = field(default_factory=Counter)
    claims: Counter[str] = field(default_factory=Counter)
    published: int = 0
    obtained: tuple[Obtained, ...] = ()
    agreement: Agreement = field(default_factory=Agreement)

    @classmethod
    def of(cls, study: Study) -> Brief:
        """Return what an index says about a study."""
        counts = study.coverage, study.verdicts, count_published(study.table)
        return cls(study.table.spec, study.heading, *counts, tuple(collect_obtained(study.results)), study.agreement)


@dataclass(frozen=True)
class Summary:
    """What an index says about one paper."""

    name: str
    title: str
    citation: str
    briefs: list[Brief] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    @property
    def of_paper(self) -> Counter[str]:
        """Its tables and figures by state; of one's own, and where nothing lists them, those that have a spec. Of specs
        that a profile leaves out nothing is known, so they are not run yet."""
        by_spec = {brief.spec.removeprefix(f"{self.name}/"): brief.coverage for brief in self.briefs}
        found = Counter[str]()
        for place in self.places or [Place("Table", "", (spec,)) for spec in by_spec]:
            cells = sum((by_spec.get(spec, Counter(missing=1)) for spec in place.specs), Counter[str]())
            left = cells["missing"] + cells["partly"] + cells["diverged"]
            begun = cells["done"] + cells["partly"] + cells["diverged"]
            state = "unplanned" if not place.specs else "done" if not left else "partly" if begun else "missing"
            found[state] += place.shows_results
        return +found

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
        """How many accuracies the paper prints; of specs about the same table the first one's count."""
        first = {place.specs[0] for place in self.places if place.specs}
        return sum(brief.published for brief in self.briefs if not first or brief.spec.partition("/")[2] in first)

    @property
    def agreement(self) -> Agreement:
        return Agreement.total((brief.agreement for brief in self.briefs), self.published)


def papers_of(tables: Mapping[str, ResolvedTable], runs: Mapping[str, Run]) -> dict[str, Paper]:
    """Group resolved tables and their runs by paper: those that are published first, then one's own, by name. Raises
    :class:`UserError`: a folder has the name of something else that lies in ``reports/``."""
    groups = dict[str, dict[str, ResolvedTable]]()
    for spec in sorted(tables, key=_reading):
        groups.setdefault(spec.split("/")[0], {})[spec] = tables[spec]
    papers = sorted((_paper(name, group, runs) for name, group in groups.items()), key=in_order)
    return {paper.name: paper for paper in papers}


def in_order(paper: Paper | Summary) -> Any:
    """Return a key that sorts what is published before one's own, and then by name."""
    return not paper.citation, _natural(paper.name)


def _paper(name: str, tables: dict[str, ResolvedTable], runs: Mapping[str, Run]) -> Paper:
    if name in (path.rpartition("/")[2] for path in (PAPERS, INDEX)):
        what = f"specs/{name}/" if any("/" in spec for spec in tables) else f"specs/{name}.yaml"
        raise UserError(f"{what}: reports/{name} is where the pages of papers are; rename it")
    papers = [table.paper for table in tables.values() if table.paper]
    if len(papers) == len(tables) and len({paper.name for paper in papers}) == 1:
        return Paper(name, papers[0].name, papers[0].citation, tables, runs)
    titles = {table.title for table in tables.values()}  # one's own, of which some may be about a paper
    return Paper(name, titles.pop() if len(titles) == 1 else name, "", tables, runs)


def _reading(spec: str) -> Any:
    """Return a key that sorts what is named like a table or a figure of the paper before what is about it."""
    name = spec.partition("/")[2]
    return 0 if name.startswith("table") else 1 if name.startswith("fig") else 2, _natural(spec)


def _natural(spec: str) -> Any:
    """Return a key that sorts table10 after table2."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", spec)]
