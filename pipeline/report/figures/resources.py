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
_FLOAT32 = 4  # bytes
_HEADS = {
    "model": "model",
    "stored": "stored",
    "kept": "kept",
    "up": "sent up",
    "down": "sent down",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
    "macs": "multiply-adds",
    "relative": "relative",
    "server": "server",
}
_IN_DATA = ["model", "stored", "kept", "bytes_up", "bytes_down", "macs", "server", "relative"]


def draw(data: TableData) -> Section:
    """Print a line per row and, where they differ, the columns that have the same costs; without a table while no run
    has been made. Costs are means over the runs of a cell."""
    runs = data.runs
    if runs.empty:
        return Section("No run has been made yet.")
    axes = data.axes(runs)
    cell = [*axes, "panel"]
    costs = runs.astype(dict.fromkeys(COSTS, float)).groupby(cell, observed=True)[[*COSTS]].mean().round()
    costs["stored"] = costs["kept"] + costs["received"]
    for way in ("up", "down"):
        costs[way] = (costs[f"bytes_{way}"] / _FLOAT32).round()
    compared = runs.groupby(cell, observed=True).head(1).set_index(cell, drop=False).apply(_compared, axis=1, runs=runs)
    costs = costs.join(compared)
    costs["relative"] = costs["macs"] / costs["of"]
    counts = [name for name in _HEADS if name != "relative"]
    printed = costs[counts].map(lambda count: NO_VALUE if pd.isna(count) else f"{int(count):,}")
    ratios = costs["relative"].map("{:.2f}".format) + costs["star"].map({True: "*", False: ""})
    printed["relative"] = ratios.where(costs["relative"].notna(), NO_VALUE)
    table = _merged(printed[[*_HEADS]].rename(columns=_HEADS).reset_index(), data)
    lines = costs[_IN_DATA].astype(dict.fromkeys(_IN_DATA[:-1], "Int64")).reset_index()
    return Section(_TEXT, table=table, data=lines[[*axes, *_IN_DATA]])


def _merged(printed: pd.DataFrame, data: TableData) -> PlainTable:
    """Make one line of the columns of a row that have the same costs."""
    rows = [axis for axis in data.rows if axis in printed]
    columns = printed["panel"].cat.categories
    same = printed.groupby([*rows, *_HEADS.values()], observed=True, sort=False)["panel"].agg(list).reset_index()
    names = ["all" if len(own) == len(columns) else "; ".join(own) for own in same.pop("panel")]
    same.insert(len(rows), head := heading(data.columns), names)
    same = same.sort_values(rows, kind="stable") if rows else same
    if (same[head] == "all").all():
        return PlainTable.of(same.drop(columns=head), rows)
    return PlainTable.of(same, rows, head)


def _compared(run: pd.Series, runs: pd.DataFrame) -> pd.Series:
    """Return the multiply-adds that those of a run are compared with, in its column: of FedAvg or of the cheapest
    method on the same backbone; and whether it is the latter."""
    rivals = runs[(runs["panel"] == run["panel"]) & (runs["macs"].fillna(0) > 0)].drop_duplicates("run")
    chosen = closest(run, rivals[rivals["method"] == "fedavg"])
    if chosen is not None:
        return pd.Series({"of": rivals.set_index("run").loc[chosen, "macs"], "star": False})
    return pd.Series({"of": rivals[rivals["backbone"] == run["backbone"]]["macs"].min(), "star": True})
