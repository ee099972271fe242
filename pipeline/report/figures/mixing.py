"""How hybrid local attention mixes its kinds: learned weights for each position in the network (pFedLA-Att)."""

from __future__ import annotations

import pandas as pd

from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section
from pipeline.report.figures._data import TableData

_TEXT = (
    "The weights that clients give to the kinds of attention at each position in the network; those of a position sum "
    "to one. Mean and population standard deviation over the clients of all runs of a cell."
)


def draw(data: TableData) -> Section:
    """Print a line per cell and position and a column per kind of attention. CSV: position, kind, mean, std, clients.

    Items are called ``<position>.<kind>``.
    """
    found = data.findings("mixing")
    axes, names = data.axes(found), found["item"].str.rpartition(".")
    for name, at in (("position", 0), ("kind", 2)):
        found[name] = pd.Categorical(names[at], names[at].unique(), ordered=True)
    weights = found.groupby([*axes, "position", "kind"], observed=True)["value"]
    summary = pd.DataFrame({"mean": weights.mean(), "std": weights.std(ddof=0), "clients": weights.size()})
    printed = summary["mean"].map("{:.3f}".format) + summary["std"].map("±{:.3f}".format)
    wide = printed.unstack("kind").astype(object).fillna(NO_VALUE).rename(columns=str)
    table = PlainTable.of(wide.reset_index(), axes, "position")
    return Section(_TEXT, table=table, data=summary.reset_index())
