"""The `table` and the `claims` of a spec against its grid: axes, single clients, quantities, ranks, statements."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.spec.draft import validates
from pipeline.spec.grid import Labels, Points, check_where
from pipeline.spec.metrics import OF_ONE_ROUND, Quantity, Where
from pipeline.spec.run import Run
from pipeline.spec.schema import COMPARISONS, Claim, TableSection
from pipeline.spec.table import TableClaim, TableRank
from pipeline.spec.yamlfile import Address, Document, show

Clients = dict[str, dict[str, int]]
"""Of one axis, or none: the labels that stand for one client, and which."""


def check_table(layout: TableSection, grid: Points, runs: list[Run], document: Document) -> None:
    """Raise :class:`UserError` for axes, clients and quantities that are wrong, given each point's run as published."""
    placed: dict[str, str] = {}
    for place in ("rows", "columns", "average_over"):
        for index, axis in enumerate(getattr(layout, place)):
            address: Address = ("table", place, index)
            document.check_known("axis", axis, grid.labels, address)
            if axis in placed:
                raise document.error(address, f"the axis {axis!r} is already in {placed[axis]}")
            placed[axis] = place
    for axis, labels in grid.labels.items():
        if axis not in placed and len(labels) > 1:
            raise document.error(("table",), f"the axis {axis!r} is in none of rows, columns and average_over")
    of_cells: dict[str, Mapping[str, Mapping[str, object]]]
    of_cells = {"clients": layout.clients, "quantities": layout.quantities}
    for key, by_axis in of_cells.items():
        for axis, own in by_axis.items():
            document.check_known("axis", axis, grid.known, ("table", key, axis))
            if axis not in (*layout.rows, *layout.columns):
                message = "is in neither rows nor columns, so its labels have no cells of their own"
                raise document.error(("table", key, axis), message)
            for label in own:
                document.check_known("label", label, grid.known[axis], ("table", key, axis, label))
    _check_clients(layout, grid, runs, document)
    _check_quantities(layout, grid, document)


def check_choice(layout: TableSection, runs: list[Run], document: Document) -> None:
    """Raise :class:`UserError` when a table chooses rounds by validation samples that a run lacks."""
    lacking = next((run for run in runs if not validates(run)), None)
    if layout.metric == "best_by_validation" and lacking:
        where = f"the partition {lacking.partition!r} on {lacking.dataset}"
        message = f"{layout.metric!r} needs validation samples, and {where} holds none back; set its validation_share"
        raise document.error(("table", "metric"), message)


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


def _check_clients(layout: TableSection, grid: Points, runs: list[Run], document: Document) -> None:
    here: Address = ("table", "clients")
    if len(layout.clients) > 1:
        first, second = list(layout.clients)[:2]
        raise document.error((*here, second), f"a second axis; cells are of one client already by {first!r}")
    for axis, own in layout.clients.items():
        for point, run in zip(grid.points, runs, strict=True):
            label = point.labels[axis]
            client, fault = own.get(label, 0), ""
            if client >= run.clients:
                fault = f"no client {client}: a run here has {run.clients} clients, counted from 0"
            elif label in own and run.record["partition"].get("novel_share"):
                fault = "could be a novel client, which is not measured like others; set novel_share to 0"
            if fault:
                raise document.error((*here, axis, label), fault)


def quantity_of(layout: TableSection, labels: Mapping[str, str]) -> Quantity | None:
    """Return the quantity of a cell or a run with these labels; None where it is an accuracy by the table's metric."""
    quantity = layout.quantity.with_defaults(Quantity(metric=layout.metric))
    for axis, own in layout.quantities.items():
        if labels[axis] in own:
            quantity = own[labels[axis]].with_defaults(quantity)
    return quantity if quantity.known else None


