"""Cells of a table that are about one client, as where each client has a domain and the paper a column per domain."""

from __future__ import annotations

from collections.abc import Mapping

from pflcore.registry import did_you_mean
from pipeline.spec.draft import Patcher
from pipeline.spec.grid import Points
from pipeline.spec.run import Run
from pipeline.spec.schema import TableSection
from pipeline.spec.yamlfile import Address, show

Clients = dict[str, dict[str, int]]
"""Of one axis, or none: the labels that stand for one client, and which."""


def client_of(clients: Clients, labels: Mapping[str, str]) -> int | None:
    """The client that a run or a cell with these labels is shown for; None: all of them."""
    return next((own[labels[axis]] for axis, own in clients.items() if labels[axis] in own), None)


def existing_clients(layout: TableSection, grid: Points, runs: list[Run]) -> Clients:
    """The clients of a layout, given the run of every point of the grid under a profile.

    The profile may have fewer clients than are published, and then one stands for several.
    """

    def existing(axis: str, label: str, client: int) -> int:
        counts = (run.clients for point, run in zip(grid.points, runs, strict=True) if point.labels[axis] == label)
        return client % min(counts, default=client + 1)

    return {
        axis: {label: existing(axis, label, client) for label, client in own.items() if label in grid.labels[axis]}
        for axis, own in layout.clients.items()
    }


def check_clients(layout: TableSection, grid: Points, runs: list[Run], patcher: Patcher) -> None:
    """Check what a layout says of single clients, given the run of every point of the grid as published.

    Raises:
        UserError: An axis or a label is unknown, cells would be of two clients, or runs do not have such a client.
    """
    here: Address = ("table", "clients")
    error = patcher.document.error
    for number, (axis, own) in enumerate(layout.clients.items()):
        if axis not in grid.labels:
            raise error((*here, axis), f"unknown axis{did_you_mean(axis, list(grid.labels))}")
        if axis not in (*layout.rows, *layout.columns):
            raise error((*here, axis), "is in neither rows nor columns, so its labels have no cells of their own")
        if number:
            raise error(
                (*here, axis), f"a second axis; cells are of one client already by {next(iter(layout.clients))!r}"
            )
        for label in own:
            if label not in grid.known[axis]:
                hint = did_you_mean(label, grid.known[axis])
                raise error((*here, axis, label), f"unknown label {show(label)}{hint}")
        for point, run in zip(grid.points, runs, strict=True):
            client, count = own.get(point.labels[axis], 0), run.clients
            address: Address = (*here, axis, point.labels[axis])
            if client >= count:
                raise error(address, f"no client {client}: a run here has {count} clients, counted from 0")
            if point.labels[axis] in own and run.record["partition"].get("novel_share"):
                raise error(address, "could be a novel client, which is not measured like others; set novel_share to 0")
