"""A page in a format: the templates, and the escaping that keeps any label from being read as markup."""

from __future__ import annotations

import itertools
import json
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from pipeline.escape import escape_markdown
from pipeline.report.agreement import CLAIM_STATES, STATES
from pipeline.report.agreement import LEGEND as AGREEMENT_LEGEND
from pipeline.report.drawing.sections import PlainTable, drop_constant_columns
from pipeline.report.formats import aligned, environment, inline_svg
from pipeline.report.settings import settings_of, text_of
from pipeline.report.study import Facts, Part, Study, banner
from pipeline.report.table.cells import Cell
from pipeline.report.table.layout import Span
from pipeline.report.table.printed import BESIDE, MINUS, NO_VALUE, format_value
from pipeline.spec.table import train_stage
from pipeline.workspace import KEPT_STAGES, PAPER, shard_path

_PROVENANCE = (
    "Hashes are the first digits of SHA-256. Bytes are what one sampled client sends to (up) and receives from (down) "
    "the server in a round. Durations are not part of this report, which is the same for every repetition; they are in "
)
_DETAILS = {
    **{"device": "device", "torch": "torch", "dataset_hash": "data (SHA-256)", "partition_hash": "partition (SHA-256)"},
    **{"parameters": "parameters", "communicated_up": "bytes up", "communicated_down": "bytes down"},
    **{"stored": "numbers a client keeps", "macs": "multiply-adds per sample and step", "code": "code"},
    "diverged": "diverged",
}
_LATEX = {
    "\\": r"\textbackslash{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"},
    **{"|": r"\textbar{}", '"': "''", "[": "{[}", "]": "{]}", "*": "{*}"},
    **{"±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\leq$", "≥": r"$\geq$", "→": r"$\to$"},
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$"},
    **{MINUS: "$-$", "–": "--", "—": "---", "…": r"\ldots{}", "†": r"$\dagger$", "‡": r"$\ddagger$"},
    **{"‘": "`", "’": "'", "“": "``", "”": "''", "§": r"\S{}", "∞": r"$\infty$", "\xa0": "~", "\n": " ", "\r": " "},
}
_CAPITALS = ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega")  # in Greek


@dataclass(frozen=True)
class Overview:
    """What an overview says of one table: its heading, its page, and cells and claims by state."""

    heading: str
    href: str
    coverage: Counter[str]
    claims: Counter[str]


