"""One spec with all that is known of it: what its own report and the page of its paper are both made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pflcore.files import atomic_path
from pipeline.report.claims.claims import Judgement, judge_claims
from pipeline.report.claims.rows import claims_csv
from pipeline.report.drawing.sections import Section
from pipeline.report.figures import build_sections
from pipeline.report.formats import csv_text
from pipeline.report.pages.view import Page, build_page
from pipeline.report.table.results import Results
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable


@dataclass(frozen=True)
class Study:
    """The results of a table, what they say about its claims, and the page that says it all."""

    results: Results
    judgements: list[Judgement]
    page: Page

    @property
    def spec(self) -> str:
        return self.results.table.spec


def examine(table: ResolvedTable, runs: Mapping[str, Run], root: Path) -> Study:
    """Read and draw everything that there is of a resolved table.

    Args:
        runs: Its runs and maybe more, by id.
        root: The workspace, under which ``artifacts/`` lies.

    Raises:
        UserError: An artifact is damaged.
    """
    results = Results.read(table, runs, root)
    judgements = judge_claims(results)
    return Study(results, judgements, build_page(results, judgements, build_sections(results)))


def put(path: Path, content: str | bytes) -> bool:
    """Write a file as a whole, unless it has that content already; whether it was written."""
    raw = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == raw:
        return False
    with atomic_path(path) as temporary:
        temporary.write_bytes(raw)
    return True


def write_pictures(study: Study, out: Path, *, tidy: bool = False) -> None:
    """Write ``claims.csv`` where there are claims, and ``<figure>.svg .png .csv`` of the curves and of every figure, as
    far as it has a picture and numbers.

    Args:
        tidy: Remove pictures that the study no longer has.
    """
    files: dict[str, str | bytes] = {}
    out.mkdir(parents=True, exist_ok=True)
    if study.judgements:
        files["claims.csv"] = claims_csv(study.judgements)
    for section in study.page.sections:
        files |= _files(section)
    for name, content in files.items():
        put(out / name, content)
    if tidy:
        for path in (path for kind in ("svg", "png", "csv") for path in out.glob(f"*.{kind}")):
            if path.name not in files:
                path.unlink(missing_ok=True)


def _files(section: Section) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {}
    if section.picture:
        files = {f"{section.name}.svg": section.picture.svg, f"{section.name}.png": section.picture.png}
    if not section.data.empty:
        text = csv_text(section.data)
        files[f"{section.name}.csv"] = text
    return files
