"""Curves of runs that are being trained: a line per measurement in ``.pfl/live``, gone when the run has ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_BLOCKS = "▁▂▃▄▅▆▇█"

Curve = list[tuple[int, float]]
"""Round and pooled accuracy in percent."""


class LiveCurve:
    """The file of one run. A run that goes on from a checkpoint goes on with its curve."""

    def __init__(self, run: str, private: Path) -> None:
        self.path = private / "live" / f"{run}.csv"
        self.known: Curve | None = None

    def add(self, round_: int, accuracy: float) -> None:
        """What was measured after a round. What the file has of this round or later ones was lost with a kill."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.known is None:
            self.known = [point for point in _read(self.path) if point[0] < round_]
            self.path.write_text("".join(map(_line, self.known)), encoding="utf-8")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line((round_, accuracy)))

    def end(self) -> None:
        """The run has ended, and its artifact has the whole."""
        self.path.unlink(missing_ok=True)


def live_curves(private: Path) -> dict[str, Curve]:
    """The curves of all runs that are being trained, or were when they were interrupted, by their ids."""
    curves = {}
    for path in sorted((private / "live").glob("*.csv")):
        if curve := _read(path):
            curves[path.stem] = curve
    return curves


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """A curve as a line of text, from its lowest value to its highest; "" for none."""
    if not values:
        return ""
    count = min(width, len(values))
    chosen = [values[round(place * (len(values) - 1) / max(count - 1, 1))] for place in range(count)]
    low, high = min(chosen), max(chosen)
    steps = [(value - low) / (high - low) if high > low else 0.0 for value in chosen]
    return "".join(_BLOCKS[round(step * (len(_BLOCKS) - 1))] for step in steps)


def _line(point: tuple[int, float]) -> str:
    return f"{point[0]},{point[1]:.4f}\n"


def _read(path: Path) -> Curve:
    """As far as it can be read: another process may be in the middle of a line, or take it away."""
    curve: Curve = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        return curve
    for line in lines:
        round_, comma, accuracy = line.strip().partition(",")
        try:
            if comma and line.endswith("\n"):
                curve.append((int(round_), float(accuracy)))
        except ValueError:
            continue
    return curve
