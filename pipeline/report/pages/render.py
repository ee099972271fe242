"""A page in a format: the templates, and the escaping that keeps any label from being read as markup."""

from __future__ import annotations

import dataclasses
import itertools
import re
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from pipeline.escape import escape_markdown
from pipeline.report.drawing.sections import PlainTable
from pipeline.report.formats import aligned, environment, inline_svg
from pipeline.report.pages.details import Details
from pipeline.report.pages.study import Study
from pipeline.report.pages.view import Page, TableRow, Text
from pipeline.report.table.layout import Span
from pipeline.report.table.printed import BESIDE, MINUS

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
_HEAD = 12  # characters in a line of a column's head
_WIDTH = re.compile(r'<svg [^>]*viewBox="0 0 ([\d.]+) ')
_ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327", "`'^~=u.\"rHvc", strict=True)
)


def render_html(study: Study) -> str:
    """The page of a study as one HTML document that loads nothing."""
    details = Details()
    details.add("table", study)
    return html("report.html.j2", page=study.page, data=details.script())


def markdown(template: str, **context: Any) -> str:
    """A template in Markdown, with tables that also read well as plain text."""
    templates = environment(autoescape=False)
    templates.filters |= {
        "md": escape_markdown,
        "results": lambda page: _markdown_table(page, page.all_headers, _markdown_cell),
        "differences": lambda page: _markdown_table(page, page.headers, lambda cell: cell.compared),
        "numbers": _markdown_numbers,
        "facts": lambda table: aligned([table.header, *table.rows], table.labels),
        "escaped": lambda rows, left: aligned([[*map(escape_markdown, row)] for row in rows], left),
    }
    return templates.get_template(template).render(**context)


def latex(template: str, **context: Any) -> str:
    """A template with angled delimiters, in LaTeX for plain pdflatex; what its fonts lack is spelled as U+XXXX."""
    templates = environment(autoescape=False, angled=True)
    templates.filters |= {
        "without_repeats": without_repeats,
        "tex": escape_latex,
        "breakable": lambda text: re.sub(r"([-/.])", r"\1\\allowbreak{}", text),
        "latex_obtained": _latex_obtained,
        "latex_published": _latex_published,
        "latex_difference": lambda cell: escape_latex(cell.compared),
    }
    templates.globals |= {"multicolumns": _multicolumns, "latex_row": _latex_row, "plain_rows": plain_rows}
    return templates.get_template(template).render(**context)


def html(template: str, **context: Any) -> str:
    """A template in HTML. Drawings go through the filters `inline` or `sized`; they are ours, and trusted."""
    templates = environment(autoescape=True)
    templates.filters |= {"inline": inline_svg, "sized": _sized_svg}
    templates.globals["plain_rows"] = plain_rows
    return templates.get_template(template).render(**context)


def escape_latex(text: object) -> str:
    """Text in which nothing is a command, in characters that OT1 fonts can print."""
    return "".join(_latex_char(char) for char in unicodedata.normalize("NFC", str(text)))


def without_repeats(rows: list[TableRow]) -> list[TableRow]:
    """Rows whose outer labels are blank where they repeat the row above."""
    labels = _blanked([row.labels for row in rows])
    return [dataclasses.replace(row, labels=own) for row, own in zip(rows, labels, strict=True)]


def plain_rows(table: PlainTable) -> list[tuple[str, ...]]:
    """The rows of a table of a section, likewise."""
    labels = _blanked([row[: table.labels] for row in table.rows])
    return [own + row[table.labels :] for own, row in zip(labels, table.rows, strict=True)]


def _blanked(labels: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    rows = []
    for above, own in zip([(), *labels], labels, strict=False):
        pairs = zip(above, own, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        rows.append(("",) * same + own[same:])
    return rows


def _sized_svg(svg: str, name: str) -> Markup:
    """A drawing as an element that is neither blown up on a wide screen nor illegible on a narrow one."""
    element = str(inline_svg(svg, name))
    width = float(_WIDTH.findall(element)[0])
    style = f'style="min-width: {0.85 * width:.0f}px; max-width: {1.5 * width:.0f}px" '
    return Markup(element.replace("<svg ", f"<svg {style}", 1))


def _markdown_table(page: Page, headers: list[list[Span]], write: Callable[[Text], str]) -> str:
    """The header's levels as rows, then the table's rows with cells printed by `write`, and what is derived of them as
    far as the header goes."""
    lines, columns = [], len(headers[-1])
    for level, spans in enumerate(headers):
        cells = [""] * columns
        for span in spans:
            text = escape_markdown(span.text)
            cells[span.start] = f"*{text}*" if level and text else text
        lines.append([*(map(escape_markdown, page.row_axes) if level == 0 else [""] * len(page.row_axes)), *cells])
    for row in without_repeats(page.rows):
        cells = [*map(write, row.cells), *(escape_markdown(number) for number, _ in row.derived)]
        lines.append([*map(escape_markdown, row.labels), *cells[:columns]])
    return aligned(lines, len(page.row_axes))


def _markdown_numbers(table: PlainTable) -> str:
    lines = [[escape_markdown(cell) for cell in row] for row in (table.header, *plain_rows(table))]
    return aligned(lines, table.labels)


def _markdown_cell(cell: Text) -> str:
    parts = []
    if cell.obtained:
        parts.append(f"**{cell.obtained}**" if cell.best_obtained else cell.obtained + cell.tied)
    if cell.last:
        parts.append(f"{BESIDE} {cell.last}")
    if cell.partial:
        parts.append(f"\\[{cell.partial}\\]")
    if cell.published:
        published = f"**{cell.published}**" if cell.best_published else cell.published
        star = "\\*" if cell.quoted else ""
        parts.append(f"({published}{star})")
    return " ".join(parts) + cell.dagger


def _latex_row(labels: Sequence[str], cells: list[str]) -> str:
    return " & ".join([*map(escape_latex, labels), *cells]) + r" \\"


def _latex_obtained(cell: Text) -> str:
    text = escape_latex(cell.obtained + cell.tied)
    if cell.best_obtained:
        text = rf"\textbf{{{text}}}"
    if cell.last:
        text += escape_latex(f" {BESIDE} {cell.last}")
    if cell.partial:
        text += escape_latex(f" [{cell.partial}]")
    return text if cell.published else text + escape_latex(cell.dagger)


def _latex_published(cell: Text) -> str:
    text = escape_latex(cell.published)
    if cell.best_published:
        text = rf"\textbf{{{text}}}"
    star = "$^{*}$" if cell.quoted else ""
    return rf"\published{{{text}{star}}}{escape_latex(cell.dagger)}" if cell.published else ""


def _multicolumns(spans: list[Span], labels: int) -> tuple[list[str], str]:
    """One header level in LaTeX: its cells, and the rules under those that span several columns."""
    cells = [
        f"\\multicolumn{{{span.width}}}{{c}}{{{_stacked(span) if span.width == 1 else escape_latex(span.text)}}}"
        for span in spans
    ]
    wide = [
        (span.start + labels + 1, span.start + labels + span.width) for span in spans if span.width > 1 and span.text
    ]
    return cells, " ".join(f"\\cmidrule(lr){{{first}-{last}}}" for first, last in wide)


def _stacked(span: Span) -> str:
    """The head of one column, in several lines if it is long: what makes a table wide makes its print small."""
    lines = textwrap.wrap(span.text, _HEAD, break_long_words=False, break_on_hyphens=False)
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