@dataclass(frozen=True)
class Document:
    """Everything that a template prints, of one spec, of a paper, or in parts of its own.

    Attributes:
        tables: Of a paper an overview of all its tables; without any the document is the report of one spec.
        uncovered: What of the paper no spec is about, and why, a line each.
        up: What leads from the HTML page to ``reports/papers/``.
        here: On the page of one of several tables, which it is; the title is its heading.
        home: The page of the paper, its title.
        own: Parts that are about no study.
    """

    title: str
    profile: str
    studies: list[Study] = field(default_factory=list)
    timings: str = ".pfl/timings/"
    source: str = ""
    citation: str = ""
    tables: list[Overview] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    up: str = ""
    here: int | None = None
    home: tuple[str, str] = ("", "")
    own: list[Part] = field(default_factory=list)

    @property
    def banner(self) -> str:
        return banner(self.profile)

    @property
    def mark(self) -> str:
        return mark_of(self.profile)

    @property
    def parts(self) -> list[Part]:
        """What stands before the studies."""
        lists = {"Not covered": self.uncovered, "Notes on all tables": self.notes}
        found = [Part(title, items=[(line, "") for line in lines]) for title, lines in lists.items() if lines]
        return [*found, *self.own]

    @property
    def provenance(self) -> Part:
        """A row of facts per run that is there, and what is the same for all of them; hashes are cut to 12 digits."""
        runs = {run.id: run for study in self.studies for run in study.results.runs.values() if run.made}
        labels = {"data": "dataset_hash", "partition": "partition_hash", "code": "code", "device": "device"}
        labels |= {"torch": "torch", **({"kept since": "kept"} if any(run.kept for run in runs.values()) else {})}
        numbers = {"parameters": "parameters", "bytes up": "communicated_up", "bytes down": "communicated_down"}
        rows = [
            (name, *(_fact(run.facts.get(fact), fact) for fact in (*labels.values(), *numbers.values())))
            for name, run in sorted(runs.items())
        ]
        table, same = drop_constant_columns(PlainTable(("run", *labels, *numbers), rows, labels=1 + len(labels)))
        text = [f"The same for all runs: {same}."] if same else [] if rows else ["No run is there yet."]
        folded, note = f"Provenance of {len(rows)} runs", f"{_PROVENANCE}{self.timings} of the workspace."
        return Part("Provenance", text=text, table=table if rows else None, folded=folded, note=note, name="provenance")

    @property
    def overview(self) -> PlainTable:
        """A row per table, and one for all, with numbers of cells by state, and claims."""
        rows = list(self.tables)
        if len(rows) > 1:
            cells = sum((row.coverage for row in rows), Counter[str]())
            rows.append(Overview("all", "", cells, sum((row.claims for row in rows), Counter[str]())))
        printed = [
            (
                *(row.heading, str(row.coverage.total()), *(str(row.coverage[state]) for state in STATES)),
                ", ".join(f"{row.claims[name]} {name}" for name in CLAIM_STATES if row.claims[name]),
            )
            for row in rows
        ]
        return PlainTable(("", "cells", *STATES.values(), "claims"), printed, labels=1)


def _fact(value: Any, fact: str) -> str:
    if value is None:
        return NO_VALUE
    return f"{value:,}" if isinstance(value, int) else str(value)[: 12 if "hash" in fact else None]


def mark_of(profile: str) -> str:
    """Return the shortest warning, ``SMOKE PROFILE``; "" for the profile ``paper``."""
    return "" if profile == PAPER else f"{profile.upper()} PROFILE"


def markdown(template: str, **context: Any) -> str:
    """Return a template in Markdown, with tables that also read well as plain text."""
    templates = environment(autoescape=False)
    templates.filters |= {"md": escape_markdown, "results": _markdown_results, "numbers": _markdown_numbers}
    return _rendered(templates.get_template(template), context)


def latex(template: str, **context: Any) -> str:
    """Return a template with angled delimiters, in LaTeX for plain pdflatex; what its fonts lack is spelled U+XXXX."""
    templates = environment(autoescape=False, angled=True)
    templates.filters |= {"tex": escape_latex, "breakable": lambda text: re.sub(r"([-/.])", r"\1\\allowbreak{}", text)}
    templates.filters |= {"obtained": _latex_obtained, "published": _latex_published}
    helpers = {"multicolumns": _multicolumns, "latex_row": _latex_row, "without_repeats": without_repeats}
    return _rendered(templates.get_template(template), {**helpers, **context})


def html(template: str, **context: Any) -> str:
    """Return a template in HTML. Drawings go through the filters `inline` or `sized`; they are ours, and trusted."""
    templates = environment(autoescape=True)
    templates.filters |= {"inline": inline_svg, "sized": _sized_svg}
    templates.filters["name"] = lambda verdict: verdict.replace(":", "").replace(" ", "-")
    shared = {"states": STATES, "claim_states": CLAIM_STATES, "agreement_legend": AGREEMENT_LEGEND, "data": details}
    return templates.get_template(template).render(without_repeats=without_repeats, **shared, **context)


def _rendered(template: Any, context: dict[str, Any]) -> str:
    """Return a template with one blank line where it leaves several."""
    return re.sub(r"\n{3,}", "\n\n", template.render(**context)).strip("\n") + "\n"


