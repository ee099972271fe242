"""A page in a format: the templates, and the escaping that keeps any label from being read as markup."""

from __future__ import annotations

import dataclasses
import itertools
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from markupsafe import Markup

from pipeline.escape import escape_markdown
from pipeline.report.agreement import LEGEND as AGREEMENT_LEGEND
from pipeline.report.claims_table import LEGEND as CLAIMS_LEGEND
from pipeline.report.claims_table import weakest_pairs
from pipeline.report.coverage import CLAIM_STATES, STATES
from pipeline.report.details import details
from pipeline.report.drawing.sections import PlainTable
from pipeline.report.formats import aligned, environment, inline_svg
from pipeline.report.study import Row, Study, Text, banner, provenance
from pipeline.report.table.layout import Span
from pipeline.report.table.printed import BESIDE, MINUS
from pipeline.workspace import PAPER

_LATEX = {
    "\\": r"\textbackslash{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"},
    **{"|": r"\textbar{}", '"': "''", "[": "{[}", "]": "{]}", "*": "{*}"},
    **{"±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\leq$", "≥": r"$\geq$", "→": r"$\to$"},
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$"},
    **{MINUS: "$-$", "–": "--", "—": "---", "…": r"\ldots{}", "†": r"$\dagger$", "‡": r"$\ddagger$"},
    **{"‘": "`", "’": "'", "“": "``", "”": "''", "§": r"\S{}", "∞": r"$\infty$", "\n": " ", "\r": " "},
    **{"ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}", "æ": r"\ae{}", "ł": r"\l{}", "Ł": r"\L{}", "\xa0": "~"},
}
_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma sigma tau upsilon phi chi "
    "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
