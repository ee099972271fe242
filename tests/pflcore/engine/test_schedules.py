"""Learning rates over rounds and steps, against PyTorch's schedulers and rounds by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny import (
    EXECUTORS,
    assert_states_close,
    backbone,
    batches,
    create,
    federation,
    first_fitting,
    method,
    normalised,
    run,
    run_by_all,
    training,
)
from torch.nn import functional as F
from torch.optim import lr_scheduler

from pflcore.engine.schedules import learning_rate
from pflcore.errors import UserError

SEED, ROUNDS, WARMUP = 3, 11, 3
Scheduler = Callable[[torch.optim.Optimizer, int], lr_scheduler.LRScheduler]
SCHEDULES: dict[str, tuple[dict[str, Any], Scheduler]] = {
    "constant": ({}, lambda sgd, rounds: lr_scheduler.ConstantLR(sgd, 1.0)),
    "cosine": (
        {"schedule": "cosine", "lr_min": 0.01},
        lambda sgd, rounds: lr_scheduler.CosineAnnealingLR(sgd, rounds, 0.01),
    ),
    "linear": ({"schedule": "linear"}, lambda sgd, rounds: lr_scheduler.LinearLR(sgd, 1.0, 0.0, rounds)),
    "step": (
        {"schedule": "step", "milestones": (2, 5), "gamma": 0.1},
        lambda sgd, rounds: lr_scheduler.MultiStepLR(sgd, [2, 5], 0.1),
    ),
    "every so many": (
        {"schedule": "step", "step_every": 2, "gamma": 0.5},
        lambda sgd, rounds: lr_scheduler.StepLR(sgd, 2, 0.5),
    ),
    "exponential": (
        {"schedule": "exponential", "gamma": 0.9},
        lambda sgd, rounds: lr_scheduler.ExponentialLR(sgd, 0.9),
    ),
}


@pytest.mark.parametrize("warmup", [0, WARMUP])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR's own use of it
def test_rates_are_pytorchs(name: str, warmup: int) -> None:
    options, make = SCHEDULES[name]
    settings = training(rounds=ROUNDS, lr=0.3, warmup=warmup, **options)
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.3)
    scheduler = make(sgd, ROUNDS - warmup)
    if warmup:
        sgd.param_groups[0]["lr"] = 0.3
        rising = lr_scheduler.LinearLR(sgd, 1 / (warmup + 1), 1.0, warmup)
        scheduler = lr_scheduler.SequentialLR(sgd, [rising, scheduler], [warmup])
    expected = []
    for _ in range(ROUNDS):
        expected.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    assert [learning_rate(settings, done) for done in range(ROUNDS)] == pytest.approx(expected)


def test_rates_within_rounds_pass_through_those_of_rounds_and_never_jump() -> None:
    settings = training(rounds=ROUNDS, lr=0.3, warmup=WARMUP, schedule="cosine")
    fine = np.array([learning_rate(settings, done / 100) for done in range(100 * ROUNDS)])
    assert fine[::100].tolist() == [learning_rate(settings, done) for done in range(ROUNDS)]
    assert np.abs(np.diff(fine)).max() < 0.3 / 100 and len(np.unique(fine[: 100 * WARMUP])) == 100 * WARMUP


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("by", ["round", "step"])
def test_rounds_are_those_by_hand(by: str, executor: str) -> None:
    """One client, 3 rounds of 4 steps: cosine's closed form, of whole rounds or of steps."""
    data = federation((9,), (4,))
    settings = training(rounds=3, sample_rate=1.0, lr=0.2, momentum=0.5, schedule="cosine", schedule_by=by)
    result = run(method("fedavg"), backbone("convnet"), data, training=settings, seed=SEED, executor=executor)
    model, _ = create(backbone("convnet"), SEED)
    start = copy.deepcopy(model.state_dict())
    for round_ in (1, 2, 3):
        sgd = torch.optim.SGD(model.parameters(), 0.2, momentum=0.5)
        for step, rows in enumerate(batches(data, 0, round_, settings, SEED)):
            done = round_ - 1 + (step / 4 if by == "step" else 0)
            sgd.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * done / 3))
            sgd.zero_grad()
            F.cross_entropy(model(normalised(data, rows)), data.labels[rows]).backward()
            sgd.step()
    assert_states_close({key: result.weights[key] for key in start}, dict(model.state_dict()), atol=1e-5)


@pytest.mark.parametrize("name", ["fedtp", "ditto", "pfedme", "fedkd"])
def test_methods_follow_a_schedule_alike(name: str) -> None:
    """Where clients hold different numbers of samples, in each executor."""
    entry = method(name)
    net = first_fitting(entry)
    options = {"warmup": 1, "schedule": "exponential", "gamma": 0.5, "rounds": 3}
    options |= {} if entry.plain_sgd else {"schedule_by": "step", "optimizer": "adam", "lr": 0.003}
    first = run_by_all(entry, net, training=training(**options))
    constant = run(entry, net, training=training(**options | {"schedule": "constant", "warmup": 0}))
    assert not np.allclose(first.loss, constant.loss, rtol=1e-6)


def test_one_rate_in_a_round_where_the_method_needs_it() -> None:
    settings = training(schedule="cosine", schedule_by="step")
    with pytest.raises(UserError, match=r"method fednova: .* training\.schedule_by: step makes them others"):
        run(method("fednova"), backbone("convnet"), training=settings)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"schedule": "step", "step_every": 2}, r"needs training\.gamma"),
        ({"schedule": "exponential"}, r"needs training\.gamma"),
        ({"schedule": "step", "gamma": 0.1}, r"either training\.milestones or training\.step_every"),
        ({"schedule": "step", "gamma": 0.1, "milestones": (1,), "step_every": 2}, r"either training\.milestones or"),
        ({"schedule": "step", "gamma": 0.1, "milestones": (5, 2)}, r"\[5, 2\] must ascend"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        training(**options)
