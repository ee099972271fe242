"""Published numbers with what was obtained for them: how far they are apart, and whether that is within their noise."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pflcore.artifacts import read_table
from pflcore.protocols import curve
from pipeline.report.figures.protocols import NAMES
from pipeline.report.table.cells import Cell
from pipeline.report.table.measured import Measured
from pipeline.report.table.printed import format_value, signed
from pipeline.report.table.results import Results
from pipeline.spec.table import ResolvedTable

LAST = 10
"""Measurements at the end of a run from which its fluctuation is taken."""

SEEDS = 3
"""From how many seeds on their spread is the noise of what is obtained."""

WITHIN, BEYOND, UNKNOWN = "within noise", "beyond noise", "no noise known"

RULE = (
    "Noise is twice the root of the sum of two variances. One is the square of the paper's ±, where it prints one; the "
    f"other is taken over our seeds where there are {SEEDS} or more, else over the last {LAST} measurements of a run, "
    "which tells how much a number depends on the round and not on the seed."
)


@dataclass(frozen=True)
class Obtained:
    """A published accuracy and what was obtained for it, in percent and percentage points.

    Attributes:
        spec: Where the cell is.
        labels: Of the cell, in the order in which ``--cell`` takes them.
        runs: How many there are, of how many that are planned.
        quoted: The paper has the value from an earlier one.
        noise: By how much both may differ by chance, see :data:`RULE`; None where nothing tells.
        elsewhere: The number under other protocols, by their names; ``last ten`` is that of the last measurements.
        explained: Why they differ; "" where nobody knows, or where they do not.
        ids: Of the runs that the number is made of.
        reached: The first measured round in which a run is at the published number or above, the mean over runs; None
            where one of them never is.
    """

    spec: str
    labels: tuple[str, ...]
    published: str
    obtained: str
    difference: float
    noise: float | None
    runs: tuple[int, int]
    quoted: bool
    elsewhere: Mapping[str, float]
    explained: str
    ids: tuple[str, ...]
    reached: int | None = None

    @property
    def verdict(self) -> str:
        """:data:`WITHIN`, :data:`BEYOND` or :data:`UNKNOWN`."""
        if self.noise is None:
            return UNKNOWN
        return WITHIN if abs(self.difference) <= self.noise else BEYOND

    @property
    def signed(self) -> str:
        return signed(self.difference, 2)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Obtained:
        """From its attributes as JSON has them."""
        done, planned = data["runs"]
        lists = {name: tuple(data[name]) for name in ("labels", "ids")}
        return cls(**{**data, **lists, "runs": (int(done), int(planned))})


def collect_obtained(results: Results) -> list[Obtained]:
    """The cells of a table that have both values, in its order; quantities other than accuracy are left out.

    Raises:
        UserError: An artifact is damaged.
    """
    return [_obtained(cell, results) for cell in obtained_cells(results)]


def obtained_cells(results: Results) -> list[Cell]:
    """The cells of a table whose accuracy is published and obtained, in its order."""
    return [cell for cell in results.cells if cell.published and cell.obtained and cell.quantity is None]


def count_published(table: ResolvedTable) -> int:
    """How many accuracies are published of a table, whether a run is planned for them or not."""
    return sum(
        cell.published is not None and cell.published.mean is not None and cell.quantity is None for cell in table.cells
    )


def _obtained(cell: Cell, results: Results) -> Obtained:
    assert cell.obtained and cell.published and cell.difference is not None
    runs = [run for run in (results.runs[name] for name in cell.runs) if run.values_of(cell.client)]
    decimals = results.table.decimals
    curves = [accuracies(run, cell.client) for run in runs]
    elsewhere, spread = _elsewhere(runs, [list(curve.values()) for curve in curves], cell.client, results.table.metric)
    return Obtained(
        spec=results.table.spec,
        labels=tuple(cell.labels.values()),
        published=format_value(cell.published, decimals),
        obtained=format_value(cell.obtained, decimals),
        difference=round(cell.difference, 6),
        noise=_noise(cell.published.std, list(cell.by_seed.values()), spread),
        runs=(cell.n, len(cell.runs)),
        quoted=cell.quoted,
        elsewhere=elsewhere,
        explained=cell.explained,
        ids=tuple(run.id for run in runs),
        reached=_reached(curves, cell.published.mean),
    )


def _noise(published: float | None, by_seed: list[float], spread: float | None) -> float | None:
    own = statistics.stdev(by_seed) if len(by_seed) >= SEEDS else spread
    known = [one for one in (published, own) if one is not None]
    return round(2.0 * math.hypot(*known), 6) if known else None


def _elsewhere(
    runs: list[Measured], curves: list[list[float]], client: int | None, metric: str
) -> tuple[dict[str, float], float | None]:
    """The mean over runs under other protocols than the table's; and how much the last measurements of a run spread.

    Args:
        curves: Of each run its accuracies in percent.
        client: The one whose test samples count; None for all clients.
    """
    found: dict[str, list[float]] = {}
    for run, accuracy in zip(runs, curves, strict=True):
        figures = {name: value.mean for name, value in run.values_of(client).items()}
        figures |= {"best_by_test": max(accuracy), "last ten": statistics.fmean(accuracy[-LAST:])}
        for name in (*NAMES, "last ten"):
            if name in figures and name not in (metric, "last_position"):
                found.setdefault(NAMES.get(name, name), []).append(figures[name])
    means = {name: round(statistics.fmean(several), 6) for name, several in found.items() if len(several) == len(runs)}
    spreads = [statistics.stdev(accuracy[-LAST:]) for accuracy in curves if len(accuracy) > 1]
    return means, statistics.fmean(spreads) if spreads else None


def _reached(curves: list[dict[int, float]], published: float) -> int | None:
    firsts = [next((at for at, accuracy in curve.items() if accuracy >= published), None) for curve in curves]
    known = [first for first in firsts if first is not None]
    return round(statistics.fmean(known)) if known and len(known) == len(firsts) else None


def accuracies(run: Measured, client: int | None) -> dict[int, float]:
    """The accuracy of a run in percent by measured round: pooled, or of one client."""
    if client is not None:
        own = run.clients[client].curve
        return dict(zip(own.index.tolist(), own.tolist(), strict=True))
    rounds, accuracy, _ = curve(read_table(run.rounds_path, "rounds/2")[0])
    return dict(zip(rounds.tolist(), accuracy.tolist(), strict=True))


def in_words(several: Sequence[Obtained]) -> str:
    """``24 obtained: 10 within noise, 14 beyond noise, of which 12 are explained``; "none obtained" for none."""
    counts = Counter(one.verdict for one in several)
    words = [f"{counts[verdict]} {verdict}" for verdict in (WITHIN, BEYOND, UNKNOWN) if counts[verdict]]
    if beyond := [one for one in several if one.verdict == BEYOND]:
        explained = sum(bool(one.explained) for one in beyond)
        place = words.index(f"{len(beyond)} {BEYOND}")
        words[place] += f", of which {explained} {'is' if explained == 1 else 'are'} explained"
    return f"{len(several)} obtained: {'; '.join(words)}" if words else "none obtained"
