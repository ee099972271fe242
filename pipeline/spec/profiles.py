"""Profiles: the same spec as published (`paper`), or shrunk to seconds (`smoke`)."""

from __future__ import annotations

from typing import Any

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.catalog import Catalog
from pipeline.spec.run import COMPONENTS, LISTS

PROFILES = ("paper", "smoke")

_TRAINING = {"rounds": 3, "local_epochs": 1, "batch_size": 16}
_EVALUATION = {"every": 1, "window": 2, "curve_every": 1}
_MAX_LOCAL_STEPS = 3
_COHORT = 2
_SEEDS = 2  # of as many as there are; labels beyond them stand for the same runs
_MIN_CLIENTS, _MAX_CLIENTS = 4, 8
_SAMPLES_PER_CLIENT = 40
_SAMPLES_PER_CLASS = 10


def check_profile(profile: str) -> None:
    """Raise :class:`UserError` for a profile that there is not."""
    if profile not in PROFILES:
        raise UserError(f"unknown profile {profile!r}{did_you_mean(profile, list(PROFILES))}")


def smoke_patch(record: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """Return what shrinks a run of the `paper` profile so that it ends in seconds on a CPU, on generated data.

    Every entry shrinks itself as its `smoke` attribute says; what is common to all runs is shrunk here.
    """
    entries = {kind: catalog.entry(kind, record[kind]["name"]) for kind in COMPONENTS}
    patch: dict[str, Any] = {kind: dict(entry.smoke) for kind, entry in entries.items()}
    if record["backbone"].get("pretrained"):  # of a model that is larger, for data that are not there
        patch["backbone"]["pretrained"] = None
    classes = len(entries["dataset"].facts.get("class_names") or range(10))
    each = {**record["partition"], **patch["partition"]}.get("classes_per_client")
    clients = entries["partition"].facts.get("smoke_clients") or smoke_clients(record["clients"], each, classes)
    stand_in = max(_SAMPLES_PER_CLIENT * clients, _SAMPLES_PER_CLASS * classes)
    patch["seed"] = record["seed"] % _SEEDS
    patch["dataset"]["stand_in"] = min(stand_in, record["dataset"]["stand_in"] or stand_in)
    patch["clients"] = clients
    patch["training"] = {**_TRAINING, "sample_rate": min(1.0, _COHORT / clients)}
    if record["training"]["local_steps"]:
        patch["training"]["local_steps"] = min(record["training"]["local_steps"], _MAX_LOCAL_STEPS)
    patch["evaluation"] = {**_EVALUATION, "window": 0} if record["training"].get("patience") else _EVALUATION
    for field, kind in LISTS.items():
        patch[field] = []
        for own in record.get(field, ()):
            info = catalog.entry(kind, own["name"])
            about = info.facts.get("client_options", ())  # options that list clients, of which some are left
            left = {option: [client for client in own[option] if client < clients] or [0] for option in about}
            patch[field].append({**own, **left, **info.smoke})
    return patch


def smoke_clients(clients: int, classes_per_client: int | None, classes: int) -> int:
    """Return a small number of clients, with which a partition by classes can still be dealt out evenly.

    That is, where `classes_per_client` is given: ``clients * classes_per_client`` is a multiple of `classes`.
    """
    if classes_per_client is None or clients <= _MAX_CLIENTS:
        return min(clients, _MAX_CLIENTS)
    even = (few for few in range(_MIN_CLIENTS, clients) if few * classes_per_client % classes == 0)
    return next(even, clients)
