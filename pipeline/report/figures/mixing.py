"""How hybrid local attention mixes its kinds: learned weights for each position in the network (pFedLA-Att).

Of all clients together; where the table has cells of single clients, client by client, as in the paper's table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section, labelled
from pipeline.report.table.results import Findings, Results

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


def draw(results: Results) -> Section:
    """The section: a line per cell and position and a column per kind of attention, or, of single clients, a line per
    cell, client and kind and a column per position.

    Items are called ``<position>.<kind>``.

    Raises:
        UserError: An item is called otherwise.
    """
    results = results.of_runs
    layout, alone = results.layout, bool(results.layout.client_names)
    lines, columns = ("kind", "position") if alone else ("position", "kind")
    rows: list[tuple[tuple[str, ...], dict[str, str]]] = []
    data = []
    for row, column, of_cell in results.found("mixing"):
        named = _named(of_cell)
        for client, own in _by_client(named, layout.client_names) if alone else [((), named)]:
            summary = _summary(own, "runs" if alone else "clients")
            for line, of_line in summary.groupby(lines, sort=False):
                printed = dict(zip(of_line[columns], map(_printed, of_line["mean"], of_line["std"]), strict=True))
                rows.append(((*layout.place(row, column), *client, str(line)), printed))
            for name in client:
                summary.insert(0, "client", name)
            data.append(labelled(layout, row, column, summary))
    heads = list(dict.fromkeys(head for _, printed in rows for head in printed))
    heads.sort(key=lambda head: head == _AVERAGE)
    header = (*layout.place_header, *(["client"] if alone else []), lines)
    table = PlainTable(
        header=(*header, *heads),
        rows=[(*place, *(printed.get(head, NO_VALUE) for head in heads)) for place, printed in rows],
        labels=len(header),
    )
    return Section(_BY_CLIENT if alone else _TEXT, table=table, data=pd.concat(data, ignore_index=True))


def _by_client(named: pd.DataFrame, names: dict[int, str]) -> Iterator[tuple[tuple[str], pd.DataFrame]]:
    """Each client's name and rows, with those of the average over its positions."""
    average = named.groupby(["run", "client", "kind"], sort=False)["value"].mean().reset_index()
    for client, own in pd.concat([named, average.assign(position=_AVERAGE)]).groupby("client"):
        yield (names.get(int(str(client)), f"client {client}"),), own


def _summary(rows: pd.DataFrame, counted: str) -> pd.DataFrame:
    """position, kind, mean, std, and of how many values; the deviation over runs needs several."""
    weights = rows.groupby(["position", "kind"], sort=False)["value"]
    spread = weights.std(ddof=0)
    if counted == "runs":
        spread = spread.where(weights.size() > 1)
    return pd.DataFrame({"mean": weights.mean(), "std": spread, counted: weights.size()}).reset_index()


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


def _printed(mean: float, std: float) -> str:
    return f"{mean:.3f}" if math.isnan(std) else f"{mean:.3f}±{std:.3f}"
