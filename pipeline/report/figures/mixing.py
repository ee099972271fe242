"""How hybrid local attention mixes its kinds: learned weights for each position in the network (pFedLA-Att).

Of all clients together; where the table has cells of single clients, client by client, as in the paper's table.
"""

from __future__ import annotations

import pandas as pd

from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section
from pipeline.report.figures._data import TableData

_TEXT = (
    "The weights that clients give to the kinds of attention at each position in the network; those of a position sum "
    "to one. Mean and population standard deviation over {values}."
)


def draw(data: TableData) -> Section:
    """Print a line per cell and position and a column per kind of attention, or, of single clients, a line per cell,
    client and kind and a column per position. CSV: client, position, kind, mean, std, and of how many values.

    Items are called ``<position>.<kind>``.
    """
    found = data.findings("mixing")
    axes, single = data.axes(found), bool(data.table.clients)
    names = found["item"].str.rpartition(".")
    found = found.assign(position=names[0], kind=names[2])
    labels, columns, count = (["client", "kind"], "position", "runs") if single else (["position"], "kind", "clients")
    if single:
        average = found.groupby([*axes, "run", "client", "kind"], observed=True, sort=False)["value"].mean()
        found = pd.concat([found, average.reset_index().assign(position="average")]).sort_values(
            "client", kind="stable"
        )
        called = {client: label for of in data.table.clients.values() for label, client in of.items()}
        found["client"] = [called.get(client, f"client {client}") for client in found["client"]]
    for name in ("client", "position", "kind"):
        found[name] = pd.Categorical(found[name], found[name].unique(), ordered=True)
    weights = found.groupby([*axes, *labels, columns], observed=True)["value"]
    summary = pd.DataFrame({"mean": weights.mean(), "std": weights.std(ddof=0), count: weights.size()}).reset_index()
    summary["std"] = summary["std"].where((summary[count] > 1) | (not single))
    spread = summary["std"].map("±{:.3f}".format, na_action="ignore").fillna("")
    printed = summary.assign(printed=summary["mean"].map("{:.3f}".format) + spread)
    wide = printed.pivot(index=[*axes, *labels], columns=columns, values="printed").astype(object).fillna(NO_VALUE)
    table = PlainTable.of(wide.sort_index().rename(columns=str).reset_index(), axes, *labels)
    text = _TEXT.format(values="the runs of a cell" if single else "the clients of all runs of a cell")
    of_cell = [name for name in ("client", "position", "kind", "mean", "std", count) if name in summary]
    return Section(text, table=table, data=summary[[*axes, *of_cell]])
