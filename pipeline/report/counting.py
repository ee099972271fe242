"""The costs of a run that are known before training, counted on its model, method and settings.

This module imports torch, so others load it by name, and only when they need a count.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from pflcore.backbones import BACKBONES
from pflcore.backbones._base import Backbone
from pflcore.data.federation import FederatedData
from pflcore.data.samples import ARRAYS, TEXT
from pflcore.datasets import DATASETS
from pflcore.engine.cost import count, operations, step_macs
from pflcore.engine.encoder import Encoder
from pflcore.engine.run import RunState
from pflcore.errors import UserError
from pflcore.files import parse_json
from pflcore.groups import pick
from pflcore.method import Method
from pflcore.methods import METHODS
from pipeline.spec.metrics import BACKBONE
from pipeline.spec.run import Run, canonical_json


def count_run(run: Run, *, flops: Collection[str]) -> dict[str, float]:
    """Return each quantity with the source ``plan`` by name, and ``backbone``: parameters without the method.

    Operations take long to count, so only those in `flops` are. ``sent`` is left out if it is decided in training; all
    are, if classes or size are unknown before data are read. Raises :class:`UserError` if the method does not fit.
    """
    with suppress(Exception):  # shapes without numbers may not suffice for a module of a user
        return _count(run, flops, torch.device("meta"))
    return _count(run, flops, torch.device("cpu"))


def _count(run: Run, flops: Collection[str], device: torch.device) -> dict[str, float]:
    data = placeholder_data(run, device)
    if data is None:
        return {}
    training = replace(run.training, patience=None)
    method = METHODS.create(run.method, **run.options("method"))
    backbone = BACKBONES.create(run.backbone, **run.options("backbone"))
    with torch.random.fork_rng(devices=[]), device:
        state = RunState(data, backbone, method, training, run.evaluation, 0, None)
    of_model = {name: state.initial[name] for name in state.groups.parameters}
    exchanged = pick(state.client_state, state.roles.shared | state.roles.generated)
    counts = {
        "parameters": count(of_model),
        "shared": count(pick(of_model, exchanged)),
        "personal": count(pick(of_model, state.roles.personal)),
        "stored": count(state.initial_personal) + count(exchanged),
        **({"sent": count(exchanged)} if type(method).traffic is Method.traffic else {}),
        BACKBONE: _parameters(backbone, data.shape, data.classes, data.kind, device),
    }
    if "step_flops" in flops:
        counts["step_flops"] = 2 * step_macs(state.trainer, state.subject(None).state(0)) * training.batch_size
    if "forward_flops" in flops:
        measured, inputs = state.subject(None).measured(0), data.batch(data.train[0][:1]).inputs
        state.model.eval()
        with operations() as forward, torch.no_grad():
            state.trainer.predict(measured, inputs)
        counts["forward_flops"] = forward.flops
    return {name: float(number) for name, number in counts.items()}


def placeholder_data(run: Run, device: torch.device | None = None) -> FederatedData | None:
    """Return the run's clients with the same five zero samples; None if classes or size are unknown without data."""
    device, chosen = device or torch.device("cpu"), run.options("dataset")
    stand_in = chosen.pop("stand_in", None)
    dataset = DATASETS.create(run.dataset, **chosen)
    classes = dataset.classes or (10 if stand_in else 0)
    if not classes or not all(dataset.shape):
        return None
    is_text, rows = dataset.kind == TEXT, np.arange(5)
    dtype = np.float32 if dataset.kind == ARRAYS else np.uint8
    zeros = np.zeros((5, dataset.shape[0] + 1) if is_text else (5, *dataset.shape), dtype)
    client_rows = [rows] * run.record.get("clients", 1)  # the record of an encoder's data has no clients
    mean, std = dataset.normalisation
    if run.features:
        zeros, mean, std = np.zeros((5, _width(canonical_json(run.data))), np.float32), (), ()
    data = FederatedData.from_arrays(zeros, rows % classes, client_rows, client_rows, mean, std, classes, device)
    if run.features:
        return data
    return replace(data, boxes=torch.full((5, 1, 6), -1.0, device=device)) if dataset.detects else data


@cache  # many methods share a backbone
def _parameters(backbone: Backbone, shape: tuple[int, ...], classes: int, kind: str, device: torch.device) -> int:
    """Return the number of trained parameters of a backbone alone."""
    with torch.random.fork_rng(devices=[]), device:
        plain, groups = backbone.create(shape, classes, 0, kind=kind)
    return count(pick(plain.state_dict(), groups.parameters))


@cache  # one encoder serves many methods
def _width(record: str) -> int:
    """Return the number of features of the encoder in a dataset's record. Raises :class:`UserError` on a misfit."""
    run = Run(parse_json(record))
    name, options = run.encoder
    try:
        data = placeholder_data(run.unencoded)
        assert data  # the size of samples is known here
        return int(Encoder(BACKBONES.create(name, **options), data).encode(data.train[0][:1]).shape[1])
    except UserError as error:
        raise UserError(f"features: {error}") from None
