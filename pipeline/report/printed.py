"""The text of labels, numbers and cells in reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.report.cells import WITHOUT_VALUE, Cell
from pipeline.report.frame import Value
from pipeline.report.statistics import NO_VERDICT
from pipeline.spec.metrics import BYTES, COUNT, PERCENT

MINUS, NO_VALUE, MISPRINT, UNPLANNED, TIED, SEPARATOR = "\N{MINUS SIGN}", "—", "§", "†", "‡", "/"
"""Marks in tables; the legend explains them."""


def full_label(axis: str, label: str) -> str:
    """Return a label that is clear without its axis: a number becomes ``clients = 50``."""
    try:
        float(label)
    except ValueError:
        return label
    return f"{axis_title(axis)} = {label}"


def join_labels(axes: Iterable[str], labels: Iterable[str]) -> str:
    """Return labels as one line."""
    return " · ".join(map(full_label, axes, labels))


def axis_title(axis: str) -> str:
    """Return ``mlp dim`` for ``backbone.mlp_dim``; ``partition.seed`` keeps its prefix, as runs have a seed too."""
    if axis == "partition.seed":
        return "partition seed"
    return axis.rpartition(".")[2].replace("_", " ")


def format_value(value: Value | None, decimals: int) -> str:
    """Return ``90.31±0.26``, ``90.31`` without a deviation; for quantities ``45.18 K`` or ``45.60 MB``; "" for None."""
    if value is None:
        return ""
    if value.printed:
        return value.printed
    mean = _scaled(value.mean, decimals, value.unit)
    return mean if value.std is None else f"{mean}±{_scaled(value.std, decimals, value.unit)}"


def format_difference(difference: float, decimals: int, unit: str = PERCENT) -> str:
    """Return ``+0.80`` or ``−0.80``; for a quantity ``+0.26 K``."""
    return (MINUS if difference < 0 else "+") + _scaled(abs(difference), decimals, unit)


def format_rank(rank: float) -> str:
    """Return a rank as ``2`` or ``2.5``; a mean of ranks has at most two decimals."""
    return f"{rank:.2f}".rstrip("0").rstrip(".")


def _scaled(number: float, decimals: int, unit: str) -> str:
    """Return a number as text: counts and bytes in thousands, millions, …, and without decimals below a thousand."""
    if unit not in (COUNT, BYTES):
        return f"{number:.{decimals}f}"
    scale = next((power for power in (12, 9, 6, 3) if round(number / 10**power, decimals) >= 1), 0)
    prefix = {0: "", 3: "k" if unit == BYTES else "K", 6: "M", 9: "G", 12: "T"}[scale]
    digits = f"{number / 10**scale:,.{decimals if scale else 0}f}"
    return f"{digits} {prefix}{BYTES if unit == BYTES else ''}".rstrip()


@dataclass(frozen=True)
class PrintedCell:
    """A printed cell; missing parts are "".

    Attributes:
        tied, dagger: The marks :data:`TIED` and :data:`UNPLANNED`.
        partial: ``2/3`` if 2 of 3 runs are done.
        last: The value after the last round, if `obtained` is the mean of the last measurements.
        comparison: ``+1.53 beyond noise (0.90)``: difference, verdict, and how far the two may differ by chance.
        sort: The obtained mean, the published one and the difference, as numbers to sort by.
    """

    obtained: str = ""
    published: str = ""
    quoted: bool = False
    best_obtained: bool = False
    best_published: bool = False
    verdict: str = ""
    tied: str = ""
    dagger: str = ""
    partial: str = ""
    last: str = ""
    comparison: str = ""
    sort: tuple[str, str, str] = ("", "", "")

    @property
    def suffix(self) -> str:
        """The text after the obtained value: the value after the last round, and how many of the runs are done."""
        last = f" {SEPARATOR} {self.last}" if self.last else ""
        return f"{last} [{self.partial}]" if self.partial else last


def print_cell(cell: Cell | None, decimals: int) -> PrintedCell:
    """Return a printed cell, an empty one for None."""
    if cell is None:
        return PrintedCell()
    obtained, comparison = format_value(cell.obtained, decimals), []
    if not obtained and cell.runs:
        obtained = cell.verdict if cell.verdict in WITHOUT_VALUE else NO_VALUE
    difference = cell.difference if cell.is_comparable else None
    if difference is not None:
        unit = cell.quantity.unit if cell.quantity else PERCENT
        comparison = [format_difference(difference, decimals, unit)]
        comparison += [cell.verdict] if cell.verdict != NO_VERDICT else []
        comparison += [] if cell.noise is None else [f"({_scaled(cell.noise, decimals, unit)})"]
    means = (value.mean if value else None for value in (cell.obtained, cell.published))
    numbers = ["" if number is None else f"{number:.6g}" for number in (*means, difference)]
    return PrintedCell(
        obtained=obtained,
        published=cell.misprint + MISPRINT if cell.misprint else format_value(cell.published, decimals),
        quoted=cell.quoted,
        best_obtained=cell.best_obtained,
        best_published=cell.best_published,
        verdict=cell.verdict,
        tied=TIED if cell.tied else "",
        dagger=UNPLANNED if cell.published and not cell.runs else "",
        partial=f"{cell.n}/{len(cell.runs)}" if cell.obtained and not cell.complete else "",
        last=format_value(cell.last, decimals),
        comparison=" ".join(comparison),
        sort=(numbers[0], numbers[1], numbers[2]),
    )
