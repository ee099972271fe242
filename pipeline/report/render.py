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
from pipeline.report.drawing.sections import PlainTable, Section, drop_constant_columns, pluralize
from pipeline.report.formats import escape_latex, escape_markdown, inline_svg, md_table, sized_svg, without_repeats
from pipeline.report.frame import RunResult
from pipeline.report.printed import NO_VALUE, PrintedCell, format_value
from pipeline.report.settings import text_of
from pipeline.report.spec_report import CLAIM_STATES, STATES, SpecReport, profile_banner
from pipeline.spec.metrics import QUANTITIES
from pipeline.spec.table import train_stage
from pipeline.workspace import KEPT_STAGES, PAPER, shard_path

# Read with the code, not when they are needed: a stage checks that code and templates did not change in between.
_TEMPLATES = {path.name: sources.read(path) for path in sorted(Path(__file__).parent.glob("templates/*.j2"))}
_LATEX_DELIMITERS = {  # not braces, which LaTeX uses itself
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
    """The content of a page: reports of specs, and other sections before them.

    Attributes:
        tables: All tables of a paper, also those on other pages; empty for other pages.
        uncovered: A line for each part of the paper without a spec, with the reason.
        up: The path from the HTML page to ``reports/papers/``; home: address and title of the paper's page.
        index: Index of the table, on a page for one of several tables; the title is the table's heading.
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
    index: int | None = None
    home: tuple[str, str] = ("", "")
    sections: list[Section] = field(default_factory=list)

    @property
    def parts(self) -> list[Section]:
        """The sections before the reports of specs."""
        lists = {"Not covered": self.uncovered, "Notes on all tables": self.notes}
        parts = [Section(title=title, items=[(line, "") for line in lines]) for title, lines in lists.items() if lines]
        return [*parts, *self.sections]

    @property
    def provenance(self) -> Section:
        """A row of facts per run with results, and the facts that all of them share; hashes are cut to 12 digits."""
        runs = {run.id: run for report in self.reports for run in report.results.runs.values() if run.finished}
        labels = {**_LABELS}
        if any(run.kept_since for run in runs.values()):
            labels["kept since"] = "kept"
        names = (*labels.values(), *_NUMBERS.values())
        rows = [(id_, *(_print_fact(run.facts.get(name), name) for name in names)) for id_, run in sorted(runs.items())]
        table, constant = drop_constant_columns(PlainTable(("run", *labels, *_NUMBERS), rows, labels=1 + len(labels)))
        text = f"The same for all runs: {constant}." if constant else "" if rows else "No run is there yet."
        folded, note = f"Provenance of {pluralize(len(rows), 'run')}", f"{_PROVENANCE}{self.timings} of the workspace."
        shown = table if rows else None
        return Section(text, table=shown, name="provenance", title="Provenance", folded=folded, note=note)

    @property
    def overview(self) -> PlainTable:
        """A row per table, and one for all tables, with numbers of cells and of claims by state."""
        counts = [(report.heading, report.coverage, report.verdicts) for report in self.tables]
        if len(counts) > 1:
            cells, claims = (sum(column, Counter[str]()) for column in list(zip(*counts, strict=True))[1:])
            counts.append(("all", cells, claims))
        rows = []
        for heading, cells, claims in counts:
            states = ", ".join(f"{claims[name]} {name}" for name in CLAIM_STATES if claims[name])
            rows.append((heading, str(cells.total()), *(str(cells[state]) for state in STATES), states))
        return PlainTable(("", "cells", *STATES.values(), "claims"), rows, labels=1)


def _print_fact(value: Any, name: str) -> str:
    if value is None:
        return NO_VALUE
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)[:12] if "hash" in name else str(value)


def profile_mark(profile: str) -> str:
    """Return a mark for titles, ``SMOKE PROFILE``; "" for the profile ``paper``."""
    return "" if profile == PAPER else f"{profile.upper()} PROFILE"


def markdown(template: str, **context: Any) -> str:
    """Return a rendered Markdown template."""
    text = _MARKDOWN.get_template(template).render(**context)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def latex(template: str, **context: Any) -> str:
    """Return a rendered LaTeX template for plain pdflatex; characters that it lacks are U+XXXX."""
    text = _LATEX.get_template(template).render(**context)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def html(template: str, **context: Any) -> str:
    """Return a rendered HTML template. The filters `inline` and `sized` do not escape drawings of ours."""
    return _HTML.get_template(template).render(**context)


def _environment(filters: dict[str, Any], **options: Any) -> Environment:
    """Return an environment, which compiles each template once."""
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
        axes = [""] * len(report.row_axes) if level else map(escape_markdown, report.row_axes)
        lines.append([*axes, *cells])
    for labels, row in zip(without_repeats([row.labels for row in report.rows]), report.rows, strict=True):
        ranks = (escape_markdown(rank) for rank, _ in row.ranks)
        lines.append([*map(escape_markdown, labels), *map(_markdown_cell, row.cells), *ranks])
    return md_table(lines, len(report.row_axes))


def _numbers(table: PlainTable) -> str:
    labels = without_repeats([row[: table.labels] for row in table.rows])
    rows = [(*row_labels, *row[table.labels :]) for row_labels, row in zip(labels, table.rows, strict=True)]
    return md_table([[escape_markdown(cell) for cell in row] for row in (table.header, *rows)], table.labels)


def _markdown_cell(cell: PrintedCell) -> str:
    text = f"**{cell.obtained}**" if cell.best_obtained else cell.obtained + cell.tied
    text += escape_markdown(cell.suffix)
    if cell.published:
        published = f"**{cell.published}**" if cell.best_published else cell.published
        star = "\\*" if cell.quoted else ""
        text += f" ({published}{star})"
    return text.strip() + cell.dagger


def _latex_row(labels: Sequence[str], cells: Sequence[str] = ()) -> str:
    return " & ".join([*map(escape_latex, labels), *cells]) + r" \\"


def _latex_results(report: SpecReport) -> str:
    """Return the rows of a table in LaTeX: headers, then a line of obtained and a line of published values per row.
    Long headers of single columns are split into lines, because a wide table is printed small."""
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
    for i, (row_labels, row) in enumerate(zip(labels, report.rows, strict=True)):
        obtained = [_latex_obtained(cell) for cell in row.cells]
        if report.has_published and i:
            lines.append(r"\addlinespace[3pt]")
        if any(obtained) or not report.has_published:
            lines.append(_latex_row(row_labels, obtained + [escape_latex(rank) for rank, _ in row.ranks]))
        if report.has_published:
            published = [_latex_published(cell) for cell in row.cells] + [""] * len(row.ranks)
            lines.append(_latex_row(blank if any(obtained) else row_labels, published))
    return "\n".join(lines)


def _latex_obtained(cell: PrintedCell) -> str:
    text = escape_latex(cell.obtained + cell.tied)
    suffix = cell.suffix if cell.published else cell.suffix + cell.dagger
    return (rf"\textbf{{{text}}}" if cell.best_obtained else text) + escape_latex(suffix)


def _latex_published(cell: PrintedCell) -> str:
    if not cell.published:
        return ""
    text = escape_latex(cell.published)
    text = rf"\textbf{{{text}}}" if cell.best_published else text
    star = "$^{*}$" if cell.quoted else ""
    return rf"\published{{{text}{star}}}{escape_latex(cell.dagger)}"


def details(reports: Iterable[SpecReport]) -> Markup:
    """Return the data that a click on a cell shows, as an expression that cannot end the script around it.

    ``runs`` has facts by run id; ``tables`` has, by the report's key, the table's command and its cells in rows.
    """
    runs, tables = dict[str, list[tuple[str, str]]](), {}
    for report in reports:
        table, results = report.table, report.results
        for run in results.runs.values():
            facts = [("run", run.id)]
            facts += [(name, text_of(run.facts[fact])) for name, fact in _DETAILS.items() if fact in run.facts]
            facts += [(f"metric {name}", _print_value(run, name, None, table.decimals)) for name in run.values()]
            if table.profile == PAPER:  # other profiles have a workspace of their own
                stage = f"{shard_path(run.resolved.federation_id)}:{train_stage(run.resolved)}"
                facts.append(("command", f"dvc repro {KEPT_STAGES if run.kept_since else stage}"))
            runs[run.id] = [*facts, *run.settings.items()]
        cells = []
        for row in report.rows:
            pairs = zip(results.columns, row.cells, strict=True)
            cells.append([_cell_details(report, results.cell(row.labels, column), text) for column, text in pairs])
        profile = "" if table.profile == PAPER else f" --profile {table.profile}"
        tables[report.key] = {"command": f"pfl run {table.spec}{profile}", "cells": cells}
    text = json.dumps({"runs": runs, "tables": tables}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text))


def _cell_details(report: SpecReport, cell: Cell | None, text: PrintedCell) -> dict[str, Any] | None:
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
        placeholder = DIVERGED if run.diverged else NO_VALUE if run.finished else "not run yet"
        value = _print_value(run, key, cell.client, table.decimals) or placeholder
        outcomes.append((run.id, f"seed {run.resolved.seed}: {value}"))
    title = (*cell.key(table.rows), report.results.column_title(cell.key(table.columns)))
    present = [(name, value) for name, value in facts.items() if value]
    return {"title": " · ".join(filter(None, title)), "facts": present, "runs": outcomes}


def _print_value(run: RunResult, key: str, client: int | None, decimals: int) -> str:
    """Return a run's value of a metric or a quantity in its unit; "" if it has none."""
    value, kind = run.values(client).get(key), QUANTITIES.get(key.split(" ")[0])
    return format_value(replace(value, unit=kind.unit) if value and kind else value, decimals)


_HELPERS = {"states": STATES, "claim_states": CLAIM_STATES, "agreement_legend": AGREEMENT_LEGEND, "data": details}
_HELPERS |= {"without_repeats": without_repeats, "profile_banner": profile_banner, "profile_mark": profile_mark}
_LATEX_FILTERS = {"tex": escape_latex, "results": _latex_results, "row": _latex_row}
_LATEX_FILTERS |= {"breakable": lambda text: re.sub(r"([-/.])", r"\1\\allowbreak{}", text)}
_HTML_FILTERS = {"inline": inline_svg, "sized": sized_svg, "name": lambda verdict: re.sub("[: ]+", "-", verdict)}
_MARKDOWN = _environment({"md": escape_markdown, "results": _results, "numbers": _numbers})
_LATEX = _environment(_LATEX_FILTERS, **_LATEX_DELIMITERS)
_HTML = _environment(_HTML_FILTERS, autoescape=True)