def without_repeats(labels: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the labels of rows, outer ones blank where they repeat the row above."""
    rows = []
    for above, own in zip([(), *labels], labels, strict=False):
        same = list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(above, own, strict=False)))
        rows.append(("",) * len(same) + tuple(own[len(same) :]))
    return rows


def _sized_svg(svg: str, name: str) -> Markup:
    """Return a drawing as an element that is neither blown up on a wide screen nor illegible on a narrow one."""
    element = str(inline_svg(svg, name))
    width = float(re.findall(r'<svg [^>]*viewBox="0 0 ([\d.]+) ', element)[0])
    style = f'style="min-width: {0.85 * width:.0f}px; max-width: {1.5 * width:.0f}px" '
    return Markup(element.replace("<svg ", f"<svg {style}", 1))


def _markdown_results(study: Study) -> str:
    """Return the header's levels as rows, then the rows of values with ranks."""
    lines = []
    for level, spans in enumerate(study.headers):
        cells = [""] * len(study.headers[-1])
        for span in spans:
            text = escape_markdown(span.text)
            cells[span.start] = f"*{text}*" if level and text else text
        lines.append([*(map(escape_markdown, study.row_axes) if level == 0 else [""] * len(study.row_axes)), *cells])
    for labels, row in zip(without_repeats([row["labels"] for row in study.rows]), study.rows, strict=True):
        ranks = (escape_markdown(rank) for rank, _ in row["ranks"])
        lines.append([*map(escape_markdown, labels), *map(_markdown_cell, row["cells"]), *ranks])
    return aligned(lines, len(study.row_axes))


def _markdown_numbers(table: PlainTable) -> str:
    labels = without_repeats([row[: table.labels] for row in table.rows])
    rows = [(*own, *row[table.labels :]) for own, row in zip(labels, table.rows, strict=True)]
    return aligned([[escape_markdown(cell) for cell in row] for row in (table.header, *rows)], table.labels)


def _markdown_cell(cell: dict[str, Any]) -> str:
    published = f"**{cell['published']}**" if cell["best_published"] else cell["published"]
    parts = [
        f"**{cell['obtained']}**" if cell["best_obtained"] else cell["obtained"] + cell["tied"],
        f"{BESIDE} {cell['last']}" if cell["last"] else "",
        f"\\[{cell['partial']}\\]" if cell["partial"] else "",
        "(" + published + ("\\*" if cell["quoted"] else "") + ")" if published else "",
    ]
    return " ".join(filter(None, parts)) + str(cell["dagger"])


def _latex_row(labels: Sequence[str], cells: Sequence[str]) -> str:
    return " & ".join([*map(escape_latex, labels), *cells]) + r" \\"


def _latex_obtained(cell: dict[str, Any]) -> str:
    text = escape_latex(cell["obtained"] + cell["tied"])
    text = rf"\textbf{{{text}}}" if cell["best_obtained"] else text
    more = (f" {BESIDE} {cell['last']}" if cell["last"] else "") + (f" [{cell['partial']}]" if cell["partial"] else "")
    return text + escape_latex(more + ("" if cell["published"] else cell["dagger"]))


def _latex_published(cell: dict[str, Any]) -> str:
    text = escape_latex(cell["published"])
    text = rf"\textbf{{{text}}}" if cell["best_published"] else text
    star = "$^{*}$" if cell["quoted"] else ""
    return rf"\published{{{text}{star}}}{escape_latex(cell['dagger'])}" if text else ""


def _multicolumns(row: list[Span], labels: int) -> tuple[list[str], str]:
    """Return one header level in LaTeX: its cells, long ones of one column in several lines, since what makes a table
    wide makes its print small; and the rules under those that span several columns."""
    cells, rules = [], []
    for span in row:
        lines = textwrap.wrap(span.text, 12, break_long_words=False, break_on_hyphens=False)
        words = r" \\ ".join(map(escape_latex, lines))
        stacked = f"\\shortstack{{\\strut {words}}}" if len(lines) > 1 else words
        text = stacked if span.width == 1 else escape_latex(span.text)
        cells.append(f"\\multicolumn{{{span.width}}}{{c}}{{{text}}}")
        if span.width > 1 and span.text:
            rules.append(f"\\cmidrule(lr){{{span.start + labels + 1}-{span.start + labels + span.width}}}")
    return cells, " ".join(rules)


def escape_latex(text: object) -> str:
    """Return text in which nothing is a command, in characters that a stock pdflatex prints; others are ``U+XXXX``."""
    return "".join(_LATEX.get(char) or _latex_char(char) for char in unicodedata.normalize("NFC", str(text)))


def _latex_char(char: str) -> str:
    if char.isascii():
        return char if char.isprintable() else " "
    if found := re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)", unicodedata.name(char, "")):
        name = found[2].lower().replace("lamda", "lambda")
        if found[1] == "SMALL" or name in _CAPITALS:
            return f"$\\{name if found[1] == 'SMALL' else name.capitalize()}$"
    return char if char.isalpha() and char < "\u0180" else f"\\texttt{{U+{ord(char):04X}}}"


