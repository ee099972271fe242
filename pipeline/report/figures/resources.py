"""Resources: what each method stores, sends and computes, as the runs' metadata says; no times, which do not repeat.

Costs that differ between columns (a head for 100 classes is larger than one for 10) give a row several lines.
"""

from __future__ import annotations

import pandas as pd

from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section
from pipeline.report.figures._data import COSTS, TableData, closest, heading

TITLE = "Resources"

_TEXT = (
    "All are counts of numbers, but for the bytes. Model: parameters of the backbone. Stored: what a client "
    "holds during a round, what it keeps between its rounds and what it receives; kept: the former alone. Sent up and "
    "down: by and to one sampled client in a round, in numbers of 4 bytes and in bytes. Multiply-adds: of one local "
    "step, forward and backward, per sample. Server: parameters that the server holds. Relative: multiply-adds against "
    "FedAvg on the same backbone; with a star, where there is no FedAvg, against the cheapest method."
)
_HEADS = {
    **{"model": "model", "stored": "stored", "kept": "kept", "up": "sent up", "down": "sent down"},
    **{"bytes_up": "bytes up", "bytes_down": "bytes down", "macs": "multiply-adds", "relative": "relative"},
    "server": "server",
}
_IN_DATA = ["model", "stored", "kept", "bytes_up", "bytes_down", "macs", "server", "relative"]


def draw(data: TableData) -> Section:
    """Print a line per row and, where they differ, the columns that have the same costs; without a table while no run
    has been made. Costs are means over the runs of a cell."""
    runs = data.runs.astype(dict.fromkeys(COSTS, float))
    if runs.empty:
        return Section("No run has been made yet.")
    axes = data.axes(runs)
    rivals = runs[runs["macs"] > 0]
    cheapest = rivals.groupby(["panel", "backbone"], observed=True)["macs"].min().rename("cheapest")
    runs = runs.join(cheapest, on=["panel", "backbone"])
    runs["of"] = closest(runs, rivals[rivals["method"] == "fedavg"], "panel")["macs"]
    runs["star"] = runs["of"].isna().map({True: "*", False: ""})
    runs["of"] = runs["of"].fillna(runs["cheapest"])
    cells = runs.groupby([*axes, "panel"], observed=True)
    costs = cells[[*COSTS]].mean().round()
    costs["stored"] = costs["kept"] + costs["received"]
    for way in ("up", "down"):
        costs[way] = (costs[f"bytes_{way}"] / 4).round()
    costs["relative"] = costs["macs"] / cells["of"].first()
    printed = costs[[name for name in _HEADS if name != "relative"]]
    printed = printed.map(lambda count: NO_VALUE if pd.isna(count) else f"{int(count):,}")
    ratios = costs["relative"].map("{:.2f}".format) + cells["star"].first()
    printed["relative"] = ratios.where(costs["relative"].notna(), NO_VALUE)
    lines = costs[_IN_DATA].astype(dict.fromkeys(_IN_DATA[:-1], "Int64")).reset_index()
    table = _merged(printed[[*_HEADS]].rename(columns=_HEADS).reset_index(), data)
    return Section(_TEXT, table=table, data=lines[[*axes, *_IN_DATA]])


def _merged(printed: pd.DataFrame, data: TableData) -> PlainTable:
    """Make one line of the columns of a row that have the same costs."""
    rows, every = [axis for axis in data.rows if axis in printed], len(printed["panel"].cat.categories)
    same = printed.groupby([*rows, *_HEADS.values()], observed=True, sort=False)["panel"].agg(list).reset_index()
    head, panels = heading(data.columns), same.pop("panel")
    same.insert(len(rows), head, ["all" if len(own) == every else "; ".join(own) for own in panels])
    same = same.sort_values(rows, kind="stable") if rows else same
    if (same[head] == "all").all():
        return PlainTable.of(same.drop(columns=head), rows)
    return PlainTable.of(same, rows, head)
