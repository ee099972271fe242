"""How hybrid local attention mixes its kinds: learned weights for each position in the network (pFedLA-Att).

Of all clients together; where the table has cells of single clients, client by client, as in the paper's table.
"""

from __future__ import annotations

import pandas as pd

from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section, labelled
from pipeline.report.table.findings import Findings
from pipeline.report.table.results import Results

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

Weights = dict[tuple[str, str], tuple[float, float | None]]
"""(Position, kind) → mean and standard deviation."""


def draw(results: Results) -> Section:
    """The section: a line per cell and position and a column per kind of attention, or, of single clients, a line per
    cell, client and kind and a column per position.

    Items are called ``<position>.<kind>``.

    Raises:
        UserError: An item is called otherwise.
    """
    results = results.of_runs
    layout = results.layout
    if layout.client_names:
        return _by_client(results)
    lines: list[tuple[tuple[str, ...], Weights]] = []
    data = []
    for row, column, of_cell in results.found("mixing"):
        weights = _named(of_cell).groupby(["position", "kind"], sort=False)["value"]
        summary = pd.DataFrame({"mean": weights.mean(), "std": weights.std(ddof=0), "clients": weights.size()})
        lines.append((layout.place(row, column), _weights(summary)))
        data.append(labelled(layout, row, column, summary.reset_index()))
    kinds = list(dict.fromkeys(kind for _, weights in lines for _, kind in weights))
    header = (*layout.place_header, "position")
    table = PlainTable(
        header=(*header, *kinds),
        rows=[
            (*place, position, *(_printed(weights.get((position, kind))) for kind in kinds))
            for place, weights in lines
            for position in dict.fromkeys(position for position, _ in weights)
        ],
        labels=len(header),
    )
    return Section(_TEXT, table=table, data=pd.concat(data, ignore_index=True))


def _by_client(results: Results) -> Section:
    layout = results.layout
    lines: list[tuple[tuple[str, ...], Weights]] = []
    data = []
    for row, column, of_cell in results.found("mixing"):
        named = _named(of_cell)
        average = named.groupby(["run", "client", "kind"], sort=False)["value"].mean().reset_index()
        for client, own in pd.concat([named, average.assign(position=_AVERAGE)]).groupby("client"):
            name = layout.client_names.get(int(str(client)), f"client {client}")
            weights = own.groupby(["position", "kind"], sort=False)["value"]
            # A deviation over one run is none.
            spread = weights.std(ddof=0).where(weights.size() > 1)
            summary = pd.DataFrame({"mean": weights.mean(), "std": spread, "runs": weights.size()})
            lines.append(((*layout.place(row, column), name), _weights(summary)))
            summary = summary.reset_index()
            summary.insert(0, "client", name)
            data.append(labelled(layout, row, column, summary))
    positions = list(dict.fromkeys(position for _, weights in lines for position, _ in weights))
    positions.sort(key=lambda position: position == _AVERAGE)
    header = (*layout.place_header, "client", "kind")
    table = PlainTable(
        header=(*header, *positions),
        rows=[
            (*place, kind, *(_printed(weights.get((position, kind))) for position in positions))
            for place, weights in lines
            for kind in dict.fromkeys(kind for _, kind in weights)
        ],
        labels=len(header),
    )
    return Section(_BY_CLIENT, table=table, data=pd.concat(data, ignore_index=True))


def _named(of_cell: list[Findings]) -> pd.DataFrame:
    """run, client, position, kind, value; positions and kinds in the order in which the runs tell them."""
    for findings in of_cell:
        odd = [item for item in findings.rows["item"] if not all(item.rpartition(".")[::2])]
        if odd:
            raise findings.damaged(f"mixing: the item {odd[0]!r} is no position with a kind of attention")
    rows = pd.concat([findings.rows.assign(run=findings.run) for findings in of_cell], ignore_index=True)
    names = [str(item).rpartition(".") for item in rows["item"]]
    rows["position"] = [position for position, _, _ in names]
    rows["kind"] = [kind for _, _, kind in names]
    return rows[["run", "client", "position", "kind", "value"]]


def _weights(summary: pd.DataFrame) -> Weights:
    """The rows of a summary indexed by position and kind."""
    return {
        (str(position), str(kind)): (float(mean), None if pd.isna(std) else float(std))
        for (position, kind), mean, std in zip(summary.index, summary["mean"], summary["std"], strict=True)
    }


def _printed(weight: tuple[float, float | None] | None) -> str:
    if weight is None:
        return NO_VALUE
    mean, std = weight
    return f"{mean:.3f}" if std is None else f"{mean:.3f}±{std:.3f}"
