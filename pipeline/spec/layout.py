"""The `table` of a spec against its grid: where axes go, single clients, quantities and columns of ranks."""

from __future__ import annotations

from collections.abc import Mapping

from pflcore.registry import did_you_mean
from pipeline.spec.draft import validates
from pipeline.spec.grid import Labels, Points, check_axes
from pipeline.spec.metrics import Quantity
from pipeline.spec.run import Run
from pipeline.spec.schema import TableSection
from pipeline.spec.table import TableRank
from pipeline.spec.yamlfile import Address, Document, show

Clients = dict[str, dict[str, int]]
"""Of one axis, or none: the labels that stand for one client, and which."""


def default_layout(grid: Points) -> TableSection:
    """Return the table of a spec that states none: the first axis down, the others across."""
    return TableSection(caption="", rows=list(grid.labels)[:1], columns=list(grid.labels)[1:])


def check_layout(layout: TableSection, grid: Points, document: Document) -> None:
    """Raise :class:`UserError` for an axis that is unknown, that is in two places, or that varies and is in none."""
    placed: dict[str, str] = {}
    for place in ("rows", "columns", "average_over"):
        for index, axis in enumerate(getattr(layout, place)):
            address: Address = ("table", place, index)
            if axis not in grid.labels:
                hint = did_you_mean(axis, list(grid.labels))
                raise document.error(address, f"unknown axis {show(axis)}{hint}")
            if axis in placed:
                raise document.error(address, f"the axis {axis!r} is already in {placed[axis]}")
            placed[axis] = place
    for axis, labels in grid.labels.items():
        if axis not in placed and len(labels) > 1:
            raise document.error(("table",), f"the axis {axis!r} is in none of rows, columns and average_over")


def check_choice(layout: TableSection, runs: list[Run], document: Document) -> None:
    """Raise :class:`UserError` when a table chooses rounds by validation samples that a run lacks."""
    lacking = next((run for run in runs if not validates(run)), None)
    if layout.metric == "best_by_validation" and lacking:
        raise document.error(
            ("table", "metric"),
            f"{layout.metric!r} needs validation samples, and the partition {lacking.partition!r} on {lacking.dataset} "
            "holds none back; set its validation_share",
        )


def client_of(clients: Clients, labels: Mapping[str, str]) -> int | None:
    """Return the client that a run or a cell with these labels is shown for; None: all of them."""
    return next((own[labels[axis]] for axis, own in clients.items() if labels[axis] in own), None)


def existing_clients(layout: TableSection, grid: Points, runs: list[Run]) -> Clients:
    """Return the clients of a layout, given the run of every point of the grid under a profile.

    The profile may have fewer clients than are published, and then one stands for several.
    """
    clients: Clients = {axis: {} for axis in layout.clients}
    for axis, own in layout.clients.items():
        for label in (label for label in own if label in grid.labels[axis]):
            counts = [run.clients for at, run in zip(grid.points, runs, strict=True) if at.labels[axis] == label]
            clients[axis][label] = own[label] % min(counts) if counts else own[label]
    return clients


def check_clients(layout: TableSection, grid: Points, runs: list[Run], document: Document) -> None:
    """Check what a layout says of single clients, given the run of every point of the grid as published.

    Raises:
        UserError: An axis or a label is unknown, cells would be of two clients, or runs do not have such a client.
    """
    here: Address = ("table", "clients")
    _check_cells(layout, layout.clients, grid, document, here)
    if len(layout.clients) > 1:
        first, second = list(layout.clients)[:2]
        raise document.error((*here, second), f"a second axis; cells are of one client already by {first!r}")
    for axis, own in layout.clients.items():
        for point, run in zip(grid.points, runs, strict=True):
            label = point.labels[axis]
            client = own.get(label, 0)
            if client >= run.clients:
                message = f"no client {client}: a run here has {run.clients} clients, counted from 0"
                raise document.error((*here, axis, label), message)
            if label in own and run.record["partition"].get("novel_share"):
                message = "could be a novel client, which is not measured like others; set novel_share to 0"
                raise document.error((*here, axis, label), message)


def quantity_of(layout: TableSection, labels: Mapping[str, str]) -> Quantity | None:
    """Return the quantity of a cell or a run with these labels; None where it is an accuracy by the table's metric."""
    quantity = layout.quantity.with_defaults(Quantity(metric=layout.metric))
    for axis, own in layout.quantities.items():
        if labels[axis] in own:
            quantity = own[labels[axis]].with_defaults(quantity)
    return quantity if quantity.known else None


def check_quantities(layout: TableSection, grid: Points, document: Document) -> None:
    """Check what a layout says of quantities.

    Raises:
        UserError: An axis or a label is unknown, options do not go together, or a table is of accuracies and of other
            quantities.
    """
    error, here = document.error, ("table", "quantities")
    _check_cells(layout, layout.quantities, grid, document, here)
    stated: list[tuple[Quantity, Address]] = [(layout.quantity, ("table", "quantity"))]
    for axis, own in layout.quantities.items():
        stated += [(quantity, (*here, axis, label)) for label, quantity in own.items()]
    for quantity, address in stated:
        for axis, label in quantity.row.items():
            if axis not in (*layout.rows, *layout.columns):
                raise error(address, f"{show(axis)} is no axis of the table{did_you_mean(axis, layout.rows)}")
            if label not in grid.labels[axis]:
                raise error(address, f"{axis}: unknown label {show(label)}{did_you_mean(label, grid.labels[axis])}")
    shown = [quantity_of(layout, point.labels) for point in grid.points]
    if any(shown) and not all(shown):
        raise error(here, "leave some cells with accuracies; make a table of its own for other quantities")
    of_all = layout.quantity.with_defaults(Quantity(metric=layout.metric))
    for quantity in [quantity for quantity in shown if quantity] or [of_all]:
        if fault := quantity.fault():
            raise error(("table", "quantity"), fault)
    if any(shown) and layout.derived:
        raise error(("table", "derived"), "columns are derived from accuracies, which this table has none of")


def resolve_ranks(layout: TableSection, document: Document) -> list[TableRank]:
    """Return the columns of ranks as the report works them out, axes in the order of the table's columns.

    Raises:
        UserError: An axis is unknown or not of the columns, or columns are asked for twice.
    """
    ranks: list[TableRank] = []
    for index, derived in enumerate(layout.derived):
        address: Address = ("table", "derived", index)
        for position, axis in enumerate(derived.over or ()):
            if axis not in layout.columns:
                hint = did_you_mean(axis, layout.columns)
                raise document.error((*address, "over", position), f"{show(axis)} is no axis of the columns{hint}")
        rank = TableRank(over=[axis for axis in layout.columns if derived.over is None or axis in derived.over])
        if rank in ranks:
            raise document.error(address, f"the same columns as derived[{ranks.index(rank)}]")
        ranks.append(rank)
    return ranks


def _check_cells(
    layout: TableSection, by_axis: Mapping[str, Mapping[str, object]], grid: Points, document: Document, here: Address
) -> None:
    """Check that axes have cells of their own, and that the labels named on them exist."""
    known: Labels = grid.known
    for axis, own in by_axis.items():
        check_axes({axis: own}, known, document, here)
        if axis not in (*layout.rows, *layout.columns):
            raise document.error(
                (*here, axis), "is in neither rows nor columns, so its labels have no cells of their own"
            )
        for label in own:
            if label not in known[axis]:
                hint = did_you_mean(label, known[axis])
                raise document.error((*here, axis, label), f"unknown label {show(label)}{hint}")
