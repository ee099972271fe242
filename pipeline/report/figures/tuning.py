"""Tuning: what was tried before the runs of a table were trained, what was chosen, and what that cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pflcore.errors import UserError
from pflcore.json_text import parse_json
from pipeline.report.drawing.sections import NO_VALUE, OfCell, Section, all_points, line_per_cell, told_once
from pipeline.report.table.results import Results

TITLE = "Tuning"

_HOW = (
    "Values chosen before the runs of the table were trained, by accuracy on validation samples, which clients neither "
    "train on nor are tested on, under other seeds."
)
_COLUMNS = {
    "tried": "how many combinations, of how many",
    "rounds": "of all these trials, and how many times the rounds of one run that is",
    "validation": "accuracy (%) of the chosen trial, and the range over all trials",
}
_EDGE = " *: at the edge of what there was to choose from, so a wider choice might do better."

Spaces = dict[str, list[str]]
"""What there was to choose from, by option; several where cells differ."""


@dataclass(frozen=True)
class Chosen(OfCell):
    """The selection of a cell."""

    selection: Mapping[str, Any]
    rounds_of_a_run: int


def draw(results: Results) -> Section:
    """The section; without a table while nothing has been chosen.

    Raises:
        UserError: What a select stage wrote is damaged.
    """
    results = results.of_runs
    shown = []
    for row, column in results.layout.places:
        cell = results.layout.cell(row, column)
        runs = cell.runs if cell else ()
        for name in sorted({results.table.tuned[run] for run in runs if run in results.table.tuned}):
            if name in results.selections:
                selection = _read(name, results.selections[name])
                rounds = results.runs[runs[0]].resolved.training.rounds
                shown.append(Chosen(row, column, _points(selection), selection, rounds))
    if not shown:
        return Section("Nothing has been chosen yet.")
    spaces = _spaces(shown)
    table = line_per_cell(results.layout, shown, (*spaces, *_COLUMNS), lambda one: _line(one, spaces))
    starred = any("*" in cell for row in table.rows for cell in row[table.labels :][: len(spaces)])
    table, alike = told_once(table, stay=table.labels + len(spaces))
    return Section(
        f"{_HOW} {_explained(spaces, alike)}{_EDGE if starred else ''}",
        table=table,
        data=all_points(results.layout, shown),
    )


def _spaces(shown: list[Chosen]) -> Spaces:
    spaces: Spaces = {}
    for one in shown:
        for option, values in one.selection["space"].items():
            known = spaces.setdefault(option, [])
            known += [words for words in [", ".join(map(_word, values))] if words not in known]
    return spaces


def _explained(spaces: Spaces, alike: str) -> str:
    choices = "; ".join(f"{option} {several[0]}" for option, several in spaces.items() if len(several) == 1)
    words = [f"To choose from: {choices}."] if choices else []
    words += [f"In every line: {alike}."] if alike else []
    told = "; ".join(f"{name}: {meaning}" for name, meaning in _COLUMNS.items())
    return " ".join([*words, f"{told[0].upper()}{told[1:]}."])


def _read(name: str, content: str) -> dict[str, Any]:
    try:
        selection: dict[str, Any] = parse_json(content)
        kinds = {"space": dict, "size": int, "rounds": int, "trials": list, "chosen": dict}
        if not all(isinstance(selection[key], kind) for key, kind in kinds.items()):
            raise TypeError("types")
    except (ValueError, KeyError, TypeError) as error:
        what = type(error).__name__
        raise UserError(f"{name}.json: not what a select stage writes ({what}); delete it and run again") from None
    return selection


def _points(selection: Mapping[str, Any]) -> pd.DataFrame:
    """A line per trial and seed."""
    return pd.DataFrame(
        [
            {
                **{name: json.dumps(value) for name, value in trial["chosen"].items()},
                "run": run,
                "validation_accuracy": accuracy,
                "chosen": trial["chosen"] == selection["chosen"],
            }
            for trial in selection["trials"]
            for run, accuracy in zip(trial["runs"], trial["accuracies"], strict=True)
        ]
    )


def _line(one: Chosen, spaces: Spaces) -> tuple[str, ...]:
    selection, space = one.selection, one.selection["space"]
    means = [trial["mean"] for trial in selection["trials"] if trial["mean"] is not None]
    best = next(trial["mean"] for trial in selection["trials"] if trial["chosen"] == selection["chosen"])
    diverged = len(selection["trials"]) - len(means)
    return (
        *(_value(one, option, several) if option in space else "" for option, several in spaces.items()),
        f"{len(selection['trials'])} of {selection['size']}" + (f", {diverged} diverged" if diverged else ""),
        f"{selection['rounds']:,} ({selection['rounds'] / one.rounds_of_a_run:.1f}×)",
        f"{best:.2f} ({min(means):.2f} to {max(means):.2f})" if means else NO_VALUE,
    )


def _value(one: Chosen, option: str, several: list[str]) -> str:
    """The chosen value; with what there was to choose from, where that is not the same in all cells."""
    value, values = one.selection["chosen"][option], one.selection["space"][option]
    among = f" of {', '.join(map(_word, values))}" if len(several) > 1 else ""
    return f"{_word(value)}{'*' if at_edge(value, values) else ''}{among}"


def at_edge(value: Any, values: list[Any]) -> bool:
    """Whether a number is the smallest or largest of those that there were to choose from."""
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    return len(numbers) == len(values) > 1 and value in (min(numbers), max(numbers))


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
