"""One spec with all that is known of it: what templates print of it, on its own report and on the page of its paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from pipeline.report.agreement import Agreement
from pipeline.report.claims import Judgement, judge_claims
from pipeline.report.claims_table import PrintedClaim, print_claim
from pipeline.report.coverage import claim_counts, cover
from pipeline.report.drawing.sections import PlainTable, Section, drop_constant_columns
from pipeline.report.figures import build_sections
from pipeline.report.legend import facts, legend
from pipeline.report.settings import confounded_settings
from pipeline.report.statistics import NO_VERDICT, WITHIN
from pipeline.report.table.cells import DIVERGED, TRIAL, VERDICTS, Cell
from pipeline.report.table.layout import Span, headed, short
from pipeline.report.table.printed import MISPRINT, NO_VALUE, TIED, UNPLANNED, format_value, printed_rank, signed
from pipeline.report.table.results import Measured, Results
from pipeline.spec.metrics import PERCENT
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import PAPER


@dataclass(frozen=True)
class Text:
    """A printed cell.

    Attributes:
        obtained: ``90.31±0.26``, a dash while missing, ``diverged``, or "" where no run is planned.
        published: ``90.31±0.26`` or "", with a mark where it is a misprint.
        tied: The mark of a value that cannot be told apart from the best of its column, or "".
        dagger: The mark of a published value for which no run is planned, or "".
        partial: ``2/3`` where 2 of 3 runs are done, or "".
        last: The same as `obtained` after the last round, where that is the mean over the last measurements; or "".
        compared: ``+1.53 beyond noise (0.90)``, which is by how much the two may differ by chance; without a verdict
            the difference alone.
        sort: Obtained mean, published mean and difference as numbers, for sorting; "" where there is none.
    """

    obtained: str = ""
    published: str = ""
    quoted: bool = False
    best_obtained: bool = False
    best_published: bool = False
    tied: str = ""
    dagger: str = ""
    partial: str = ""
    last: str = ""
    compared: str = ""
    verdict: str = ""
    sort: tuple[str, str, str] = ("", "", "")


@dataclass(frozen=True)
class Row:
    """One row of a table: its labels on the row axes, its cells in column order, and its ranks, each as printed and for
    sorting."""

    labels: tuple[str, ...]
    cells: list[Text]
    ranks: list[tuple[str, str]]


@dataclass(frozen=True)
class Study:
    """One spec with its results.

    Attributes:
        key: Its name in the page's scripts and drawings.
        folder: Where its pictures lie, relative to the page, with a slash.
        pages: Federation → the page of its partition without suffix, relative to the page; "" for none.
        href: Where it is on the pages of its paper, relative to the first of these: ``#table2``, ``fedtp/table2.html``.
        report: Where its own report lies, relative to the page; "" for none.
    """

    results: Results
    key: str = "table"
    folder: str = "figures/"
    pages: dict[str, str] = field(default_factory=dict)
    href: str = ""
    report: str = ""

    @property
    def table(self) -> ResolvedTable:
        return self.results.table

    @property
    def heading(self) -> str:
        """``Table II: FedTP against …``, or the title alone."""
        return heading(self.table)

    @property
    def anchor(self) -> str:
        """Its name in addresses."""
        return self.href.rpartition("/")[2].removeprefix("#").removesuffix(".html")

    @cached_property
    def judgements(self) -> list[Judgement]:
        return judge_claims(self.results)

    @cached_property
    def agreement(self) -> Agreement:
        return Agreement.of(self.results, self.judgements)

    @cached_property
    def coverage(self) -> Counter[str]:
        return cover(self.results.cells)

    @cached_property
    def verdicts(self) -> Counter[str]:
        return claim_counts(self.judgements)

    @cached_property
    def claims(self) -> list[PrintedClaim]:
        return [print_claim(judgement, self.table.decimals) for judgement in self.judgements]

    @cached_property
    def sections(self) -> list[Section]:
        return build_sections(self.results)

    @property
    def row_axes(self) -> list[str]:
        return [short(axis) for axis in self.results.layout.row_axes]

    @cached_property
    def rows(self) -> list[Row]:
        layout, derived = self.results.layout, self.results.derived()
        rows = []
        for row in layout.rows:
            ranks = [one.values.get((row, place)) for one in derived for place in range(len(one.groups))]
            printed = [(NO_VALUE, "") if rank is None else (printed_rank(rank), f"{rank:.6g}") for rank in ranks]
            texts = [_text(layout.cell(row, column), self.table.decimals) for column in layout.columns]
            rows.append(Row(row, texts, printed))
        return rows

    @cached_property
    def headers(self) -> list[list[Span]]:
        """The levels over cells and ranks, outer to inner; the last has a span for every column."""
        layout, derived = self.results.layout, self.results.derived()
        levels, start = [list(spans) for spans in layout.headers], len(layout.columns)
        if len(levels) == 1 and any(len(one.groups) > 1 for one in derived):
            levels.insert(0, [Span("", 0, start)])
        for one in derived:
            axes = [(at, axis) for at, axis in enumerate(layout.column_axes) if axis not in one.over]
            titles = [" · ".join(headed(axis, group[0][at]) for at, axis in axes) for group in one.groups]
            several, width = len(titles) > 1, len(titles)
            for level, spans in enumerate(levels[:-1]):
                spans.append(Span(one.title if level == 0 and several else "", start, width))
            levels[-1] += [Span(title if several else one.title, start + at, 1) for at, title in enumerate(titles)]
            start += width
        return levels

    @cached_property
    def has_published(self) -> bool:
        return any(cell.published for cell in self.results.cells)

    @cached_property
    def has_differences(self) -> bool:
        return any(map(_compared, self.results.cells))

    @cached_property
    def against(self) -> list[tuple[str, str]]:
        """What there is to say of published values, as name and value."""
        cells = [cell for cell in self.results.cells if cell.published]
        counts = {verdict: sum(cell.verdict == verdict for cell in cells) for verdict in VERDICTS}
        tally = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        return [("cells", tally), *self.agreement.numbers()] if cells else []

    @cached_property
    def legend(self) -> list[str]:
        return legend(self.results)

    @cached_property
    def facts(self) -> list[tuple[str, str]]:
        unplanned = [cell for cell in self.results.layout.cells if _unplanned(cell)]
        where = [("no run is planned", self.results.layout.whereabouts(unplanned))] if unplanned else []
        return [*facts(self.results), *where]

    @cached_property
    def confounded(self) -> PlainTable:
        rows = confounded_settings(self.table, {run.id: run.resolved for run in self.results.runs.values()})
        return PlainTable(("axis", "setting", "most", "others"), rows, labels=2)

    @cached_property
    def warning(self) -> str:
        """That runs which ask for the same data were not given the same, as may happen with raw files of one's own."""
        hashes: dict[str, set[str]] = {}
        for run in self.results.runs.values():
            for name, part in (("dataset", run.resolved.data_id), ("partition", run.resolved.federation_id)):
                if known := run.facts.get(f"{name}_hash"):
                    hashes.setdefault(part, set()).add(known)
        unlike = sorted(part for part, found in hashes.items() if len(found) > 1)
        words = f"NOT COMPARABLE: not all runs had the same data of {', '.join(unlike)} (see Provenance)."
        return words if unlike else ""

    @cached_property
    def notes(self) -> list[str]:
        """Those of the spec, of published values, and what is known of differences."""
        by_note: dict[str, list[Cell]] = {}
        for cell in self.results.cells:
            if cell.note:
                by_note.setdefault(cell.note, []).append(cell)
        for cell in self.results.cells:
            if cell.explained and _compared(cell) and cell.verdict != WITHIN:
                by_note.setdefault(f"obtained differs: {cell.explained}", []).append(cell)
        found = [f"{self.results.layout.whereabouts(cells)}: {note}" for note, cells in by_note.items()]
        return [*self.table.notes, *found]

    @property
    def partitions(self) -> list[tuple[str, str]]:
        """Each in words, and its page without suffix."""
        return [(one.words, self.pages.get(one.federation, "")) for one in self.table.partitions]


