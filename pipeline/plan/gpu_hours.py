"""How long runs would take on a GPU, from the multiply-adds of their models: a floor for planning, not a promise."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch

from pflcore.backbones import BACKBONES
from pflcore.engine.cost import operations
from pflcore.errors import UserError
from pipeline.plan.estimate import dataset_of, held, visits
from pipeline.spec.run import Run

_CLASSES = 10  # of a dataset of which only the data tell


def gpu_hours(runs: Iterable[Run], tflops: float) -> float:
    """Hours that training and measuring takes at a sustained speed.

    A sample visit is a forward pass and a backward pass of twice its cost; a measurement is a forward pass over the
    test samples of all clients. Methods that take several gradients per step need more, and small models do not reach
    the speed of a GPU.

    Args:
        tflops: 10¹² floating-point operations per second.
    """
    forward: dict[str, int] = {}
    total = 0.0
    for run in runs:
        key = json.dumps([run.record["backbone"], run.record["dataset"]], sort_keys=True)
        if key not in forward:
            forward[key] = forward_macs(run)
        tested = held(run)[1] * len(run.evaluation.due(run.training.rounds))
        total += 2 * forward[key] * (3 * visits(run) + tested)
    return total / (tflops * 1e12) / 3600


def forward_macs(run: Run) -> int:
    """Multiply-adds of one forward pass per sample; 0 when the model does not fit the data, which training will say."""
    dataset = dataset_of(run)
    try:
        backbone: Any = BACKBONES.create(run.backbone, **run.options("backbone"))
        model, _ = backbone.create(dataset.shape, dataset.classes or _CLASSES, 0)
    except UserError:
        return 0
    text = len(dataset.shape) == 1
    inputs = torch.zeros((1, *dataset.shape), dtype=torch.long if text else torch.float32)
    with torch.no_grad(), operations() as counted:
        model.eval()(inputs)
    return int(counted.flops // 2)