def _check_quantities(layout: TableSection, grid: Points, document: Document) -> None:
    here: Address = ("table", "quantities")
    stated: list[tuple[Quantity, Address]] = [(layout.quantity, ("table", "quantity"))]
    stated += [(one, (*here, axis, name)) for axis, own in layout.quantities.items() for name, one in own.items()]
    for quantity, address in stated:
        for axis, label in quantity.row.items():
            document.check_known("axis", axis, [*layout.rows, *layout.columns], address)
            document.check_known("label", label, grid.labels[axis], address)
    shown = [one for point in grid.points if (one := quantity_of(layout, point.labels))]
    if 0 < len(shown) < len(grid.points):
        raise document.error(here, "leave some cells with accuracies; make a table of its own for other quantities")
    for one in shown or [layout.quantity.with_defaults(Quantity(metric=layout.metric))]:
        if fault := one.fault():
            raise document.error(("table", "quantity"), fault)
    if shown and layout.derived:
        message = "columns are derived from accuracies, which this table has none of"
        raise document.error(("table", "derived"), message)


def resolve_ranks(layout: TableSection, document: Document) -> list[TableRank]:
    """Return the columns of ranks as the report works them out, axes in the order of the table's columns."""
    ranks: list[TableRank] = []
    for index, derived in enumerate(layout.derived):
        address: Address = ("table", "derived", index)
        for position, axis in enumerate(derived.over or ()):
            document.check_known("axis", axis, layout.columns, (*address, "over", position))
        rank = TableRank(over=[axis for axis in layout.columns if derived.over is None or axis in derived.over])
        if rank in ranks:
            raise document.error(address, f"the same columns as derived[{ranks.index(rank)}]")
        ranks.append(rank)
    return ranks


def resolve_claim(
    index: int, claim: Claim, layout: TableSection, labels: Labels, left_out: Labels, document: Document
) -> TableClaim:
    """Return a claim as the report judges it, in which `others` are named."""
    address: Address = ("claims", index)
    form, side, than = claim.form, claim.side, dict(claim.than or {})
    for key, named in ((form, side), ("than", than), ("where", claim.where)):
        for axis, chosen in named.items():
            if absent := [label for label in chosen if label in left_out.get(axis, [])]:
                message = f"{show(absent[0])} is left out by grid.only; restate the claims without it"
                raise document.error((*address, key, axis), message)
    for axis, chosen in than.items():
        known = labels.get(axis, [])
        if chosen == ["others"] and "others" not in known:
            than[axis] = [label for label in known if label not in side.get(axis, [])]
    if form in COMPARISONS:
        _check_sides(form, side, than, labels, document, address)
    check_where(claim.where, labels, document, (*address, "where"))
    for axis in claim.where:
        if axis in side:
            raise document.error((*address, "where", axis), "this axis is compared; restrict other axes")
    for position, axis in enumerate(claim.over):
        here = (*address, "over", position)
        document.check_known("axis", axis, labels, here)
        if axis in side:
            raise document.error(here, f"{axis!r} is compared; name other axes")
        if axis in claim.over[:position]:
            raise document.error(here, f"{axis!r} is named twice")
    if claim.over and all(len(claim.where.get(axis, labels[axis])) < 2 for axis in claim.over):
        raise document.error((*address, "over"), "leaves single cells, which have neither mean nor range")
    if form == "steadier" and not claim.over and layout.metric in OF_ONE_ROUND and not layout.average_over:
        message = f"a single run has no ± under the metric {layout.metric!r}; name axes in `over`"
        raise document.error((*address, form), message)
    margin = claim.margin if claim.within is None else claim.within
    stated = {"text": claim.text, "form": form, "side": side, "than": than, "over": claim.over, "where": claim.where}
    return TableClaim.model_validate({**stated, "margin": margin})


def _check_sides(form: str, side: Where, than: Where, labels: Labels, document: Document, address: Address) -> None:
    """Check that what is compared is there on both sides, on the same axes."""
    check_where(side, labels, document, (*address, form))
    check_where(than, labels, document, (*address, "than"))
    if not side:
        raise document.error((*address, form), f"names no axis; state which labels are {form}")
    if set(than) != set(side):
        raise document.error((*address, "than"), f"must name the same axes as `{form}`: {', '.join(side)}")
    if alone := [axis for axis, chosen in than.items() if not chosen]:
        raise document.error((*address, "than"), f"the axis {alone[0]!r} has no other labels")
