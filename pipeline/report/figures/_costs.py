"""Costs of a table's runs: resources of each method, and trials for the choice of settings."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from pipeline.report.drawing.sections import PlainTable, Section, drop_constant_columns
from pipeline.report.figures._data import COSTS, TableData, match_runs
from pipeline.report.printed import NO_VALUE, axis_title

_RESOURCES = (
    "Counts of numbers, but for the bytes. Model: parameters of the backbone. Stored: what a client holds during a "
    "round, kept and received; kept: between its rounds. Sent: by and to one sampled client in a round. Multiply-adds:"
    " of one local step, forward and backward, per sample. Server: parameters that it holds. Relative: multiply-adds "
    "against FedAvg on the same backbone; with a star, where there is no FedAvg, against the cheapest method."
)
_PRINTED = ["model", "stored", "kept", "sent up", "sent down", "bytes_up", "bytes_down", "macs", "relative", "server"]
_CSV_COLUMNS = ["model", "stored", "kept", "bytes_up", "bytes_down", "macs", "server", "relative"]
_TUNING = (
    "Values chosen before the runs of the table were trained, by accuracy on validation samples, under other seeds. "
    "Tried: how many combinations, of how many; rounds: of all trials, and how many times the rounds of one run that "
    "is; validation: accuracy (%) of the chosen trial, and the range over all. *: at the edge of what there was to "
    "choose from, so a wider choice might do better."
)


def draw_resources(data: TableData) -> Section:
    """Print a line per row and, if columns differ, per group of columns with equal costs; only a sentence without runs.
    Costs are means over the runs of a cell. Durations are left out, because they are not reproducible."""
    runs = data.runs.astype(dict.fromkeys(COSTS, float))
    if runs.empty:
        return Section("No run has been made yet.")
    axes = data.axes(runs)
    rivals = runs[runs["macs"] > 0]
    cheapest = rivals.groupby(["panel", "backbone"], observed=True)["macs"].min().rename("cheapest")
    runs = runs.join(cheapest, on=["panel", "backbone"])
    runs["base"] = match_runs(runs, rivals[rivals["method"] == "fedavg"], "panel")["macs"]
    runs["star"] = runs["base"].isna().map({True: "*", False: ""})
    runs["base"] = runs["base"].fillna(runs["cheapest"])
    cells = runs.groupby([*axes, "panel"], observed=True)
    costs = cells[[*COSTS]].mean().round()
    costs["stored"] = costs["kept"] + costs["received"]
    costs["sent up"], costs["sent down"] = (costs["bytes_up"] / 4).round(), (costs["bytes_down"] / 4).round()
    printed = costs.map(lambda count: NO_VALUE if pd.isna(count) else f"{int(count):,}")
    costs["relative"] = costs["macs"] / cells["base"].mean()
    ratios = costs["relative"].map("{:.2f}".format) + cells["star"].first()
    printed["relative"] = ratios.where(costs["relative"].notna(), NO_VALUE)
    lines = costs[_CSV_COLUMNS].astype(dict.fromkeys(_CSV_COLUMNS[:-1], "Int64")).reset_index()
    table = _merge_columns(printed[_PRINTED].reset_index(), data)
    return Section(_RESOURCES, table=table, data=lines[[*axes, *_CSV_COLUMNS]])


def _merge_columns(printed: pd.DataFrame, data: TableData) -> PlainTable:
    """Return a table with one line for the columns of a row that have the same costs."""
    rows, count = [axis for axis in data.rows if axis in printed], len(printed["panel"].cat.categories)
    merged = printed.groupby([*rows, *_PRINTED], observed=True, sort=False)["panel"].agg(list).reset_index()
    merged = merged.rename(columns={"bytes_up": "bytes up", "bytes_down": "bytes down", "macs": "multiply-adds"})
    name, panels = " · ".join(map(axis_title, data.columns)), merged.pop("panel")
    if name in merged:
        name += " (axis)"
    merged.insert(len(rows), name, ["all" if len(titles) == count else "; ".join(titles) for titles in panels])
    if rows:
        merged = merged.sort_values(rows, kind="stable")
    if (merged[name] == "all").all():
        return PlainTable.of(merged.drop(columns=name), rows)
    return PlainTable.of(merged, rows, name)


def draw_tuning(data: TableData) -> Section:
    """Print the selection of each cell; only a sentence before a selection. CSV: a line per trial and seed."""
    cells = data.selections
    if cells.empty:
        return Section("Nothing has been chosen yet.")
    axes, spaces = data.axes(cells), dict[str, dict[str, None]]()
    for selection in cells["selection"]:
        for option, values in selection["space"].items():
            spaces.setdefault(option, {})[", ".join(map(_to_text, values))] = None
    common = {option: next(iter(values)) for option, values in spaces.items() if len(values) == 1}
    lines, trials = [], []
    for selection, rounds in cells[["selection", "rounds"]].itertuples(index=False):
        chosen = {option: _print_chosen(selection, option, option not in common) for option in spaces}
        lines.append(chosen | _cost(selection, rounds))
    table = PlainTable.of(pd.concat([cells[axes], pd.DataFrame(lines, cells.index)], axis=1), axes)
    table, constant = drop_constant_columns(table, keep=table.labels + len(spaces))
    text = _TUNING
    if common:
        text += f" To choose from: {'; '.join(f'{option} {values}' for option, values in common.items())}."
    if constant:
        text += f" In every line: {constant}."
    for cell in cells[[*axes, "selection"]].to_dict("records"):
        selection = cell.pop("selection")
        for trial in selection["trials"]:
            line = cell | {option: json.dumps(value) for option, value in trial["chosen"].items()}
            chosen = trial["chosen"] == selection["chosen"]
            for run, accuracy in zip(trial["runs"], trial["accuracies"], strict=True):
                trials.append(line | {"run": run, "validation_accuracy": accuracy, "chosen": chosen})
    return Section(text, table=table, data=pd.DataFrame(trials))


def _cost(selection: dict[str, Any], rounds: int) -> dict[str, str]:
    trials = selection["trials"]
    means = [trial["mean"] for trial in trials if trial["mean"] is not None]
    best = next(trial["mean"] for trial in trials if trial["chosen"] == selection["chosen"])
    diverged = f", {len(trials) - len(means)} diverged" if len(means) < len(trials) else ""
    return {
        "tried": f"{len(trials)} of {selection['size']}{diverged}",
        "rounds": f"{selection['rounds']:,} ({selection['rounds'] / rounds:.1f}×)",
        "validation": f"{best:.2f} ({min(means):.2f} to {max(means):.2f})" if means else NO_VALUE,
    }


def _print_chosen(selection: dict[str, Any], option: str, with_space: bool) -> str:
    """Return the chosen value as text, if wanted with the values to choose from."""
    if option not in selection["space"]:
        return ""
    value, values = selection["chosen"][option], selection["space"][option]
    space = f" of {', '.join(map(_to_text, values))}" if with_space else ""
    return f"{_to_text(value)}{'*' if at_edge(value, values) else ''}{space}"


def at_edge(value: Any, values: list[Any]) -> bool:
    """Return whether a value is the smallest or largest of several numbers to choose from."""
    numeric = all(isinstance(number, int | float) and not isinstance(number, bool) for number in values)
    return numeric and len(values) > 1 and value in (min(values), max(values))


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
