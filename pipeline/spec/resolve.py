"""A spec and a profile become runs and a table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.catalog import Catalog
from pipeline.spec.choosing import check_choice, check_patience
from pipeline.spec.claims import resolve_claims
from pipeline.spec.draft import Patch, Patcher, as_patch, compose
from pipeline.spec.fields import Fields
from pipeline.spec.grid import Points, expand, without_effect
from pipeline.spec.metrics import QUANTITIES
from pipeline.spec.paths import inside
from pipeline.spec.pretrained import Weights
from pipeline.spec.profiles import check_profile, smoke_patch
from pipeline.spec.published import PublishedRow, read_published
from pipeline.spec.quantities import check_quantities, quantity_of
from pipeline.spec.ranks import resolve_ranks
from pipeline.spec.run import Run, describe_component, short_hash
from pipeline.spec.schema import TableSection, Tune
from pipeline.spec.single_clients import check_clients, client_of, existing_clients
from pipeline.spec.specs import Spec
from pipeline.spec.table import ResolvedTable, TableCell, TablePartition
from pipeline.spec.tuning import Selection, check_labels, check_seeds, tune, tuned_as
from pipeline.spec.yamlfile import Address, show


@dataclass(frozen=True)
class Resolved:
    """What a spec compiles to. An abstract spec has no runs and no table.

    Attributes:
        weights: What is in a file of pretrained weights → where it lies, relative to the project.
        idle: Lines on what the spec says without effect.
    """

    runs: list[Run]
    table: ResolvedTable | None
    selections: dict[str, Selection] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)


def resolve(spec: Spec, catalog: Catalog, profile: str = "paper") -> Resolved:
    """All distinct runs of a spec under a profile, in the order of the grid, and the table they fill.

    The runs are always checked as published first, so that a profile cannot hide a mistake.

    Raises:
        UserError: With the file, line and dotted address of the axis value, override or base at fault.
    """
    check_profile(profile)
    if spec.abstract:
        return Resolved([], None)
    weights = Weights(spec.specs_dir.parent)
    patcher = Patcher(spec.document, Fields.of(catalog), weights)
    grid = expand(spec.body.grid, patcher)
    published = [_run(point.draft, "paper", patcher) for point in grid.points]
    layout = spec.body.table or _default_layout(grid)
    check_clients(layout, grid, published, patcher)
    check_quantities(layout, grid, patcher)
    if spec.body.tune:
        check_labels(spec.body.tune, grid, patcher)
        check_seeds(spec.body.tune, published, patcher)
    _check_effects(grid, published, layout, spec.body.tune, patcher)
    drafts, by_point = [point.draft for point in grid.points], published
    change = _changer(catalog, profile)
    if profile != "paper":
        drafts = [compose(draft, change(run)) for draft, run in zip(drafts, published, strict=True)]
        by_point = [_run(draft, profile, patcher) for draft in drafts]
    selections: dict[str, Selection] = {}
    if spec.body.tune:
        if profile != "smoke":  # where all seeds are small, and nothing is found out
            check_seeds(spec.body.tune, by_point, patcher)
        tuned = tune(spec.body.tune, grid, drafts, by_point, change, patcher)
        by_point, selections = tuned.runs, tuned.selections
    trials = [run for selection in selections.values() for trial in selection.trials for run in trial.runs]
    runs: dict[str, Run] = {}
    for run in (*by_point, *trials):
        if runs.setdefault(run.id, run) != run:
            raise UserError(f"{spec.document.mark(())}: two different runs have the id {run.id}; change a seed")
    check_choice(layout, [*published, *by_point], patcher)
    table = _table(spec, profile, layout, grid, by_point, patcher)
    idle = list(without_effect(spec.body.grid, grid, patcher))
    return Resolved(list(runs.values()), table, selections, weights.paths, idle)


def _run(draft: Patch, profile: str, patcher: Patcher) -> Run:
    run = Run(patcher.record(draft, profile))
    check_patience(run, draft, patcher)
    return run


def _changer(catalog: Catalog, profile: str) -> Callable[[Run], Patch]:
    if profile == "smoke":
        return lambda run: as_patch(smoke_patch(run.record, catalog), ("grid", "base"))
    return lambda run: {}


def _check_effects(grid: Points, runs: list[Run], layout: TableSection, tuning: Tune | None, patcher: Patcher) -> None:
    """An axis that changes nothing, not even how runs are tuned, is a mistake; so is averaging a run with itself."""
    axes = list(grid.labels)
    for axis in axes:
        effects: dict[tuple[str, ...], set[tuple[object, ...]]] = {}
        counts: dict[tuple[str, ...], int] = {}
        for point, run in zip(grid.points, runs, strict=True):
            others = tuple(point.labels[other] for other in axes if other != axis)
            shown = client_of(layout.clients, point.labels), repr(quantity_of(layout, point.labels))
            effects.setdefault(others, set()).add((run.id, *shown, tuned_as(tuning, point.labels)))
            counts[others] = counts.get(others, 0) + 1
        several = [others for others, count in counts.items() if count > 1]
        address: Address = ("grid", "axes", axis)
        if several and all(len(effects[others]) == 1 for others in several):
            raise patcher.document.error(address, "has no effect: its values give the same runs")
        if axis in layout.average_over and any(len(effects[others]) < counts[others] for others in several):
            raise patcher.document.error(address, "is averaged over, but some of its values give the same run")


def _default_layout(grid: Points) -> TableSection:
    rows, columns = list(grid.labels)[:1], list(grid.labels)[1:]
    return TableSection(caption="", rows=rows, columns=columns)


def _check_layout(layout: TableSection, grid: Points, patcher: Patcher) -> None:
    placed: dict[str, str] = {}
    for place in ("rows", "columns", "average_over"):
        for index, axis in enumerate(getattr(layout, place)):
            address: Address = ("table", place, index)
            if axis not in grid.labels:
                known = did_you_mean(axis, list(grid.labels))
                raise patcher.document.error(address, f"unknown axis {show(axis)}{known}")
            if axis in placed:
                raise patcher.document.error(address, f"the axis {axis!r} is already in {placed[axis]}")
            placed[axis] = place
    for axis, labels in grid.labels.items():
        if axis not in placed and len(labels) > 1:
            raise patcher.document.error(("table",), f"the axis {axis!r} is in none of rows, columns and average_over")


def _table(
    spec: Spec, profile: str, layout: TableSection, grid: Points, runs: list[Run], patcher: Patcher
) -> ResolvedTable:
    _check_layout(layout, grid, patcher)
    axes = [*layout.rows, *layout.columns]
    published = _published(spec, layout, axes, patcher)
    labels = _labels(axes, grid, published)
    values = {tuple(row.labels.values()): row.value for row in published}
    clients = existing_clients(layout, grid, runs)
    of_cell: dict[tuple[str, ...], dict[str, None]] = {}
    for point, run in zip(grid.points, runs, strict=True):
        of_cell.setdefault(tuple(point.labels[axis] for axis in axes), {})[run.id] = None
    cells = [
        TableCell(
            labels=dict(zip(axes, key, strict=True)),
            runs=list(of_cell.get(key, {})),
            client=client_of(clients, dict(zip(axes, key, strict=True))),
            quantity=quantity_of(layout, dict(zip(axes, key, strict=True))),
            published=values.get(key),
        )
        for key in itertools.product(*(labels[axis] for axis in axes))
    ]
    body = spec.body
    return ResolvedTable(
        spec=spec.id,
        title=spec.title,
        profile=profile,
        paper=body.paper,
        notes=body.notes,
        caption=layout.caption,
        rows=layout.rows,
        columns=layout.columns,
        clients=clients,
        quantities=list(layout.quantities),
        metric=layout.metric,
        better=layout.better,
        decimals=layout.decimals,
        labels=labels,
        cells=cells,
        runs={run.id: run.federation_id for run in sorted(runs, key=lambda run: run.id)},
        tuned={run.id: run.tuned for run in sorted(runs, key=lambda run: run.id) if run.tuned},
        partitions=_partitions(runs),
        claims=resolve_claims(body.claims, layout, labels, grid.left_out, patcher),
        figures=body.figures,
        analyses=_headings(body.figures or (), runs, patcher.fields.catalog),
        derived=resolve_ranks(layout, patcher),
    )


def _headings(figures: Iterable[str], runs: list[Run], catalog: Catalog) -> dict[str, str]:
    """The headings of the analyses that are listed as figures or made by runs."""
    named = {*figures, *(analysis["name"] for run in runs for analysis in run.record.get("analyses", ()))}
    return {
        name: catalog.entry("analysis", name).facts.get("title", name)
        for name in catalog.names("analysis")
        if name in named
    }


def _partitions(runs: list[Run]) -> list[TablePartition]:
    """Every partition of the runs once, as it is under the first seed that occurs."""
    first: dict[str, Run] = {}
    for run in runs:
        record = run.federation
        first.setdefault(short_hash({**record, "seed": 0}), run)
    return [
        TablePartition(
            federation=run.federation_id,
            words=f"{describe_component(run.record['partition'])} on {run.dataset}, {run.clients:,} clients, "
            f"seed {run.seed}",
        )
        for run in first.values()
    ]


def _published(spec: Spec, layout: TableSection, axes: list[str], patcher: Patcher) -> list[PublishedRow]:
    if layout.published is None:
        return []
    path = inside(spec.specs_dir, spec.document, ("table", "published"), layout.published)
    label, units = (
        path.relative_to(spec.specs_dir.parent).as_posix(),
        bool(layout.quantities or layout.metric in QUANTITIES),
    )
    return read_published(path, label, axes, units=units)


def _labels(axes: list[str], grid: Points, published: list[PublishedRow]) -> dict[str, list[str]]:
    """Labels in the order of the published table; each of them is known to the axis.

    What the paper does not have stands behind the label that it stands behind in the spec.
    """
    labels: dict[str, list[str]] = {}
    for axis in axes:
        known = grid.known[axis]
        in_print = list(dict.fromkeys(row.labels[axis] for row in published))
        for row in published:
            label = row.labels[axis]
            if label not in known:
                hint = did_you_mean(label, known)
                raise UserError(f"{row.where}: {axis}: {show(label)} is no label of this axis{hint}")
        labels[axis] = [label for label in _merged(in_print, known) if label not in grid.left_out[axis]]
    return labels


def _merged(in_print: list[str], in_spec: list[str]) -> list[str]:
    merged = list(in_print)
    for before, label in zip([None, *in_spec], in_spec, strict=False):
        if label not in merged:
            merged.insert(merged.index(before) + 1 if before else 0, label)
    return merged
