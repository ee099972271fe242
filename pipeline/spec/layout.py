"""Check a spec's `table` and `claims` against its grid, and lay them out as the resolved table of a report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pflcore.settings import USUAL, VIEWS
from pipeline.spec.catalog import Catalog
from pipeline.spec.grid import Labels, Points, check_where
from pipeline.spec.metrics import OF_ONE_ROUND, PLAIN, SCORED, Quantity
from pipeline.spec.patches import has_novel, has_validation
from pipeline.spec.published import PublishedRow, read_published
from pipeline.spec.run import Run, describe_component, short_hash
from pipeline.spec.schema import COMPARISONS, Claim, TableSection
from pipeline.spec.specs import Spec
from pipeline.spec.table import ResolvedTable, TableCell, TablePartition
from pipeline.spec.yamlfile import Address, Document, locate, relpath, show

Clients = dict[str, dict[str, int]]
"""Axis → label → client, for labels that stand for one client; at most one axis has such labels."""
_plain = cache(Quantity)


def client_of(clients: Clients, labels: Mapping[str, str]) -> int | None:
    """Return the client that a run or a cell with these labels is shown for; None for all clients."""
    return next((by_label[labels[axis]] for axis, by_label in clients.items() if labels[axis] in by_label), None)


def quantity_of(layout: TableSection, labels: Mapping[str, str]) -> Quantity | None:
    """Return the quantity of a cell or a run with these labels; None for the table's metric in the usual view."""
    quantity = _cell_quantity(layout, labels)
    plain = quantity.definition is None and quantity.metric == layout.metric and quantity.view == USUAL
    return None if plain else quantity


def _cell_quantity(layout: TableSection, labels: Mapping[str, str]) -> Quantity:
    """Return the quantity that a cell or a run with these labels shows, with the table's defaults."""
    quantity = layout.quantity.with_defaults(_plain(metric=layout.metric))
    for axis, by_label in layout.quantities.items():
        if labels.get(axis) in by_label:
            quantity = by_label[labels[axis]].with_defaults(quantity)
    return quantity


def _kind_of(layout: TableSection, axis: str, label: str) -> str:
    """Return what the cells of one label show: accuracy under any protocol, another metric, or the unit of a cost."""
    quantity = _cell_quantity(layout, {axis: label})
    metric = quantity.metric or ""
    if quantity.definition:
        return metric if quantity.unit == PLAIN or metric.endswith("flops") else quantity.unit
    return SCORED.get(metric, "accuracy")


def check_table(layout: TableSection, grid: Points, runs: list[Run], document: Document) -> None:
    """Raise :class:`UserError` for wrong axes, clients and quantities, given each point's run as published."""
    placed: dict[str, str] = {}
    for place in ("rows", "columns", "average_over"):
        for index, axis in enumerate(getattr(layout, place)):
            address: Address = ("table", place, index)
            document.check_known("axis", axis, grid.labels, address)
            document.check(axis not in placed, address, f"the axis {axis!r} is already in {placed.get(axis)}")
            placed[axis] = place
    for axis, labels in grid.labels.items():
        message = f"the axis {axis!r} is in none of rows, columns and average_over"
        document.check(axis in placed or len(labels) < 2, ("table",), message)
    sections: dict[str, Mapping[str, Mapping[str, object]]]
    sections = {"clients": layout.clients, "quantities": layout.quantities}
    for key, by_axis in sections.items():
        for axis, by_label in by_axis.items():
            address = ("table", key, axis)
            document.check_known("axis", axis, grid.all_labels, address)
            message = "is in neither rows nor columns, so its labels have no cells of their own"
            document.check(axis in (*layout.rows, *layout.columns), address, message)
            for label in by_label:
                document.check_known("label", label, grid.all_labels[axis], (*address, label))
    _check_clients(layout, grid, runs, document)
    _check_quantities(layout, grid, document)
    _check_measured(layout, grid, runs, document)


