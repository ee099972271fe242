"""What a paper holds: its tables and figures and further statements, and which specs are about them.

A paper's folder of specs may have a file ``contents.csv`` with the columns place, holds, specs (names, apart by blanks)
and reason, which says why there is no spec.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.published import csv_lines

CONTENTS = "contents.csv"
_COLUMNS = ["place", "holds", "specs", "reason"]

PLACES = {"done": "done", "partly": "partly done", "missing": "not run yet", "unplanned": "no spec"}
"""States of a table or figure of a paper, in order, and their names in print."""


@dataclass(frozen=True)
class Place:
    """A table, a figure or a statement of a paper.

    Attributes:
        where: ``Table 6``, or the section of a statement.
        holds: What it shows, or states.
        specs: The specs that are about it.
        reason: Why there are none.
    """

    where: str
    holds: str
    specs: tuple[str, ...]
    reason: str = ""

    @property
    def shows_results(self) -> bool:
        """Whether it is a table or a figure, not a statement."""
        return self.where.startswith(("Table", "Figure"))

    @property
    def words(self) -> str:
        """``Table 6, detection mAP: there is no detector``."""
        return f"{self.where}, {self.holds}: {self.reason}"


def read_contents(folder: Path, paper: str, known: Collection[str]) -> list[Place]:
    """What the paper of a folder of specs holds; [] where no file says it.

    Args:
        known: The names of the paper's specs within the folder, as ``table1``.

    Raises:
        UserError: A line is not whole, or names no spec of the paper.
    """
    path = folder / paper / CONTENTS
    if not path.is_file():
        return []
    label, places = f"specs/{paper}/{CONTENTS}", []
    lines = csv_lines(path, label)
    if next(lines, ("", []))[1] != _COLUMNS:
        raise UserError(f"{label}:1: the columns are {', '.join(_COLUMNS)}")
    for where, cells in lines:
        if len(cells) != len(_COLUMNS) or not (cells[0] and cells[1]):
            raise UserError(f"{where}: a line has a place, what it holds, specs and, without these, a reason")
        place = Place(cells[0], cells[1], tuple(cells[2].split()), cells[3])
        if bool(place.specs) == bool(place.reason):
            raise UserError(f"{where}: either specs are about {place.where}, or there is a reason why none is")
        for name in place.specs:
            if name not in known:
                raise UserError(f"{where}: {name!r} is no spec of this paper{did_you_mean(name, list(known))}")
        places.append(place)
    return places


def cover_places(places: Iterable[Place], by_spec: Mapping[str, Counter[str]]) -> Counter[str]:
    """Count the tables and figures by state, given the cells of each compiled spec by state.

    Of specs that a profile leaves out nothing is known, so they are not run yet.
    """
    shown = [place for place in places if place.shows_results]
    return Counter(_state([by_spec.get(spec, Counter(missing=1)) for spec in place.specs]) for place in shown)


def _state(specs: list[Counter[str]]) -> str:
    if not specs:
        return "unplanned"
    cells = sum(specs, Counter[str]())
    if not cells["missing"] + cells["partly"] + cells["diverged"]:
        return "done"
    return "partly" if cells["done"] + cells["partly"] + cells["diverged"] else "missing"