_GREEK = dict(zip("αβγδεζηθικλμνξπρσςτυφχψωΓΔΘΛΞΠΣΥΦΨΩ", _NAMES.split(), strict=True))
_ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327", "`'^~=u.\"rHvc", strict=True)
)
_HEAD_CHARACTERS = 12  # in a line of a column's head
_WIDTH = re.compile(r'<svg [^>]*viewBox="0 0 ([\d.]+) ')


@dataclass(frozen=True)
class Overview:
    """What an overview says of one table: its heading, its page, and cells and claims by state."""

    heading: str
    href: str
    coverage: Counter[str]
    claims: Counter[str]


@dataclass(frozen=True)
class Document:
    """Everything that a template prints, of one spec or of a paper.

    Attributes:
        studies: What is shown in full.
        timings: Where durations are.
        source: Of one spec the paper, its table and citation.
        tables: Of a paper an overview of all its tables; without any the document is the report of one spec.
        uncovered: What of the paper no spec is about, and why, a line each.
        notes: Those that all studies share.
        up: What leads from the HTML page to ``reports/papers/``.
        here: On the page of one of several tables, which it is; the title is its heading.
        home: The page of the paper, its title.
    """

    title: str
    profile: str
    studies: list[Study]
    timings: str = ".pfl/timings/"
    source: str = ""
    citation: str = ""
    tables: list[Overview] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    up: str = ""
    here: int | None = None
    home: tuple[str, str] = ("", "")

    @property
    def banner(self) -> str:
        return banner(self.profile)

    @property
    def mark(self) -> str:
        """The shortest warning, for every page in print; "" under the profile ``paper``."""
        return mark_of(self.profile)

    @cached_property
    def provenance(self) -> tuple[PlainTable, str]:
        runs = {run.id: run for study in self.studies for run in study.results.runs.values()}
        return provenance(runs[name] for name in sorted(runs))

    @property
    def overview(self) -> PlainTable:
        """A row per table, and one for all, with numbers of cells by state, and claims."""
        rows = list(self.tables)
        if len(rows) > 1:
            cells, claims = (
                sum(counts, Counter[str]()) for counts in zip(*((r.coverage, r.claims) for r in rows), strict=True)
            )
            rows.append(Overview("all", "", cells, claims))
        printed = [
            (
                *(row.heading, str(row.coverage.total()), *(str(row.coverage[state]) for state in STATES)),
                ", ".join(f"{row.claims[name]} {name}" for name in CLAIM_STATES if row.claims[name]),
            )
            for row in rows
        ]
        return PlainTable(("", "cells", *STATES.values(), "claims"), printed, labels=1)


def mark_of(profile: str) -> str:
    """Return ``SMOKE PROFILE``; "" for the profile ``paper``."""
    return "" if profile == PAPER else f"{profile.upper()} PROFILE"


def markdown(template: str, **context: Any) -> str:
    """Return a template in Markdown, with tables that also read well as plain text."""
    templates = environment(autoescape=False)
    templates.filters |= {"md": escape_markdown, "results": _markdown_results, "numbers": _markdown_numbers}
    templates.filters["plain"] = lambda table: aligned([table.header, *table.rows], table.labels)
    return templates.get_template(template).render(**_COMMON, **context)


def latex(template: str, **context: Any) -> str:
    """Return a template with angled delimiters, in LaTeX for plain pdflatex; what its fonts lack is spelled U+XXXX."""
    templates = environment(autoescape=False, angled=True)
    templates.filters |= {
        "tex": escape_latex,
        "breakable": _breakable,
        "obtained": _latex_obtained,
        "published": _latex_published,
    }
    helpers = {"multicolumns": _multicolumns, "latex_row": _latex_row, "without_repeats": without_repeats}
    return templates.get_template(template).render(**_COMMON, **helpers, **context)


def html(template: str, **context: Any) -> str:
    """Return a template in HTML. Drawings go through the filters `inline` or `sized`; they are ours, and trusted."""
    templates = environment(autoescape=True)
    templates.filters |= {"inline": inline_svg, "sized": _sized_svg}
    return templates.get_template(template).render(**_COMMON, data=details, **context)


def escape_latex(text: object) -> str:
    """Return text in which nothing is a command, in characters that OT1 fonts can print."""
    return "".join(_latex_char(char) for char in unicodedata.normalize("NFC", str(text)))


def without_repeats(rows: list[Row]) -> list[Row]:
    """Return rows whose outer labels are blank where they repeat the row above."""
    labels = _blanked([row.labels for row in rows])
    return [dataclasses.replace(row, labels=own) for row, own in zip(rows, labels, strict=True)]


def plain_rows(table: PlainTable) -> list[tuple[str, ...]]:
    """Return the rows of a plain table, likewise."""
    labels = _blanked([row[: table.labels] for row in table.rows])
    return [own + row[table.labels :] for own, row in zip(labels, table.rows, strict=True)]


_COMMON: dict[str, Any] = {
    "plain_rows": plain_rows,
    "weakest_pairs": weakest_pairs,
    "states": STATES,
    "claim_states": CLAIM_STATES,
    "claims_legend": CLAIMS_LEGEND,
    "agreement_legend": AGREEMENT_LEGEND,
}


def _blanked(labels: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    rows = []
    for above, own in zip([(), *labels], labels, strict=False):
        pairs = zip(above, own, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        rows.append(("",) * same + own[same:])
    return rows


def _sized_svg(svg: str, name: str) -> Markup:
    """Return a drawing as an element that is neither blown up on a wide screen nor illegible on a narrow one."""
    element = str(inline_svg(svg, name))
    width = float(_WIDTH.findall(element)[0])
    style = f'style="min-width: {0.85 * width:.0f}px; max-width: {1.5 * width:.0f}px" '
    return Markup(element.replace("<svg ", f"<svg {style}", 1))


def _markdown_results(study: Study, differences: bool = False) -> str:
    """Return the header's levels as rows, then the rows of values with ranks, or of differences to published values."""
    headers = study.results.layout.headers if differences else study.headers
    write: Callable[[Text], str] = (lambda cell: cell.compared) if differences else _markdown_cell
    lines, columns = [], len(headers[-1])
    for level, spans in enumerate(headers):
        cells = [""] * columns
        for span in spans:
            text = escape_markdown(span.text)
            cells[span.start] = f"*{text}*" if level and text else text
        lines.append([*(map(escape_markdown, study.row_axes) if level == 0 else [""] * len(study.row_axes)), *cells])
    for row in without_repeats(study.rows):
        cells = [*map(write, row.cells), *(escape_markdown(rank) for rank, _ in row.ranks)]
        lines.append([*map(escape_markdown, row.labels), *cells[:columns]])
    return aligned(lines, len(study.row_axes))


def _markdown_numbers(table: PlainTable) -> str:
    return aligned(
        [[escape_markdown(cell) for cell in row] for row in (table.header, *plain_rows(table))], table.labels
    )


def _markdown_cell(cell: Text) -> str:
    obtained = f"**{cell.obtained}**" if cell.best_obtained else cell.obtained + cell.tied
    published = f"**{cell.published}**" if cell.best_published else cell.published
    star = "\\*" if cell.quoted else ""
    parts = [
        obtained,
        f"{BESIDE} {cell.last}" if cell.last else "",
        f"\\[{cell.partial}\\]" if cell.partial else "",
        f"({published}{star})" if cell.published else "",
    ]
    return " ".join(filter(None, parts)) + cell.dagger


def _breakable(text: str) -> str:
    return re.sub(r"([-/.])", r"\1\\allowbreak{}", text)


def _latex_row(labels: Sequence[str], cells: list[str]) -> str:
    return " & ".join([*map(escape_latex, labels), *cells]) + r" \\"


def _latex_obtained(cell: Text) -> str:
    text = escape_latex(cell.obtained + cell.tied)
    text = rf"\textbf{{{text}}}" if cell.best_obtained else text
    text += escape_latex(
        (f" {BESIDE} {cell.last}" if cell.last else "") + (f" [{cell.partial}]" if cell.partial else "")
    )
    return text if cell.published else text + escape_latex(cell.dagger)


def _latex_published(cell: Text) -> str:
    text = escape_latex(cell.published)
    text = rf"\textbf{{{text}}}" if cell.best_published else text
    star = "$^{*}$" if cell.quoted else ""
    return rf"\published{{{text}{star}}}{escape_latex(cell.dagger)}" if cell.published else ""


def _multicolumns(spans: list[Span], labels: int) -> tuple[list[str], str]:
    """Return one header level in LaTeX: its cells, and the rules under those that span several columns."""
    cells = [
        f"\\multicolumn{{{span.width}}}{{c}}{{{_stacked(span) if span.width == 1 else escape_latex(span.text)}}}"
        for span in spans
    ]
    wide = [
        (span.start + labels + 1, span.start + labels + span.width) for span in spans if span.width > 1 and span.text
    ]
    return cells, " ".join(f"\\cmidrule(lr){{{first}-{last}}}" for first, last in wide)


def _stacked(span: Span) -> str:
    """Return the head of a column, in several lines if it is long: what makes a table wide makes its print small."""
    lines = textwrap.wrap(span.text, _HEAD_CHARACTERS, break_long_words=False, break_on_hyphens=False)
    words = r" \\ ".join(map(escape_latex, lines))
    return f"\\shortstack{{\\strut {words}}}" if len(lines) > 1 else words


def _latex_char(char: str) -> str:
    if char in _LATEX:
        return _LATEX[char]
    if char.isascii():
        return char if char.isprintable() else " "
    if char in _GREEK:
        return f"$\\{_GREEK[char]}$"
    parts = unicodedata.normalize("NFD", char)
    if len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS:
        return f"{{\\{_ACCENTS[parts[1]]}{{{parts[0]}}}}}"
    return f"\\texttt{{U+{ord(char):04X}}}"