def _check_clients(layout: TableSection, grid: Points, runs: list[Run], document: Document) -> None:
    address: Address = ("table", "clients")
    if len(layout.clients) > 1:
        first, second, *_ = layout.clients
        raise document.error((*address, second), f"a second axis; cells are of one client already by {first!r}")
    for axis, by_label in layout.clients.items():
        for point, run in zip(grid.points, runs, strict=True):
            label = point.labels[axis]
            if label in by_label:
                message = f"no client {by_label[label]}: a run here has {run.clients} clients, counted from 0"
                document.check(by_label[label] < run.clients, (*address, axis, label), message)
                message = "could be a novel client, which is not measured like others; leave out novel clients"
                document.check(not has_novel(run), (*address, axis, label), message)
                message = "could be an attacker, which is not measured like others; leave runs with attackers out"
                document.check(run.condition != "attack", (*address, axis, label), message)


def _check_quantities(layout: TableSection, grid: Points, document: Document) -> None:
    options: list[tuple[Quantity, Address]] = [(layout.quantity, ("table", "quantity"))]
    for axis, by_label in layout.quantities.items():
        options += [(quantity, ("table", "quantities", axis, label)) for label, quantity in by_label.items()]
    for quantity, address in options:
        for axis, label in quantity.row.items():
            document.check_known("axis", axis, [*layout.rows, *layout.columns], address)
            document.check_known("label", label, grid.labels[axis], address)
    shown = [_cell_quantity(layout, point.labels) for point in grid.points]
    special = [quantity for quantity in shown if quantity.definition]
    message = "some cells would still show accuracies; put other quantities into a table of their own"
    document.check(len(special) in (0, len(grid.points)), ("table", "quantities"), message)
    for quantity in {id(quantity): quantity for quantity in shown}.values():  # most cells share a quantity
        if problem := quantity.problem():
            raise document.error(("table", "quantity"), problem)
    message = "columns are derived from accuracies, which this table has none of"
    document.check(not (special and layout.derived), ("table", "derived"), message)
    message = "ranks are within a column, where each row would be another number; put the axis of quantities there"
    document.check(not (layout.derived and {*layout.quantities} & {*layout.rows}), ("table", "derived"), message)


def _check_measured(layout: TableSection, grid: Points, runs: list[Run], document: Document) -> None:
    """Raise :class:`UserError` for a metric or a view that a run is not measured for."""
    for point, run in zip(grid.points, runs, strict=True):
        quantity = _cell_quantity(layout, point.labels)
        score, settings = SCORED.get(quantity.metric or ""), run.evaluation
        message = f"{score} is not measured; set evaluation: {{metrics: [{score}]}}"
        document.check(score is None or score in settings.metrics, ("table", "metric"), message)
        for (name, choices), chosen in zip(VIEWS.items(), quantity.view, strict=True):
            message = f"{chosen!r} is not measured; set evaluation: {{{name}: [{', '.join(choices)}]}}"
            document.check(chosen in getattr(settings, name), ("table", "quantities"), message)


def check_choice(layout: TableSection, grid: Points, runs: list[Run], document: Document) -> None:
    """Raise :class:`UserError` when a table chooses rounds by validation samples that a run lacks."""
    metrics = {layout.metric, *(_cell_quantity(layout, point.labels).metric or "" for point in grid.points)}
    metric = next((metric for metric in sorted(metrics) if metric.startswith("best_by_validation")), "")
    key = "metric" if metric == layout.metric else "quantities"
    for run in runs if metric else ():
        where = f"the partition {run.partition!r} on {run.dataset}"
        message = f"{metric!r} needs validation samples, and {where} has none; set its validation_share"
        document.check(has_validation(run), ("table", key), message)


