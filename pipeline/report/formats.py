"""Text for pages and files, escaped so that labels are not read as markup: CSV, Markdown, LaTeX, SVG in HTML."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    import pandas as pd

# Text that a spreadsheet executes; a number is not one.
_FORMULA = re.compile(r"\s*[=@]|\t|[+-](?![\d.]+$)")
_MARKDOWN = str.maketrans(
    {**{char: f"\\{char}" for char in "\\`*_{}[]#|$~"}, "&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " ", "\r": " "}
)
_IN_T1 = "ÐðÞþĐđŊŋĄąĘęĮįŲų«»„‚‹›"  # LaTeX's default encoding does not have these letters and quotes
_UNENCODED = "ĦħĸĿŀŉŦŧſ"  # no encoding has these
_GREEK = "αβγδεζηθικλμνξπρςστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"  # without letters that look like Latin ones
_GREEK_NAMES = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu"),
    *("xi", "pi", "rho", "varsigma", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega"),
    *("Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega"),
)
_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\xa0": "~"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}", "*": "{*}"},
    **{'"': "''", "‘": "`", "’": "'", "“": "``", "”": "''", "–": "--", "—": "---", "…": r"\ldots{}"},
    **{"±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\leq$", "≥": r"$\geq$", "\N{MINUS SIGN}": "$-$"},
    **{"→": r"$\to$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}"},
    **{"∞": r"$\infty$", "√": r"$\surd$", "‖": r"$\|$", "°": r"\textdegree{}", "€": r"\texteuro{}"},
    **{"½": r"$\frac{1}{2}$", "¼": r"$\frac{1}{4}$", "¾": r"$\frac{3}{4}$"},
    **{sign: f"${{}}^{{{plain}}}$" for sign, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿªº", "0123456789+-nao", strict=True)},
    **{sign: f"${{}}_{{{digit}}}$" for digit, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    **{letter: f"$\\{name}$" for letter, name in zip(_GREEK, _GREEK_NAMES, strict=True)},
    **{letter: f"{{\\fontencoding{{T1}}\\selectfont {letter}}}" for letter in _IN_T1},
    **{"\N{NON-BREAKING HYPHEN}": "-", "\n": " ", "\r": " "},
}
_ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0323\u0327", "`'^~=u.\"rHvdc", strict=True)
)


def escape_markdown(text: object) -> str:
    """Return the text escaped, so that no part of it is read as Markdown, HTML or mathematics."""
    return str(text).translate(_MARKDOWN)


def escape_latex(text: object) -> str:
    """Return text without commands, in characters that a stock pdflatex prints; other characters become ``U+XXXX``."""
    letters = re.findall(r"(?s).[\u0300-\u036f]*", unicodedata.normalize("NFC", str(text)))
    return "".join(map(_latex_char, letters))


def _latex_char(char: str) -> str:
    """Escape a character, or a letter with accents that are characters of their own."""
    if char in _LATEX:
        return _LATEX[char]
    if char.isascii():
        return char if char.isprintable() else " "
    if char.isalpha() and char < "\u0180" and char not in _UNENCODED:
        return char
    base, *accents = list(unicodedata.normalize("NFD", char))
    if not accents or not base.isascii() or not set(accents) <= _ACCENTS.keys():
        if len(char) > 1:
            return "".join(map(_latex_char, char))
        return f"\\texttt{{U+{ord(char):04X}}}"
    for accent in accents:
        base = f"\\{_ACCENTS[accent]}{{{base}}}"
    return base


def chars_without_latex(text: str) -> list[str]:
    """Return the characters that :func:`escape_latex` wrote as ``U+XXXX`` into a file."""
    return [chr(int(code, 16)) for code in sorted(set(re.findall(r"\\texttt\{U\+([0-9A-F]{4,6})\}", text)))]


def inline_svg(svg: str, name: str = "") -> Markup:
    """Return an SVG document of ours as an element of an HTML page, with a prefix that makes its ids unique there."""
    element = svg[svg.index("<svg") :]
    return Markup(re.sub(r'(\bid="|\bhref="#|\burl\(#)', rf"\g<1>{name}-", element) if name else element)


def sized_svg(svg: str, name: str) -> Markup:
    """Return a drawing as an element of limited width, in proportion to its own."""
    width = float(re.findall(r'<svg [^>]*viewBox="0 0 ([\d.]+) ', svg)[0])
    style = f'style="min-width: {width:.0f}px; max-width: {2 * width:.0f}px" '
    return Markup(str(inline_svg(svg, name)).replace("<svg ", f"<svg {style}", 1))


def printable_name(name: str) -> str:
    """Return a visible name of a class; classes of texts are characters, including blanks and line ends."""
    return name if name.isprintable() and name.strip() else repr(name)


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV, the same bytes for the same table: whole numbers in full, others with six digits. A text
    that a spreadsheet would execute gets an apostrophe in front."""
    escaped = frame.rename(columns=_escape_formula)
    for i, kind in enumerate(escaped.dtypes):
        if kind.kind not in "biuf":
            escaped.isetitem(i, escaped.iloc[:, i].map(_escape_formula).to_numpy())
    return str(escaped.to_csv(float_format=_format_number, lineterminator="\n", index=False))


def _format_number(number: Any) -> str:
    return f"{number:.0f}" if number.is_integer() and abs(number) < 1e15 else f"{number:.6g}"


def _escape_formula(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # a carriage return would begin a line of the file
    return f"'{text}" if _FORMULA.match(text) else text


def md_table(rows: Sequence[Sequence[str]], label_columns: int) -> str:
    """Return a Markdown table, with its first columns left-aligned. The first row is the header."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    specs = [f"<{width}" if i < label_columns else f">{width}" for i, width in enumerate(widths)]
    header, *body = ([format(cell, spec) for cell, spec in zip(row, specs, strict=True)] for row in rows)
    rule = [format(":", f"-{spec}") for spec in specs]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *body))


def without_repeats(labels: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the labels of rows; outer labels that repeat the row above are blank."""
    rows = []
    for previous, row in zip([(), *labels], labels, strict=False):
        equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(previous, row, strict=False))
        repeated = len(list(equal))
        rows.append(("",) * repeated + tuple(row[repeated:]))
    return rows
