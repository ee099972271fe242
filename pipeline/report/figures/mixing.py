"""How hybrid local attention mixes its kinds: learned weights for each position in the network (pFedLA-Att).

Of all clients together; where the table has cells of single clients, client by client, as in the paper's table.
"""

from __future__ import annotations

import pandas as pd

from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section
from pipeline.report.figures._data import TableData

_TEXT = (
    "The weights that clients give to the kinds of attention at each position in the network; those of a position sum "
    "to one. Mean and population standard deviation over the clients of all runs of a cell."
)
_BY_CLIENT = (
    "The weights that each client gives to the kinds of attention at each position in the network, and their mean over "
    "positions; those of a position sum to one. Mean over the runs of a cell, and population standard deviation where "
    "there are several."
)
_AVERAGE = "average"


def draw(data: TableData) -> Section:
    """Print a line per cell and position and a column per kind of attention, or, of single clients, a line per cell,
    client and kind and a column per position. CSV: client, position, kind, mean, std, and of how many values.

    Items are called ``<position>.<kind>``.
    """
    found = data.findings("mixing")
    axes, by_client = data.axes(found), bool(data.table.clients)
    names = found["item"].str.rpartition(".")
    found = found.assign(position=names[0], kind=names[2])
    lines, columns, count = ("kind", "position", "runs") if by_client else ("position", "kind", "clients")
    labels = ["client", lines] if by_client else [lines]
    if by_client:
        average = found.groupby([*axes, "run", "client", "kind"], observed=True, sort=False)["value"].mean()
        found = pd.concat([found, average.reset_index().assign(position=_AVERAGE)])
        labels_of = {client: label for of in data.table.clients.values() for label, client in of.items()}
        names_of = {client: labels_of.get(client, f"client {client}") for client in sorted(found["client"].unique())}
        found["client"] = pd.Categorical(
            found["client"].map(names_of), list(dict.fromkeys(names_of.values())), ordered=True
        )
    for name in ("position", "kind"):
        found[name] = pd.Categorical(found[name], found[name].unique(), ordered=True)
    place = [*axes, *labels, columns]
    weights = found.groupby(place, observed=True)["value"]
    spread = weights.std(ddof=0)
    summary = pd.DataFrame({"mean": weights.mean(), "std": spread, count: weights.size()}).reset_index()
    if by_client:
        summary["std"] = summary["std"].where(summary["runs"] > 1)
    deviations = summary["std"].map("±{:.3f}".format).where(summary["std"].notna(), "")
    printed = summary.assign(printed=summary["mean"].map("{:.3f}".format) + deviations)
    wide = printed.pivot(index=[*axes, *labels], columns=columns, values="printed").astype(object).fillna(NO_VALUE)
    wide.columns = wide.columns.astype(str)
    table = PlainTable.of(wide.sort_index().reset_index(), axes, *labels)
    of_cell = [*(labels[:1] if by_client else []), "position", "kind", "mean", "std", count]
    return Section(_BY_CLIENT if by_client else _TEXT, table=table, data=summary[[*axes, *of_cell]])
