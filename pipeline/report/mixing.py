"""How hybrid local attention mixes its kinds: learned weights for each position in the network (pFedLA-Att)."""

from __future__ import annotations

import pandas as pd

from pipeline.report.analyses import Found, by_cell
from pipeline.report.layout import Layout
from pipeline.report.measured import Measured
from pipeline.report.sections import NO_VALUE, PlainTable, Section, labelled

_TEXT = (
    "The weights that clients give to the kinds of attention at each position in the network; those of a position sum "
    "to one. Mean and population standard deviation over the clients of all runs of a cell."
)


def mixing(layout: Layout, runs: dict[str, Measured], found: dict[str, Found]) -> Section:
    """The section: a line per cell and position, a column per kind of attention.

    Args:
        found: What the analysis found, by run; items are called ``<position>.<kind>``.

    Raises:
        UserError: An item is called otherwise.
    """
    lines: list[tuple[tuple[str, ...], str, dict[str, tuple[float, float]]]] = []
    kinds: dict[str, None] = {}
    data = []
    for row, column, mine in by_cell(layout, runs, found):
        summary = _summary(mine)
        kinds |= dict.fromkeys(summary["kind"])
        data.append(labelled(layout, row, column, summary))
        for position, part in summary.groupby("position", sort=False):
            weights = {
                kind: (mean, std) for kind, mean, std in zip(part["kind"], part["mean"], part["std"], strict=True)
            }
            lines.append((layout.place(row, column), str(position), weights))
    header = (*layout.place_header, "position")
    table = PlainTable(
        header=(*header, *kinds),
        rows=[
            (*place, position, *(_weight(weights.get(kind)) for kind in kinds)) for place, position, weights in lines
        ],
        labels=len(header),
    )
    return Section("mixing", _TEXT, table=table, data=pd.concat(data, ignore_index=True))


def _summary(mine: list[Found]) -> pd.DataFrame:
    """position, kind, mean, std, clients; positions and kinds in the order in which the runs tell them."""
    for found in mine:
        odd = [item for item in found.rows["item"] if not all(item.rpartition(".")[::2])]
        if odd:
            raise found.damaged(f"mixing: the item {odd[0]!r} is no position with a kind of attention")
    rows = pd.concat([found.rows for found in mine])
    weights = rows.groupby("item", sort=False)["value"]
    items = pd.DataFrame({"mean": weights.mean(), "std": weights.std(ddof=0), "clients": weights.size()})
    names = [str(item).rpartition(".") for item in items.index]
    items.insert(0, "position", [position for position, _, _ in names])
    items.insert(1, "kind", [kind for _, _, kind in names])
    return items.reset_index(drop=True)


def _weight(weight: tuple[float, float] | None) -> str:
    return NO_VALUE if weight is None else f"{weight[0]:.3f}±{weight[1]:.3f}"
