"""The clients' optimisers, against those of PyTorch."""

from __future__ import annotations

import copy
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

from pflcore.engine.optimizers import make_optimizer
from pflcore.errors import UserError

SEED = 3
NESTEROV = {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01}
ADAM = {"optimizer": "adam", "weight_decay": 0.1, "lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-4}
ADAMW = {**ADAM, "optimizer": "adamw", "weight_decay": 0.5}
MADE: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "nesterov": (NESTEROV, lambda p: torch.optim.SGD(p, 0.05, momentum=0.8, nesterov=True, weight_decay=0.01)),
    "adam": (ADAM, lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.95), 1e-4, 0.1)),
    "adamw": (ADAMW, lambda p: torch.optim.AdamW(p, 0.01, (0.8, 0.95), 1e-4, 0.5)),
    "adam by default": ({"optimizer": "adam", "lr": 0.002}, lambda p: torch.optim.Adam(p, 0.002)),
    "adamw, clipped": ({**ADAMW, "clip": 0.1}, lambda p: torch.optim.AdamW(p, 0.01, (0.8, 0.95), 1e-4, 0.5)),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", MADE)
def test_a_round_is_pytorchs(name: str, executor: str) -> None:
    """Two rounds of one client by hand, each with an optimiser made anew."""
    options, make = MADE[name]
    data, settings = federation((9,), (4,)), training(rounds=2, sample_rate=1.0, local_epochs=3, **options)
    result = run(method("fedavg"), backbone("convnet"), data, training=settings, seed=SEED, executor=executor)
    model, _ = create(backbone("convnet"), SEED)
    start = copy.deepcopy(model.state_dict())
    for round_ in (1, 2):
        optimizer = make(model.parameters())
        for rows in batches(data, 0, round_, settings, SEED):
            optimizer.zero_grad()
            F.cross_entropy(model(normalised(data, rows)), data.labels[rows]).backward()
            if settings.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
    assert_states_close({key: result.weights[key] for key in start}, dict(model.state_dict()), atol=1e-5)


MOMENTA = {"momentum": 0.7, "weight_decay": 0.3}
STEPS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "plain": ({}, lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (MOMENTA, lambda p: torch.optim.SGD(p, 0.1, momentum=0.7, weight_decay=0.3)),
    "clipped": ({**MOMENTA, "clip": 0.5}, lambda p: torch.optim.SGD(p, 0.1, momentum=0.7, weight_decay=0.3)),
    "nesterov": (NESTEROV, lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True, weight_decay=0.01)),
    "adam": (ADAM, lambda p: torch.optim.Adam(p, 0.1, (0.8, 0.95), 1e-4, 0.1)),
    "adamw": (ADAMW, lambda p: torch.optim.AdamW(p, 0.1, (0.8, 0.95), 1e-4, 0.5)),
}


@pytest.mark.parametrize("way", ["apart", "apart, the rate a tensor", "in place"])
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_pytorchs(name: str, way: str) -> None:
    """Four steps on gradients of uneven sizes, in double precision; what must not be overwritten is not."""
    options, make = STEPS[name]
    optimizer, draw = make_optimizer(training(**options)), torch.Generator().manual_seed(5)
    params = {key: torch.randn(shape, generator=draw, dtype=torch.float64) for key, shape in (("a", (3, 2)), ("b", 4))}
    leaves = {key: torch.nn.Parameter(tensor.clone()) for key, tensor in params.items()}
    theirs, state = make(leaves.values()), {}
    for scale in (1.0, 0.01, 3.0, 0.2):
        slopes = {key: scale * torch.randn(leaf.shape, generator=draw).double() for key, leaf in leaves.items()}
        for key, leaf in leaves.items():
            leaf.grad = slopes[key].clone()
        if "clip" in options:
            torch.nn.utils.clip_grad_norm_(leaves.values(), options["clip"])
        theirs.step()
        if way == "in place":
            params, state = optimizer.apply_in_place(params, slopes, state, 0.1)
        else:
            before = {key: tensor.clone() for key, tensor in params.items()}
            given, held = params, {key: tensor.clone() for key, tensor in state.items()}
            rate = torch.tensor(0.1, dtype=torch.float64) if "tensor" in way else 0.1
            params, moved = optimizer.apply(given, slopes, state, rate)
            assert_states_close(given, before, atol=0)
            assert_states_close(state, held, atol=0)
            state = moved
        assert_states_close(params, {key: leaf.detach() for key, leaf in leaves.items()}, atol=1e-7)


@pytest.mark.parametrize("options", [NESTEROV, ADAM, ADAMW], ids=["nesterov", "adam", "adamw"])
@pytest.mark.parametrize("name", ["fedtp", "ditto", "fedrod", "fedproto", "fedkd", "fedbabu", "moon", "pfedhn"])
def test_methods_take_any_optimizer(name: str, options: dict[str, Any]) -> None:
    """What executors obtain agrees, where clients hold different numbers of samples, and differs from plain SGD's."""
    entry = method(name)
    net = first_fitting(entry)
    options = {**options, "lr": 0.002}
    first = run_by_all(entry, net, training=training(**options))
    plain = run(entry, net, training=training(lr=0.002))
    assert not np.allclose(first.loss, plain.loss, rtol=1e-6)


@pytest.mark.parametrize("name", ["pfedme", "apfl", "per_fedavg", "fednova", "fedrep"])
@pytest.mark.parametrize("options", [{"optimizer": "adam"}, {"momentum": 0.9, "nesterov": True}])
def test_methods_of_plain_sgd_refuse_others(name: str, options: dict[str, Any]) -> None:
    entry = method(name)
    with pytest.raises(UserError, match=rf"method {name}: its local steps are plain SGD's"):
        run(entry, first_fitting(entry), training=training(**options))


@pytest.mark.parametrize(
    ("options", "why"),
    [({"nesterov": True}, "nesterov is a form of momentum"), ({"optimizer": "adam", "momentum": 0.9}, "beta1 instead")],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        training(**options)
