"""What is seen of one quantity all along, and what is told of it: its first tenth against its last."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from pipeline.report.drawing.sections import Picture, figure_style

MIB = 2**20


@dataclass
class Grown:
    """What was seen of one quantity: where in the work, and how much per unit there.

    Attributes:
        limit: The ratio of the last tenth to the first that is still no growth.
        mean: Whether a tenth is told by its mean: of what happens now and then, medians say nothing.
    """

    name: str
    limit: float
    mean: bool = False
    at: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)

    def add(self, at: float, seen: float) -> None:
        self.at.append(at)
        self.seen.append(seen)

    def ends(self) -> tuple[float, float]:
        """Of the first and of the last tenth."""
        some = max(len(self.seen) // 10, 1)
        of = statistics.mean if self.mean else statistics.median
        return of(self.seen[:some]), of(self.seen[-some:])

    @property
    def ratio(self) -> float:
        first, last = self.ends()
        return last / first if first else float(last > 0) + 1.0


def computed(process: int) -> float:
    """Seconds of a core that a process has computed, without its children."""
    facts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int | str = "self") -> float:
    """MiB that are resident."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def tell(part: str, results: Sequence[Grown]) -> bool:
    """Print the table of a part; whether nothing grew beyond its limit."""
    print(f"\n| {part} | samples | first tenth | last tenth | ratio | at most |\n|---|---:|---:|---:|---:|---:|")
    for one in results:
        first, last = one.ends()
        cells = [len(one.seen), f"{first:.3g}", f"{last:.3g}", f"{one.ratio:.2f}", f"{one.limit:g}"]
        print(f"| {one.name} | {' | '.join(map(str, cells))} |", flush=True)
    return all(one.ratio <= one.limit for one in results)


def picture(unit: str, results: Sequence[Grown]) -> str:
    """A panel per quantity, from zero."""

    columns = min(len(results), 4)
    rows = -(-len(results) // columns)
    with figure_style():
        figure = Figure(figsize=(2.6 * columns, 2.1 * rows), layout="constrained")
        for place, one in enumerate(results, start=1):
            axes = figure.add_subplot(rows, columns, place)
            step = max(len(one.at) // 200, 1)
            axes.plot(one.at[::step], one.seen[::step], color="#0072B2", linewidth=1)
            axes.set_ylim(0, 1.2 * max(one.seen))
            axes.locator_params(nbins=4)
            axes.set_title(one.name, fontsize=8)
            axes.set_xlabel(unit)
        return Picture(figure, unit).svg