def heading(table: ResolvedTable) -> str:
    """Return ``Table II: FedTP against …``, or the title alone."""
    where = table.paper.table if table.paper else ""
    return f"{where}: {table.title}" if where else table.title


def banner(profile: str) -> str:
    """Return what stands over every page of a profile other than ``paper``."""
    words = (
        "SMOKE PROFILE: a trial of the machinery with shrunk models, a few rounds and stand-in data. "
        "These numbers say nothing about any method."
    )
    return "" if profile == PAPER else words


def provenance(runs: Iterable[Measured]) -> tuple[PlainTable, str]:
    """Return a row of facts per run that is there, and what is the same for all of them.

    A dash stands for what a run does not say; hashes are cut to 12 digits. With kept results there is one column more:
    since when.
    """
    made = [run for run in runs if run.made]
    kept = ("kept since",) if any(run.kept for run in made) else ()
    names = {
        "data": "dataset_hash",
        "partition": "partition_hash",
        "code": "code",
        "device": "device",
        "torch": "torch",
    }
    numbers = {"parameters": "parameters", "bytes up": "communicated_up", "bytes down": "communicated_down"}
    rows = [
        (
            run.id,
            *(str(run.facts.get(fact, NO_VALUE))[: 12 if fact.endswith("hash") else None] for fact in names.values()),
            *([run.kept or NO_VALUE] if kept else []),
            *(f"{run.facts[fact]:,}" if fact in run.facts else NO_VALUE for fact in numbers.values()),
        )
        for run in made
    ]
    header = ("run", *names, *kept, *numbers)
    return drop_constant_columns(PlainTable(header, rows, labels=1 + len(names) + len(kept)))


def _text(cell: Cell | None, decimals: int) -> Text:
    if cell is None:
        return Text()
    placeholder = "" if not cell.runs else DIVERGED if cell.verdict == DIVERGED else NO_VALUE
    difference, unit = cell.difference if _compared(cell) else None, cell.quantity.unit if cell.quantity else PERCENT
    numbers = (cell.obtained and cell.obtained.mean, cell.published and cell.published.mean, difference)
    obtained_sort, published_sort, difference_sort = ("" if x is None else f"{x:.6g}" for x in numbers)
    words = [cell.verdict] if cell.verdict != NO_VERDICT else []
    words += [] if cell.noise is None else [f"({cell.noise:.{decimals}f})"]
    return Text(
        obtained=format_value(cell.obtained, decimals) or placeholder,
        published=cell.misprint + MISPRINT if cell.misprint else format_value(cell.published, decimals),
        quoted=cell.quoted,
        best_obtained=cell.best_obtained,
        best_published=cell.best_published,
        tied=TIED if cell.tied else "",
        dagger=UNPLANNED if _unplanned(cell) else "",
        partial=f"{cell.n}/{len(cell.runs)}" if cell.obtained and not cell.complete else "",
        last=format_value(cell.last, decimals),
        compared=" ".join([*([] if difference is None else [signed(difference, decimals, unit)]), *words]),
        verdict=cell.verdict,
        sort=(obtained_sort, published_sort, difference_sort),
    )


def _compared(cell: Cell) -> bool:
    """Return whether it says something how far a cell is from its published value."""
    return cell.difference is not None and cell.verdict != TRIAL


def _unplanned(cell: Cell) -> bool:
    return bool(cell.published and not cell.runs)
