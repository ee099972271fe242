"""Papers: the specs of one folder together, and what an index says about each of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pflcore.errors import UserError
from pipeline.papers.contents import Place, cover_places
from pipeline.papers.obtained import Obtained, collect_obtained, count_published
from pipeline.report.agreement import Agreement
from pipeline.report.study import Study
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import INDEX, PAPERS

# What lies in reports/ beside the reports of specs, as far as it comes from here.
_TAKEN = tuple(path.rpartition("/")[2] for path in (PAPERS, INDEX))


@dataclass(frozen=True)
class Paper:
    """A folder of specs, or a spec that lies in no folder.

    Attributes:
        name: Of the folder, or of the spec.
        title: What all its specs call the paper; else the title of its only spec, else the name.
        citation: "" for a study of one's own.
        tables: Spec id → resolved table: the paper's tables first, then its figures, then the rest, by their numbers.
        runs: Run id → run, of all these tables and maybe others.
        places: The tables, figures and statements of the paper, as far as a file lists them.
    """

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
class Brief:
    """What an index says about one spec.

    Attributes:
        coverage, claims: Cells and claims by state.
        published: How many accuracies are published of it.
        obtained: Those that were obtained.
        agreement: How these agree with the paper, as a whole.
    """

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
        return cls(
            study.table.spec,
            study.heading,
            study.coverage,
            study.verdicts,
            count_published(study.table),
            tuple(collect_obtained(study.results)),
            study.agreement,
        )


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
        """Its tables and figures by state; of one's own, and where nothing lists them, those that have a spec."""
        by_spec = {brief.spec.removeprefix(f"{self.name}/"): brief.coverage for brief in self.briefs}
        return cover_places(self.places or [Place("Table", "", (spec,)) for spec in by_spec], by_spec)

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
    def obtained(self) -> list[Obtained]:
        return [one for brief in self.briefs for one in brief.obtained]

    @property
    def agreement(self) -> Agreement:
        return Agreement.total((brief.agreement for brief in self.briefs), self.published)


def papers_of(tables: Mapping[str, ResolvedTable], runs: Mapping[str, Run]) -> dict[str, Paper]:
    """Group resolved tables and their runs by paper: those that are published first, then one's own, by name.

    Raises:
        UserError: A folder has the name of something else that lies in ``reports/``.
    """
    groups: dict[str, dict[str, ResolvedTable]] = {}
    for spec in sorted(tables, key=_reading):
        groups.setdefault(spec.split("/")[0], {})[spec] = tables[spec]
    papers = sorted((_paper(name, group, runs) for name, group in groups.items()), key=in_order)
    return {paper.name: paper for paper in papers}


def in_order(paper: Paper | Summary) -> Any:
    """Return a key that sorts what is published before one's own, and then by name."""
    return not paper.citation, _natural(paper.name)


def _paper(name: str, tables: dict[str, ResolvedTable], runs: Mapping[str, Run]) -> Paper:
    if name in _TAKEN:
        what = f"specs/{name}/" if any("/" in spec for spec in tables) else f"specs/{name}.yaml"
        raise UserError(f"{what}: reports/{name} is where the pages of papers are; rename it")
    papers = [table.paper for table in tables.values() if table.paper]
    if len(papers) == len(tables) and len({paper.name for paper in papers}) == 1:
        return Paper(name, papers[0].name, papers[0].citation, tables, runs)
    # One's own, of which some may be about a paper.
    titles = {table.title for table in tables.values()}
    return Paper(name, titles.pop() if len(titles) == 1 else name, "", tables, runs)


def _reading(spec: str) -> tuple[int, list[tuple[bool, int, str]]]:
    """Return a key that sorts what is named like a table or a figure of the paper before what is about it."""
    name = spec.partition("/")[2]
    kinds = [rank for rank, kind in enumerate(("table", "fig")) if name.startswith(kind)]
    return kinds[0] if kinds else 2, _natural(spec)


def _natural(spec: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts table10 after table2."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", spec)]
