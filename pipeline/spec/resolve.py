"""A spec and a profile become runs and a table."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.catalog import Catalog
from pipeline.spec.draft import Patch, Patcher, as_patch
from pipeline.spec.grid import Labels, Points, expand, without_effect
from pipeline.spec.layout import (
    check_choice,
    check_table,
    client_of,
    existing_clients,
    quantity_of,
    resolve_claim,
    resolve_ranks,
)
from pipeline.spec.metrics import QUANTITIES
from pipeline.spec.pretrained import Weights
from pipeline.spec.profiles import check_profile, smoke_patch
from pipeline.spec.published import PublishedRow, read_published
from pipeline.spec.run import Run, describe_component, short_hash
from pipeline.spec.schema import TableSection
from pipeline.spec.specs import Spec
from pipeline.spec.table import ResolvedTable, TableCell, TablePartition
from pipeline.spec.tuning import Selection, check_tuned, tune, tuned_as
from pipeline.spec.yamlfile import Address, inside, show, shown


@dataclass(frozen=True)
class Resolved:
    """What a spec compiles to. An abstract spec has no runs and no table.

    `weights` says where files of pretrained weights lie, relative to the project, by what is in them; `idle` has lines
    on what the spec says without effect.
    """

    runs: list[Run]
    table: ResolvedTable | None
    selections: dict[str, Selection] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)


def resolve(spec: Spec, catalog: Catalog, profile: str = "paper") -> Resolved:
    """Return all distinct runs of a spec under a profile, in the order of the grid, and the table they fill.

    The runs are always checked as published first, so that a profile cannot hide a mistake. Raises :class:`UserError`
    with the file, line and dotted address of the axis value, override or base at fault.
    """
    check_profile(profile)
    if spec.body.abstract:
        return Resolved([], None)
    document, wanted = spec.document, spec.body.tune
    weights = Weights(spec.specs_dir.parent)
    patcher = Patcher(document, catalog, weights)
    grid = expand(spec.body.grid, patcher)
    published = [patcher.run(point.draft, "paper") for point in grid.points]
    axes = list(grid.labels)
    layout = spec.body.table or TableSection(caption="", rows=axes[:1], columns=axes[1:])
    check_table(layout, grid, published, document)
    if wanted:
        check_tuned(wanted, grid, published, document)
    _check_effects(spec, grid, published, layout)

    def change(run: Run) -> list[Patch]:
        return [as_patch(smoke_patch(run.record, catalog), ("grid", "base"))] if profile == "smoke" else []

    drafts = [[*point.draft, *change(run)] for point, run in zip(grid.points, published, strict=True)]
    by_point = published if profile == "paper" else [patcher.run(draft, profile) for draft in drafts]
    selections: dict[str, Selection] = {}
    if wanted:
        by_point, selections = tune(wanted, grid, drafts, by_point, change, patcher)
    trials = [run for selection in selections.values() for trial in selection.trials for run in trial.runs]
    runs: dict[str, Run] = {}
    for run in (*by_point, *trials):
        if runs.setdefault(run.id, run) != run:
            raise UserError(f"{document.mark(())}: two different runs have the id {run.id}; change a seed")
    check_choice(layout, [*published, *by_point], document)
    table = _table(spec, profile, layout, grid, by_point, catalog)
    return Resolved(list(runs.values()), table, selections, weights.paths, list(without_effect(grid, patcher)))


def _check_effects(spec: Spec, grid: Points, runs: list[Run], layout: TableSection) -> None:
    """Check that every axis changes something, if only how runs are tuned, and that no run is averaged with itself."""
    effects: dict[str, dict[tuple[str, ...], list[object]]] = {axis: {} for axis in grid.labels}
    for point, run in zip(grid.points, runs, strict=True):
        at = point.labels
        effect = (run.id, client_of(layout.clients, at), repr(quantity_of(layout, at)), tuned_as(spec.body.tune, at))
        for axis, found in effects.items():
            found.setdefault(tuple(label for other, label in at.items() if other != axis), []).append(effect)
    for axis, found in effects.items():
        several = [(len(set(given)), len(given)) for given in found.values() if len(given) > 1]
        address: Address = ("grid", "axes", axis)
        if several and all(distinct == 1 for distinct, _ in several):
            raise spec.document.error(address, "has no effect: its values give the same runs")
        if axis in layout.average_over and any(distinct < count for distinct, count in several):
            raise spec.document.error(address, "is averaged over, but some of its values give the same run")


def _table(
    spec: Spec, profile: str, layout: TableSection, grid: Points, runs: list[Run], catalog: Catalog
) -> ResolvedTable:
    body, document = spec.body, spec.document
    axes = [*layout.rows, *layout.columns]
    published: list[PublishedRow] = []
    if layout.published is not None:
        path = inside(spec.specs_dir, document, ("table", "published"), layout.published)
        units = bool(layout.quantities) or layout.metric in QUANTITIES
        published = read_published(path, shown(path, spec.specs_dir), axes, units=units)
    labels = _labels(axes, grid, published)
    values = {tuple(row.labels.values()): row.value for row in published}
    clients = existing_clients(layout, grid, runs)
    of_cell: dict[tuple[str, ...], dict[str, None]] = {}
    for point, run in zip(grid.points, runs, strict=True):
        of_cell.setdefault(tuple(point.labels[axis] for axis in axes), {})[run.id] = None
    cells = []
    for key in itertools.product(*(labels[axis] for axis in axes)):
        here = dict(zip(axes, key, strict=True))
        client, quantity = client_of(clients, here), quantity_of(layout, here)
        found = list(of_cell.get(key, {}))
        cells.append(TableCell(labels=here, runs=found, client=client, quantity=quantity, published=values.get(key)))
    named = {*(body.figures or ()), *(name for run in runs for name in run.analyses)}
    analyses = [name for name in catalog.names("analysis") if name in named]
    by_id = {run.id: run for run in sorted(runs, key=lambda run: run.id)}
    first: dict[str, Run] = {}  # of every partition, under the first seed that occurs
    for run in runs:
        first.setdefault(short_hash({**run.federation, "seed": 0}), run)
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
        partitions=[TablePartition(federation=run.federation_id, words=_words(run)) for run in first.values()],
        claims=[
            resolve_claim(index, claim, layout, labels, grid.left_out, document)
            for index, claim in enumerate(body.claims)
        ],
        figures=body.figures,
        analyses={name: catalog.entry("analysis", name).facts.get("title", name) for name in analyses},
        derived=resolve_ranks(layout, document),
    )


def _words(run: Run) -> str:
    partition = describe_component(run.record["partition"])
    return f"{partition} on {run.dataset}, {run.clients:,} clients, seed {run.seed}"


def _labels(axes: list[str], grid: Points, published: list[PublishedRow]) -> Labels:
    """Return labels in the order of the published table; each of them is known to the axis.

    What the paper does not have stands behind the label that it stands behind in the spec.
    """
    labels: Labels = {}
    for axis in axes:
        known = grid.known[axis]
        for row in published:
            if (label := row.labels[axis]) not in known:
                hint = did_you_mean(label, known)
                raise UserError(f"{row.where}: {axis}: {show(label)} is no label of this axis{hint}")
        order = list(dict.fromkeys(row.labels[axis] for row in published))
        for before, label in zip([None, *known], known, strict=False):
            if label not in order:
                order.insert(order.index(before) + 1 if before else 0, label)
        labels[axis] = [label for label in order if label not in grid.left_out[axis]]
    return labels
