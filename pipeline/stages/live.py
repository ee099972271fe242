"""Curves of runs that are being trained: a line per measurement in ``.pfl/live``, gone when the run has ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_BLOCKS = "▁▂▃▄▅▆▇█"

Curve = list[tuple[int, float]]
"""Round and pooled accuracy in percent."""


class LiveCurve:
    """The file of one run. A run that goes on from a checkpoint goes on with its curve."""

    def __init__(self, run: str, private: Path) -> None:
        self.path = private / "live" / f"{run}.csv"
        self.points: Curve | None = None

    def add(self, round_: int, accuracy: float) -> None:
        """Add what was measured after a round. What the file has of this round or later ones was lost with a kill."""
        if self.points is None:
            self.points = [point for point in _read(self.path) if point[0] < round_]
        self.points.append((round_, accuracy))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(f"{at},{one:.4f}\n" for at, one in self.points), encoding="utf-8")

    def end(self) -> None:
        """Remove the file, as the run has ended and its artifact has the whole."""
        self.path.unlink(missing_ok=True)


def live_curves(private: Path) -> dict[str, Curve]:
    """Return the curves of all runs that are being trained, or were when they were interrupted, by their ids."""
    curves = {path.stem: _read(path) for path in sorted((private / "live").glob("*.csv"))}
    return {run: curve for run, curve in curves.items() if curve}


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Return a curve as a line of text, from its lowest value to its highest; "" for none."""
    if not values:
        return ""
    count = min(width, len(values))
    chosen = [values[round(place * (len(values) - 1) / max(count - 1, 1))] for place in range(count)]
    low, high = min(chosen), max(chosen)
    steps = [(value - low) / (high - low) if high > low else 0.0 for value in chosen]
    return "".join(_BLOCKS[round(step * (len(_BLOCKS) - 1))] for step in steps)


def _read(path: Path) -> Curve:
    """As far as it can be read: another process may be in the middle of a line, or take it away."""
    curve: Curve = []
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            round_, _, accuracy = line.partition(",")
            if line.endswith("\n"):
                curve.append((int(round_), float(accuracy)))
    return curve