def details(studies: Iterable[Study]) -> Markup:
    """Return what a click on a cell opens, as an expression for a script, in which nothing can end the script.

    These are ``runs``, facts by id, and ``tables`` by the study's key: the command that makes it, its cells in rows.
    """
    runs, tables = dict[str, Facts](), {}
    for study in studies:
        table, layout = study.table, study.results.layout
        for run in study.results.runs.values():
            known = [(name, text_of(run.facts[fact])) for fact, name in _DETAILS.items() if fact in run.facts]
            known += [(f"metric {name}", format_value(value, table.decimals)) for name, value in run.values.items()]
            stage = f"{shard_path(run.resolved.federation_id)}:{train_stage(run.resolved)}"
            command = [("command", f"dvc repro {KEPT_STAGES if run.kept else stage}")]
            own = command if table.profile == PAPER else []  # others have a workspace where nobody works
            runs[run.id] = [("run", run.id), *known, *own, *settings_of(run.resolved).items()]
        tables[study.key] = {
            "command": f"pfl run {table.spec}{'' if table.profile == PAPER else f' --profile {table.profile}'}",
            "cells": [
                [
                    _opened(study, layout.cell(at, column), text)
                    for column, text in zip(layout.columns, row["cells"], strict=True)
                ]
                for at, row in zip(layout.rows, study.rows, strict=True)
            ],
        }
    text = json.dumps({"runs": runs, "tables": tables}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(re.sub("[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text))


def _opened(study: Study, cell: Cell | None, text: dict[str, Any]) -> dict[str, Any] | None:
    if cell is None:
        return None
    layout, runs = study.results.layout, [study.results.runs[run] for run in cell.runs]
    key = cell.quantity.key if cell.quantity else study.table.metric
    facts = {
        "client": "" if cell.client is None else f"{cell.client}, counted from 0",
        "obtained": "not run yet" if text["obtained"] == NO_VALUE else text["obtained"],
        "runs in it": text["partial"],
        "after the last round": text["last"],
        "published": text["published"] + (" (quoted by the paper from an earlier one)" if cell.quoted else ""),
        "difference": text["compared"] if text["sort"][2] else "",
        "note": cell.note,
        "no run": "none is planned" if text["dagger"] else "",
    }
    values = [format_value(run.values_of(cell.client).get(key), study.table.decimals) for run in runs]
    outcomes = [
        (run.id, f"seed {run.resolved.seed}: " + ("diverged" if run.diverged else value or "not run yet"))
        for run, value in zip(runs, values, strict=True)
    ]
    title = (*cell.key(layout.row_axes), layout.column_title(cell.key(layout.column_axes)))
    known = [(name, value) for name, value in facts.items() if value]
    return {"title": " · ".join(filter(None, title)), "facts": known, "runs": outcomes}