def resolve_table(
    spec: Spec, profile: str, layout: TableSection, grid: Points, runs: list[Run], catalog: Catalog
) -> ResolvedTable:
    """Return the table of a spec, given the run of every point of its grid under a profile."""
    body, document, axes = spec.body, spec.document, [*layout.rows, *layout.columns]
    published: list[PublishedRow] = []
    if layout.published is not None:
        path = locate(spec.specs_dir, document, ("table", "published"), layout.published)
        units = any(_cell_quantity(layout, point.labels).definition for point in grid.points)

        def score(labels: Mapping[str, str]) -> str | None:
            return SCORED.get(_cell_quantity(layout, labels).metric or "")

        published = read_published(path, relpath(path, spec.specs_dir), axes, units, score)
    labels, clients = _labels(axes, grid, published), _clients(layout, grid, runs)
    values = {tuple(row.labels.values()): row.value for row in published}
    run_ids: dict[tuple[str, ...], dict[str, None]] = {}
    for point, run in zip(grid.points, runs, strict=True):
        run_ids.setdefault(tuple(point.labels[axis] for axis in axes), {})[run.id] = None
    cells = []
    for key in itertools.product(*(labels[axis] for axis in axes)):
        cell = dict(zip(axes, key, strict=True))
        client, quantity = client_of(clients, cell), quantity_of(layout, cell)
        ids, value = list(run_ids.get(key, {})), values.get(key)
        cells.append(TableCell(labels=cell, runs=ids, client=client, quantity=quantity, published=value))
    named = {*(body.figures or ()), *(name for run in runs for name in run.analyses)}
    analyses = sorted(catalog.entries["analysis"].items())
    by_id = {run.id: run for run in sorted(runs, key=lambda run: run.id)}
    partitions: dict[str, TablePartition] = {}  # with the first seed that occurs
    for run in {run.federation_id: run for run in runs}.values():
        words = describe_component(run.federation["partition"])
        words += f" on {run.dataset}, {run.clients:,} clients, seed {run.federation['seed']}"
        partition = TablePartition(federation=run.federation_id, words=words)
        partitions.setdefault(short_hash({**run.federation, "seed": 0}), partition)
    claims = [_claim(index, claim, layout, labels, grid.left_out, document) for index, claim in enumerate(body.claims)]
    return ResolvedTable(
        spec=spec.id,
        title=spec.title,
        profile=profile,
        paper=body.paper,
        notes=body.notes,
        **{name: getattr(layout, name) for name in ("caption", "rows", "columns", "metric", "better", "decimals")},
        clients=clients,
        quantities=list(layout.quantities),
        labels=labels,
        cells=cells,
        runs={name: run.federation_id for name, run in by_id.items()},
        tuned={name: run.tuned for name, run in by_id.items() if run.tuned},
        partitions=list(partitions.values()),
        claims=claims,
        figures=body.figures,
        analyses={name: info.facts.get("title", name) for name, info in analyses if name in named},
        derived=_ranks(layout, document),
    )


def _labels(axes: list[str], grid: Points, published: list[PublishedRow]) -> Labels:
    """Return each axis's labels in the order of the published table. Raises :class:`UserError` for an unknown one.

    A label that the paper does not have follows the label that it follows in the spec.
    """
    labels: Labels = {}
    for axis in axes:
        all_labels = grid.all_labels[axis]
        for row in published:
            if (label := row.labels[axis]) not in all_labels:
                hint = did_you_mean(label, all_labels)
                raise UserError(f"{row.where}: {axis}: {show(label)} is no label of this axis{hint}")
        order = list(dict.fromkeys(row.labels[axis] for row in published))
        for before, label in zip([None, *all_labels], all_labels, strict=False):
            if label not in order:
                order.insert(order.index(before) + 1 if before else 0, label)
        labels[axis] = [label for label in order if label not in grid.left_out[axis]]
    return labels


