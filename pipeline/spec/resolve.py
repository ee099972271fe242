"""Resolve a spec and a profile to runs and a table: as published (`paper`), or reduced to seconds (`smoke`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pflcore.errors import UserError
from pipeline.spec.catalog import Catalog
from pipeline.spec.grid import Points, expand, without_effect
from pipeline.spec.layout import check_choice, check_table, client_of, quantity_of, resolve_table
from pipeline.spec.patches import BASE, Patch, Patcher, as_patch
from pipeline.spec.run import COMPONENTS, LISTS, OPTIONAL, Run
from pipeline.spec.schema import TableSection
from pipeline.spec.specs import Spec
from pipeline.spec.table import ResolvedTable
from pipeline.spec.tuning import Selection, check_tuned, tune, tuned_as

_TRAINING = {"rounds": 3, "local_epochs": 1, "batch_size": 16}
_EVALUATION = {"every": 1, "window": 2, "curve_every": 1}
_MAX_LOCAL_STEPS = 3
_COHORT = 2
_SEEDS = 2  # seeds that are left; further seeds of a spec are mapped to these, so their runs are the same
_MIN_CLIENTS, _MAX_CLIENTS = 4, 8
_SAMPLES_PER_CLIENT = 40
_SAMPLES_PER_CLASS = 10


@dataclass(frozen=True)
class Resolved:
    """What a spec compiles to."""

    runs: list[Run]
    table: ResolvedTable
    selections: dict[str, Selection] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)  # digest of pretrained weights → path in the project
    idle: list[str] = field(default_factory=list)  # a line for each setting without effect


def resolve(spec: Spec, catalog: Catalog, profile: str = "paper") -> Resolved:
    """Return all distinct runs of a spec under a profile, in the order of the grid, and the table they fill.

    The spec is not abstract. The runs are always checked as published first, so that a profile cannot hide a mistake.
    Raises :class:`UserError` with the file, line and dotted address of the axis value, override or base at fault.
    """
    document, wanted = spec.document, spec.body.tune
    patcher = Patcher(document, catalog, spec.specs_dir.parent)
    grid = expand(spec.body.grid, patcher)
    published = [patcher.run(point.draft, "paper") for point in grid.points]
    axes = list(grid.labels)
    layout = spec.body.table or TableSection(caption="", rows=axes[:1], columns=axes[1:])
    check_table(layout, grid, published, document)
    if wanted:
        check_tuned(wanted, grid, published, document)
    _check_effects(spec, grid, published, layout)

    def change(run: Run) -> list[Patch]:
        return [as_patch(_smoke_patch(run.record, catalog), BASE)] if profile == "smoke" else []

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
    check_choice(layout, grid, [*published, *by_point], document)
    table = resolve_table(spec, profile, layout, grid, by_point, catalog)
    return Resolved(list(runs.values()), table, selections, patcher.weights, list(without_effect(grid, patcher)))


def _check_effects(spec: Spec, grid: Points, runs: list[Run], layout: TableSection) -> None:
    """Check that every axis has an effect, if only on tuning, and that no cell averages a run with itself."""
    effects: dict[str, dict[tuple[str, ...], list[object]]] = {axis: {} for axis in grid.labels}
    for point, run in zip(grid.points, runs, strict=True):
        at = point.labels
        effect = (run.id, client_of(layout.clients, at), repr(quantity_of(layout, at)), tuned_as(spec.body.tune, at))
        for axis, found in effects.items():
            found.setdefault(tuple(label for other, label in at.items() if other != axis), []).append(effect)
    for axis, found in effects.items():
        several = [(len(set(given)), len(given)) for given in found.values() if len(given) > 1]
        vain = several and all(distinct == 1 for distinct, _ in several)
        spec.document.check(not vain, ("grid", "axes", axis), "has no effect: its values give the same runs")
        twice = axis in layout.average_over and any(distinct < count for distinct, count in several)
        message = "is averaged over, but some of its values give the same run"
        spec.document.check(not twice, ("grid", "axes", axis), message)


def _smoke_patch(record: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """Return the patch that reduces a run of the `paper` profile to seconds on a CPU, on generated data.

    The options of an entry are reduced by its `smoke` attribute; this function reduces what all runs have.
    """
    entries = {kind: catalog.entry(kind, (record.get(kind) or OPTIONAL[kind])["name"]) for kind in COMPONENTS}
    patch: dict[str, Any] = {kind: dict(entry.smoke) for kind, entry in entries.items()}
    if record["backbone"].get("pretrained"):  # weights of a larger model, for data that are not used
        patch["backbone"]["pretrained"] = None
    if features := record["dataset"].get("features"):
        smaller = catalog.entry("backbone", features["backbone"]).smoke
        pretrain = {**features.get("pretrain", {}), "epochs": 1}
        own = {name: value for name, value in features.items() if name != "weights"}
        patch["dataset"]["features"] = {**own, **smaller, "pretrain": pretrain}
    classes = len(entries["dataset"].facts.get("class_names") or range(10))
    each = {**record["partition"], **patch["partition"]}.get("classes_per_client")
    clients = entries["partition"].facts.get("smoke_clients") or smoke_clients(record["clients"], each, classes)
    stand_in = max(_SAMPLES_PER_CLIENT * clients, _SAMPLES_PER_CLASS * classes)
    patch["seed"] = record["seed"] % _SEEDS
    if "seed" in record["partition"]:
        patch["partition"]["seed"] = record["partition"]["seed"] % _SEEDS
    patch["dataset"]["stand_in"] = min(stand_in, record["dataset"]["stand_in"] or stand_in)
    patch["clients"] = clients
    patch["training"] = {**_TRAINING, "sample_rate": min(1.0, _COHORT / clients)}
    if record["training"]["local_steps"]:
        patch["training"]["local_steps"] = min(record["training"]["local_steps"], _MAX_LOCAL_STEPS)
    patch["evaluation"] = {**_EVALUATION, "window": 0} if record["training"].get("patience") else _EVALUATION
    for field_, kind in LISTS.items():
        patch[field_] = []
        for own in record.get(field_, ()):
            info = catalog.entry(kind, own["name"])
            about = info.facts.get("client_options", ())  # options that list clients: keep those that there are
            left = {option: [client for client in own[option] if client < clients] or [0] for option in about}
            patch[field_].append({**own, **left, **info.smoke})
    return patch


def smoke_clients(clients: int, classes_per_client: int | None, classes: int) -> int:
    """Return a small number of clients that a partition by classes can still deal evenly to, if there is one.

    With `classes_per_client`, a reduced number times `classes_per_client` is a multiple of `classes`.
    """
    if classes_per_client is None or clients <= _MAX_CLIENTS:
        return min(clients, _MAX_CLIENTS)
    even = (few for few in range(_MIN_CLIENTS, clients) if few * classes_per_client % classes == 0)
    return next(even, clients)
