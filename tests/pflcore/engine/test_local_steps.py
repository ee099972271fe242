"""Local steps instead of epochs, clipped gradients, and training before a measurement."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from support.tiny import (
    EVERY_ROUND,
    EXECUTORS,
    assert_states_close,
    backbone,
    batches,
    create,
    federation,
    method,
    normalised,
    run,
    training,
)
from torch.nn import functional as F

from pflcore.engine.parts import make_trainer
from pflcore.engine.trainer import Trainer, differentiate
from pflcore.errors import UserError
from pflcore.method import Tuning
from pflcore.methods.fedavg import FedAvg

SEED = 3


def trainer(**changes: object) -> Trainer:
    model, groups = create(backbone("convnet"), SEED)
    return make_trainer(model, groups, federation(), method("fedavg"), training(**changes), SEED)


def test_each_step_draws_from_all_samples() -> None:
    made = trainer(local_steps=40, batch_size=5)
    assert made.steps(0) == 40
    batches = made.batches(1, 0)
    assert [len(batch) for batch in batches] == [5] * 40
    assert all(len(set(batch.tolist())) == 5 for batch in batches)  # without putting back within a batch
    drawn = torch.cat(batches).tolist()
    assert set(drawn) == set(made.data.train[0].tolist())
    assert len(set(drawn[:15])) < 15  # but not within what would be an epoch: 14 samples


def test_a_client_of_few_samples_takes_steps_on_all_of_them() -> None:
    made = trainer(local_steps=3, batch_size=64)
    assert [sorted(batch.tolist()) for batch in made.batches(1, 1)] == [sorted(made.data.train[1].tolist())] * 3


@pytest.mark.parametrize("limit", [0.5, 50.0])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_clipping_is_pytorchs(executor: str, limit: float) -> None:
    """Against a plain loop with ``clip_grad_norm_``; one limit is exceeded by gradients, the other one never."""
    data, settings = federation((9,), (4,)), training(rounds=1, clip=limit, momentum=0.5, sample_rate=1.0)
    result = run(method("fedavg"), backbone("convnet"), data, training=settings, seed=SEED, executor=executor)
    model, _ = create(backbone("convnet"), SEED)
    start = copy.deepcopy(model.state_dict())
    sgd = torch.optim.SGD(model.parameters(), settings.lr, momentum=0.5)
    norms = []
    for rows in batches(data, 0, 1, settings, SEED):
        sgd.zero_grad()
        F.cross_entropy(model(normalised(data, rows)), data.labels[rows]).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit)))
        sgd.step()
    assert (max(norms) > limit) == (limit < 1) and not all(
        torch.equal(start[name], result.weights[name]) for name in start
    )
    assert_states_close({name: result.weights[name] for name in start}, dict(model.state_dict()))


# --- tuning --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WildlyTuned(FedAvg):
    def tuning(self) -> Tuning:
        return Tuning(FedAvg(), epochs=2, lr=1e20)


def test_a_divergence_in_tuning_is_told() -> None:
    result = run(WildlyTuned(), backbone("convnet"), evaluation=EVERY_ROUND)
    assert result.diverged and result.diverged.round == 1 and len(result.round) == 0


# --- composition ---------------------------------------------------------------------------------------------------


def test_a_module_can_be_personal_as_a_group_can() -> None:
    result = run(FedAvg(also_personal=("blocks.1",)), backbone("tiny_vit"))
    own = {name.split(".", 2)[2] for name in result.weights if name.startswith("client.")}
    assert own and all(name.startswith("blocks.1.") for name in own)
    with pytest.raises(UserError, match=r"no parameter group 'blocks\.7'"):
        run(FedAvg(also_personal=("blocks.7",)), backbone("tiny_vit"))


@pytest.mark.parametrize("base", ["fedprox", "ditto"])
def test_what_is_personal_is_not_held_near_anything(base: str) -> None:
    """A client's own head moves as it would without the term, in the first step of the first round."""
    strength = {"fedprox": "mu", "ditto": "lam"}[base]
    settings = training(rounds=1, local_steps=2, batch_size=64, lr=1e-3)
    moved = {}
    for value in (0.0, 500.0):
        result = run(method(base, also_personal=("head",), **{strength: value}), backbone("convnet"), training=settings)
        moved[value] = {name: tensor for name, tensor in result.weights.items() if "head" in name}
    for (name, free), held in zip(moved[0.0].items(), moved[500.0].values(), strict=True):
        torch.testing.assert_close(free, held, atol=1e-4, rtol=1e-3, msg=lambda text, name=name: name + text)


def test_what_has_no_influence_has_a_gradient_of_zero() -> None:
    params = {"used": torch.tensor([2.0, -1.0]), "idle": torch.ones(2, 3)}
    slopes, value, aside = differentiate(lambda given: (given["used"].square().sum(), {"seen": given["idle"]}), params)
    assert list(slopes) == ["used", "idle"] and float(value.detach()) == 5
    assert slopes["used"].tolist() == [4, -2] and torch.equal(slopes["idle"], torch.zeros(2, 3))
    assert torch.equal(aside["seen"].detach(), params["idle"]) and not params["used"].requires_grad
