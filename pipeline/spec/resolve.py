"""Resolve a spec and a profile to runs and a table: as published (`paper`), or reduced to seconds (`smoke`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pflcore.errors import UserError
from pipeline.spec.catalog import Catalog
from pipeline.spec.grid import Points, expand, ineffective_settings
from pipeline.spec.layout import check_choice, check_table, client_of, quantity_of, resolve_table
from pipeline.spec.patches import BASE, Patch, Patcher, as_patch
from pipeline.spec.run import COMPONENTS, LISTS, OPTIONAL, Run
from pipeline.spec.schema import TableSection
from pipeline.spec.specs import Spec
from pipeline.spec.table import ResolvedTable
from pipeline.spec.tuning import Selection, applied_overrides, check_tuned, tune

_TRAINING = {"rounds": 3, "local_epochs": 1, "batch_size": 16}
_EVALUATION = {"every": 1, "window": 2, "curve_every": 1}
_MAX_LOCAL_STEPS = 3
_COHORT = 2
_SEEDS = 2  # further seeds of a spec are mapped to the first ones, so their runs are the same
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
    ineffective: list[str] = field(default_factory=list)  # a line for each setting without effect


def resolve(spec: Spec, catalog: Catalog, profile: str = "paper") -> Resolved:
    """Return all distinct runs of a spec under a profile, in the order of the grid, and the table they fill.

    The spec is not abstract. The runs are always checked as published first, so that a profile cannot hide a mistake.
    Raises :class:`UserError` with the file, line and dotted address of the axis value, override or base at fault.
    """
    document, tune_section = spec.document, spec.body.tune
    patcher = Patcher(document, catalog, spec.specs_dir.parent)
    grid = expand(spec.body.grid, patcher)
    published = [patcher.run(point.draft, "paper") for point in grid.points]
    axes = list(grid.labels)
    layout = spec.body.table or TableSection(caption="", rows=axes[:1], columns=axes[1:])
    check_table(layout, grid, published, document)
    if tune_section:
        check_tuned(tune_section, grid, published, document)
    _check_effects(spec, grid, published, layout)

    def change(run: Run) -> list[Patch]:
        return [as_patch(_smoke_patch(run.record, catalog), BASE)] if profile == "smoke" else []

    drafts = [[*point.draft, *change(run)] for point, run in zip(grid.points, published, strict=True)]
    by_point = published if profile == "paper" else [patcher.run(draft, profile) for draft in drafts]
    selections: dict[str, Selection] = {}
    if tune_section:
        by_point, selections = tune(tune_section, grid, drafts, by_point, change, patcher)
    trials = [run for selection in selections.values() for trial in selection.trials for run in trial.runs]
    runs: dict[str, Run] = {}
    for run in (*by_point, *trials):
        if runs.setdefault(run.id, run) != run:
            raise UserError(f"{document.mark(())}: two different runs have the id {run.id}; change a seed")
    check_choice(layout, grid, [*published, *by_point], document)
    table = resolve_table(spec, profile, layout, grid, by_point, catalog)
    return Resolved(list(runs.values()), table, selections, patcher.weights, list(ineffective_settings(grid, patcher)))


def _check_effects(spec: Spec, grid: Points, runs: list[Run], layout: TableSection) -> None:
    """Check that every axis has an effect, if only on tuning, and that no cell averages a run with itself."""
    effects: dict[str, dict[tuple[str, ...], list[object]]] = {axis: {} for axis in grid.labels}
    for point, run in zip(grid.points, runs, strict=True):
        labels = point.labels
        client, quantity = client_of(layout.clients, labels), repr(quantity_of(layout, labels))
        effect = (run.id, client, quantity, applied_overrides(spec.body.tune, labels))
        for axis, groups in effects.items():
            groups.setdefault(tuple(label for other, label in labels.items() if other != axis), []).append(effect)
    for axis, groups in effects.items():
        address = ("grid", "axes", axis)
        counts = [(len(set(group)), len(group)) for group in groups.values() if len(group) > 1]
        ineffective = counts and all(distinct == 1 for distinct, _ in counts)
        spec.document.check(not ineffective, address, "has no effect: its values give the same runs")
        repeated = axis in layout.average_over and any(distinct < count for distinct, count in counts)
        spec.document.check(not repeated, address, "is averaged over, but some of its values give the same run")


def _smoke_patch(record: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """Return the patch that reduces a run of the `paper` profile to seconds on a CPU, on generated data.

    The options of an entry are reduced by its `smoke` attribute; this function reduces what all runs have.
    """
    entries = {kind: catalog.entry(kind, (record.get(kind) or OPTIONAL[kind])["name"]) for kind in COMPONENTS}
    patch: dict[str, Any] = {kind: dict(entry.smoke) for kind, entry in entries.items()}
    if record["backbone"].get("pretrained"):  # weights of a larger model, for data that are not used
        patch["backbone"]["pretrained"] = None
    if features := record["dataset"].get("features"):
        pretrain = {**features.get("pretrain", {}), "epochs": 1}
        reduced = {**features, **catalog.entry("backbone", features["backbone"]).smoke, "pretrain": pretrain}
        reduced.pop("weights", None)
        patch["dataset"]["features"] = reduced
    classes = len(entries["dataset"].facts.get("class_names") or range(10))
    per_client = {**record["partition"], **patch["partition"]}.get("classes_per_client")
    clients = entries["partition"].facts.get("smoke_clients") or smoke_clients(record["clients"], per_client, classes)
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
        for entry in record.get(field_, ()):
            info = catalog.entry(kind, entry["name"])
            reduced = dict(entry)
            for option in info.facts.get("client_options", ()):  # a list of clients
                reduced[option] = [client for client in entry[option] if client < clients] or [0]
            patch[field_].append({**reduced, **info.smoke})
    return patch


def smoke_clients(clients: int, classes_per_client: int | None, classes: int) -> int:
    """Return a small number of clients that a partition by classes can still assign classes to evenly, if there is one.

    With `classes_per_client`, a reduced number times `classes_per_client` is a multiple of `classes`.
    """
    if classes_per_client is None or clients <= _MAX_CLIENTS:
        return min(clients, _MAX_CLIENTS)
    even = (count for count in range(_MIN_CLIENTS, clients) if count * classes_per_client % classes == 0)
    return next(even, clients)
