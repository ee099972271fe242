"""Tuning: what was tried before the runs of a table were trained, what was chosen, and what that cost."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section, drop_constant_columns
from pipeline.report.figures._data import TableData

TITLE = "Tuning"

_TEXT = (
    "Values chosen before the runs of the table were trained, by accuracy on validation samples, which clients neither "
    "train on nor are tested on, under other seeds. Tried: how many combinations, of how many; rounds: of all these "
    "trials, and how many times the rounds of one run that is; validation: accuracy (%) of the chosen trial, and the "
    "range over all trials. *: at the edge of what there was to choose from, so a wider choice might do better."
)
Selection = dict[str, Any]


def draw(data: TableData) -> Section:
    """Print the selection of each cell; no table while nothing has been chosen. CSV: a line per trial and seed."""
    cells = data.selections
    if cells.empty:
        return Section("Nothing has been chosen yet.")
    axes = data.axes(cells)
    spaces: dict[str, dict[str, None]] = {}
    for selection in cells["selection"]:
        for option, values in selection["space"].items():
            spaces.setdefault(option, {})[", ".join(map(_word, values))] = None
    same = {option: next(iter(several)) for option, several in spaces.items() if len(several) == 1}
    lines = [
        {option: _value(one, option, option not in same) for option in spaces} | _cost(one, rounds)
        for one, rounds in cells[["selection", "rounds"]].itertuples(index=False)
    ]
    table = PlainTable.of(pd.concat([cells[axes], pd.DataFrame(lines, cells.index)], axis=1), axes)
    table, constant = drop_constant_columns(table, keep=table.labels + len(spaces))
    choice = "; ".join(f"{option} {values}" for option, values in same.items())
    text = (
        _TEXT + (f" To choose from: {choice}." if same else "") + (f" In every line: {constant}." if constant else "")
    )
    trials = [
        cell | {option: json.dumps(value) for option, value in trial["chosen"].items()}
        | {"run": run, "validation_accuracy": accuracy, "chosen": trial["chosen"] == cell["selection"]["chosen"]}
        for cell in cells[[*axes, "selection"]].to_dict("records")
        for trial in cell["selection"]["trials"]
        for run, accuracy in zip(trial["runs"], trial["accuracies"], strict=True)
    ]  # fmt: skip
    return Section(text, table=table, data=pd.DataFrame(trials).drop(columns="selection"))


def _cost(selection: Selection, rounds: int) -> dict[str, str]:
    trials = selection["trials"]
    means = [trial["mean"] for trial in trials if trial["mean"] is not None]
    best = next(trial["mean"] for trial in trials if trial["chosen"] == selection["chosen"])
    diverged = f", {len(trials) - len(means)} diverged" if len(means) < len(trials) else ""
    return {
        "tried": f"{len(trials)} of {selection['size']}{diverged}",
        "rounds": f"{selection['rounds']:,} ({selection['rounds'] / rounds:.1f}×)",
        "validation": f"{best:.2f} ({min(means):.2f} to {max(means):.2f})" if means else NO_VALUE,
    }


def _value(selection: Selection, option: str, differs: bool) -> str:
    """Print the chosen value; with what there was to choose from, where that is not the same in all cells."""
    if option not in selection["space"]:
        return ""
    value, values = selection["chosen"][option], selection["space"][option]
    among = f" of {', '.join(map(_word, values))}" if differs else ""
    return f"{_word(value)}{'*' if at_edge(value, values) else ''}{among}"


def at_edge(value: Any, values: list[Any]) -> bool:
    """Return whether a number is the smallest or largest of those that there were to choose from."""
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    return len(numbers) == len(values) > 1 and value in (min(numbers), max(numbers))


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