def _clients(layout: TableSection, grid: Points, runs: list[Run]) -> Clients:
    """Return the single clients of a table. A profile may have fewer clients, so that one stands for several."""
    clients: Clients = {axis: {} for axis in layout.clients}
    for axis, by_label in layout.clients.items():
        for label, client in by_label.items():
            counts = [run.clients for point, run in zip(grid.points, runs, strict=True) if point.labels[axis] == label]
            if label in grid.labels[axis]:
                clients[axis][label] = client % min(counts) if counts else client
    return clients


def _ranks(layout: TableSection, document: Document) -> list[list[str]]:
    """Return the columns of ranks for the report, with axes in the order of the table's columns."""
    ranks: list[list[str]] = []
    for index, derived in enumerate(layout.derived):
        address: Address = ("table", "derived", index)
        for position, axis in enumerate(derived.over or ()):
            document.check_known("axis", axis, layout.columns, (*address, "over", position))
        rank = [axis for axis in layout.columns if derived.over is None or axis in derived.over]
        if rank in ranks:
            raise document.error(address, f"the same columns as derived[{ranks.index(rank)}]")
        ranks.append(rank)
    return ranks


def _claim(
    index: int, claim: Claim, layout: TableSection, labels: Labels, left_out: Labels, document: Document
) -> Claim:
    """Return a claim for the report, with `others` written out. Raises :class:`UserError` for wrong axes and labels."""
    address: Address = ("claims", index)
    form, side, than, where = claim.form, claim.side, dict(claim.than or {}), claim.where
    for key, cells in ((form, side), ("than", than), ("where", where)):
        for axis, chosen in cells.items():
            for label in chosen:
                message = f"{show(label)} is left out by grid.only; restate the claims without it"
                document.check(label not in left_out.get(axis, []), (*address, key, axis), message)
    for axis, chosen in than.items():
        axis_labels = labels.get(axis, [])
        if chosen == ["others"] and "others" not in axis_labels:
            than[axis] = [label for label in axis_labels if label not in side.get(axis, [])]
    if form in COMPARISONS:
        check_where(side, labels, document, (*address, form))
        than_address = (*address, "than")
        check_where(than, labels, document, than_address)
        document.check(side, (*address, form), f"names no axis; state which labels are {form}")
        document.check({*than} == {*side}, than_address, f"must name the same axes as `{form}`: {', '.join(side)}")
        for axis, chosen in than.items():
            document.check(chosen, than_address, f"the axis {axis!r} has no other labels")
        identical = side == than and all(len(chosen) == 1 for chosen in than.values())
        document.check(not identical, than_address, f"names the cells of `{form}`; name others")
    check_where(where, labels, document, (*address, "where"))
    for axis in where:
        document.check(axis not in side, (*address, "where", axis), "this axis is compared; restrict other axes")
    for position, axis in enumerate(claim.over):
        over_address = (*address, "over", position)
        document.check_known("axis", axis, labels, over_address)
        document.check(axis not in side, over_address, f"{axis!r} is compared; name other axes")
        document.check(axis not in claim.over[:position], over_address, f"{axis!r} is named twice")
    single = claim.over and all(len(where.get(axis, labels[axis])) < 2 for axis in claim.over)
    document.check(not single, (*address, "over"), "leaves single cells, which have neither mean nor range")
    for axis in (*claim.over, *side):
        chosen = [*side[axis], *than[axis]] if axis in side else where.get(axis, labels[axis])
        if len(kinds := {_kind_of(layout, axis, label): label for label in chosen}) > 1:
            first, second, *_ = kinds.values()
            message = f"{show(first)} and {show(second)} show different metrics, which no claim can combine or compare"
            raise document.error((*address, "over" if axis in claim.over else form), message)
    unaveraged = layout.metric.split(".")[0] in OF_ONE_ROUND and not layout.average_over
    lacking = form == "steadier" and not claim.over and unaveraged
    message = f"a single run has no ± under the metric {layout.metric!r}; name axes in `over`"
    document.check(not lacking, (*address, form), message)
    return claim.model_copy(update={"than": than or None})
