"""Pages in Markdown, LaTeX and HTML: their content, their templates, and how these print tables and cells."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from pflcore import sources
from pipeline.report.agreement import AGREEMENT_LEGEND
from pipeline.report.cells import DIVERGED, Cell
from pipeline.report.drawing.sections import PlainTable, Section, counted, drop_constant_columns
from pipeline.report.formats import aligned, escape_latex, escape_markdown, inline_svg, sized_svg, without_repeats
from pipeline.report.frame import Measured
from pipeline.report.printed import NO_VALUE, PrintedCell, format_value
from pipeline.report.settings import text_of
from pipeline.report.spec_report import CLAIM_STATES, STATES, SpecReport, banner_of
from pipeline.spec.metrics import QUANTITIES
from pipeline.spec.table import train_stage
from pipeline.workspace import KEPT_STAGES, PAPER, shard_path

# Read with the code, not when they are needed: a stage checks that code and templates did not change in between.
_TEMPLATES = {path.name: sources.read(path) for path in sorted(Path(__file__).parent.glob("templates/*.j2"))}
_ANGLED = {  # for LaTeX, which uses braces itself
    "block_start_string": "<%",
    "block_end_string": "%>",
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
}
_PROVENANCE = (
    "Hashes are the first digits of SHA-256. Bytes are what one sampled client sends to (up) and receives from (down) "
    "the server in a round. Durations are not part of this report, which is the same for every repetition; they are in "
)
_LABELS = {"data": "dataset_hash", "partition": "partition_hash", "code": "code", "device": "device", "torch": "torch"}
_NUMBERS = {"parameters": "parameters", "bytes up": "communicated_up", "bytes down": "communicated_down"}
_DETAILS = {
    "device": "device",
    "torch": "torch",
    "data (SHA-256)": "dataset_hash",
    "partition (SHA-256)": "partition_hash",
    **_NUMBERS,
    "numbers a client keeps": "stored",
    "multiply-adds per sample and step": "macs",
    "code": "code",
    "diverged": "diverged",
}


@dataclass(frozen=True)
class Document:
    """The content of a page on one spec, on a paper, or with sections of its `own`.

    Attributes:
        tables: All tables of a paper, also those that have pages of their own; empty for other pages.
        uncovered: A line for each part of the paper without a spec, with the reason.
        up: The path from the HTML page to ``reports/papers/``; home: address and title of the paper's page.
        here: Index of the table, on a page for one of several tables; the title is the table's heading.
    """

    title: str
    profile: str
    reports: list[SpecReport] = field(default_factory=list)
    timings: str = ".pfl/timings/"
    source: str = ""
    citation: str = ""
    tables: list[SpecReport] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    up: str = ""
    here: int | None = None
    home: tuple[str, str] = ("", "")
    own: list[Section] = field(default_factory=list)

    @property
    def parts(self) -> list[Section]:
        """The sections before the reports of specs."""
        lists = {"Not covered": self.uncovered, "Notes on all tables": self.notes}
        found = [Section(title=title, items=[(line, "") for line in lines]) for title, lines in lists.items() if lines]
        return [*found, *self.own]

    @property
    def provenance(self) -> Section:
        """A row of facts per run with results, and the facts that all of these share; hashes are cut to 12 digits."""
        runs = {run.id: run for report in self.reports for run in report.results.runs.values() if run.made}
        labels = {**_LABELS, **({"kept since": "kept"} if any(run.kept for run in runs.values()) else {})}
        shown = (*labels.values(), *_NUMBERS.values())
        rows = [(name, *(_fact(run.facts.get(fact), fact) for fact in shown)) for name, run in sorted(runs.items())]
        table, same = drop_constant_columns(PlainTable(("run", *labels, *_NUMBERS), rows, labels=1 + len(labels)))
        text = f"The same for all runs: {same}." if same else "" if rows else "No run is there yet."
        folded, note = f"Provenance of {counted(len(rows), 'run')}", f"{_PROVENANCE}{self.timings} of the workspace."
        own = table if rows else None
        return Section(text, table=own, name="provenance", title="Provenance", folded=folded, note=note)

    @property
    def overview(self) -> PlainTable:
        """A row per table, and one for all tables, with numbers of cells and of claims by state."""
        rows = [(one.heading, one.coverage, one.verdicts) for one in self.tables]
        if len(rows) > 1:
            every = sum((cells for _, cells, _ in rows), Counter[str]())
            rows.append(("all", every, sum((claims for *_, claims in rows), Counter[str]())))
        printed = [
            (
                *(heading, str(cells.total()), *(str(cells[state]) for state in STATES)),
                ", ".join(f"{claims[name]} {name}" for name in CLAIM_STATES if claims[name]),
            )
            for heading, cells, claims in rows
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
    """Return a rendered template in Markdown, with tables that are also legible as plain text."""
    text = _MARKDOWN.get_template(template).render(**context)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def latex(template: str, **context: Any) -> str:
    """Return a rendered LaTeX template (angled delimiters) for plain pdflatex; signs that it lacks are U+XXXX."""
    text = _LATEX.get_template(template).render(**context)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def html(template: str, **context: Any) -> str:
    """Return a rendered HTML template. The filters `inline` and `sized` do not escape drawings, which are ours."""
    return _HTML.get_template(template).render(**context)


def _environment(filters: dict[str, Any], **options: Any) -> Environment:
    """Return what compiles a template once."""
    options |= dict.fromkeys(("trim_blocks", "lstrip_blocks", "keep_trailing_newline"), True)
    environment = Environment(loader=DictLoader(_TEMPLATES), undefined=StrictUndefined, **options)
    environment.filters |= filters
    environment.globals |= _HELPERS
    return environment


def _results(report: SpecReport) -> str:
    """Return the table of results in Markdown: a row per level of headers, then the rows of values with ranks."""
    lines, headers = [], report.results.headers
    for level, spans in enumerate(headers):
        cells = [""] * len(headers[-1])
        for span in spans:
            text = escape_markdown(span.text)
            cells[span.start] = f"*{text}*" if level and text else text
        lines.append([*(escape_markdown(axis) if level == 0 else "" for axis in report.row_axes), *cells])
    for labels, row in zip(without_repeats([row.labels for row in report.rows]), report.rows, strict=True):
        ranks = (escape_markdown(rank) for rank, _ in row.ranks)
        lines.append([*map(escape_markdown, labels), *map(_markdown_cell, row.cells), *ranks])
    return aligned(lines, len(report.row_axes))


def _numbers(table: PlainTable) -> str:
    labels = without_repeats([row[: table.labels] for row in table.rows])
    rows = [(*own, *row[table.labels :]) for own, row in zip(labels, table.rows, strict=True)]
    return aligned([[escape_markdown(cell) for cell in row] for row in (table.header, *rows)], table.labels)


def _markdown_cell(cell: PrintedCell) -> str:
    text = f"**{cell.obtained}**" if cell.best_obtained else cell.obtained + cell.tied
    text += escape_markdown(cell.more)
    if cell.published:
        published = f"**{cell.published}**" if cell.best_published else cell.published
        star = "\\*" if cell.quoted else ""
        text += f" ({published}{star})"
    return text.strip() + cell.dagger


def _latex_row(labels: Sequence[str], cells: Sequence[str] = ()) -> str:
    return " & ".join([*map(escape_latex, labels), *cells]) + r" \\"


def _latex_results(report: SpecReport) -> str:
    """Return the rows of a table in LaTeX: headers, then a line of obtained and a line of published values per row.

    A long header of a single column is split into lines, because a wide table is printed small.
    """
    lines, axes, blank = list[str](), report.row_axes, [""] * len(report.row_axes)
    for level, spans in enumerate(report.results.headers):
        cells, rules = [], []
        for span in spans:
            words = textwrap.wrap(span.text, 12, break_long_words=False, break_on_hyphens=False)
            stacked = r"\shortstack{\strut " + r" \\ ".join(map(escape_latex, words)) + "}"
            text = stacked if span.width == 1 and len(words) > 1 else escape_latex(span.text)
            cells.append(f"\\multicolumn{{{span.width}}}{{c}}{{{text}}}")
            if span.width > 1 and span.text:
                start = span.start + len(axes)
                rules.append(f"\\cmidrule(lr){{{start + 1}-{start + span.width}}}")
        lines += [_latex_row(blank if level else axes, cells), *([" ".join(rules)] if rules else [])]
    lines.append(r"\midrule")
    labels = without_repeats([row.labels for row in report.rows])
    for at, (own, row) in enumerate(zip(labels, report.rows, strict=True)):
        obtained = [_latex_obtained(cell) for cell in row.cells]
        if report.has_published and at:
            lines.append(r"\addlinespace[3pt]")
        if any(obtained) or not report.has_published:
            lines.append(_latex_row(own, obtained + [escape_latex(rank) for rank, _ in row.ranks]))
        if report.has_published:
            published = [_latex_published(cell) for cell in row.cells] + [""] * len(row.ranks)
            lines.append(_latex_row(blank if any(obtained) else own, published))
    return "\n".join(lines)


def _latex_obtained(cell: PrintedCell) -> str:
    text = escape_latex(cell.obtained + cell.tied)
    more = cell.more if cell.published else cell.more + cell.dagger
    return (rf"\textbf{{{text}}}" if cell.best_obtained else text) + escape_latex(more)


def _latex_published(cell: PrintedCell) -> str:
    if not cell.published:
        return ""
    text = escape_latex(cell.published)
    text = rf"\textbf{{{text}}}" if cell.best_published else text
    star = "$^{*}$" if cell.quoted else ""
    return rf"\published{{{text}{star}}}{escape_latex(cell.dagger)}"


def details(reports: Iterable[SpecReport]) -> Markup:
    """Return the data that a click on a cell shows, as an expression for a script that nothing in it can end.

    ``runs`` has facts by run id; ``tables`` has, by the report's key, the table's command and its cells in rows.
    """
    runs, tables = dict[str, list[tuple[str, str]]](), {}
    for report in reports:
        table, results = report.table, report.results
        for run in results.runs.values():
            known = [("run", run.id)]
            known += [(name, text_of(run.facts[fact])) for name, fact in _DETAILS.items() if fact in run.facts]
            known += [(f"metric {name}", _of_run(run, name, None, table.decimals)) for name in run.values]
            if table.profile == PAPER:  # other profiles have a workspace of their own
                stage = f"{shard_path(run.resolved.federation_id)}:{train_stage(run.resolved)}"
                known.append(("command", f"dvc repro {KEPT_STAGES if run.kept else stage}"))
            runs[run.id] = [*known, *run.settings.items()]
        cells = [
            [
                _opened(report, results.cell(row.labels, column), text)
                for column, text in zip(results.columns, row.cells, strict=True)
            ]
            for row in report.rows
        ]
        profile = "" if table.profile == PAPER else f" --profile {table.profile}"
        tables[report.key] = {"command": f"pfl run {table.spec}{profile}", "cells": cells}
    text = json.dumps({"runs": runs, "tables": tables}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(re.sub("[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text))


def _opened(report: SpecReport, cell: Cell | None, text: PrintedCell) -> dict[str, Any] | None:
    if cell is None:
        return None
    table, key = report.table, cell.quantity.key if cell.quantity else report.table.metric
    facts = {
        "client": "" if cell.client is None else f"{cell.client}, counted from 0",
        "obtained": "not run yet" if text.obtained == NO_VALUE else text.obtained,
        "runs in it": text.partial,
        "after the last round": text.last,
        "published": text.published + (" (quoted by the paper from an earlier one)" if cell.quoted else ""),
        "difference": text.comparison if text.sort[2] else "",
        "note": cell.note,
        "no run": "none is planned" if text.dagger else "",
    }
    outcomes = []
    for run in (report.results.runs[run] for run in cell.runs):
        value = _of_run(run, key, cell.client, table.decimals)
        without = DIVERGED if run.diverged else NO_VALUE if run.made else "not run yet"
        outcomes.append((run.id, f"seed {run.resolved.seed}: {value or without}"))
    title = (*cell.key(table.rows), report.results.column_title(cell.key(table.columns)))
    known = [(name, value) for name, value in facts.items() if value]
    return {"title": " · ".join(filter(None, title)), "facts": known, "runs": outcomes}


def _of_run(run: Measured, key: str, client: int | None, decimals: int) -> str:
    """Return a run's value of a metric or a quantity in its unit; "" if it has none."""
    value, kind = run.values_of(client).get(key), QUANTITIES.get(key.split(" ")[0])
    return format_value(replace(value, unit=kind.unit) if value and kind else value, decimals)


_HELPERS = {"states": STATES, "claim_states": CLAIM_STATES, "agreement_legend": AGREEMENT_LEGEND, "data": details}
_HELPERS |= {"without_repeats": without_repeats, "banner_of": banner_of, "mark_of": mark_of}
_OF_LATEX = {"tex": escape_latex, "results": _latex_results, "row": _latex_row}
_OF_LATEX |= {"breakable": lambda text: re.sub(r"([-/.])", r"\1\\allowbreak{}", text)}
_OF_HTML = {"inline": inline_svg, "sized": sized_svg, "name": lambda verdict: re.sub("[: ]+", "-", verdict)}
_MARKDOWN = _environment({"md": escape_markdown, "results": _results, "numbers": _numbers})
_LATEX = _environment(_OF_LATEX, **_ANGLED)
_HTML = _environment(_OF_HTML, autoescape=True)
