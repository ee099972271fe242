"""What training settings do to clients' steps, against PyTorch's optimisers, schedulers and plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from support.by_hand import SEED, Rounds
from support.tiers import six_of
from support.tiny import (
    CLASSES,
    EVERY_ROUND,
    EXECUTORS,
    assert_states_close,
    backbone,
    create,
    federation,
    first_fitting,
    method,
    normalised,
    run,
    run_by_all,
    training,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from pflcore.engine import Result
from pflcore.engine.client import Trainer, balanced, differentiate
from pflcore.engine.forward import use_precision
from pflcore.engine.optimizers import learning_rate, make_optimizer
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView, Phase, cross_entropy
from pflcore.methods.simple import FedAvg

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
NESTEROV = {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01}
ADAM = {"optimizer": "adam", "weight_decay": 0.1, "lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-4}
ADAMW = {**ADAM, "optimizer": "adamw", "weight_decay": 0.5}
BY_HAND: dict[str, tuple[dict[str, Any], Make]] = {
    "nesterov": (NESTEROV, lambda p: torch.optim.SGD(p, 0.05, momentum=0.8, nesterov=True, weight_decay=0.01)),
    "adamw, clipped": ({**ADAMW, "clip": 0.1}, lambda p: torch.optim.AdamW(p, 0.01, (0.8, 0.95), 1e-4, 0.5)),
    "never clipped": ({"momentum": 0.5, "clip": 50.0}, lambda p: torch.optim.SGD(p, 0.05, momentum=0.5)),
    "by round": ({"schedule": "cosine", "lr": 0.2}, lambda p: torch.optim.SGD(p, 0.2)),
    "by step": ({"schedule": "cosine", "schedule_by": "step", "lr": 0.2}, lambda p: torch.optim.SGD(p, 0.2)),
    "class weights": ({"class_weights": "balanced"}, lambda p: torch.optim.SGD(p, 0.05)),
    "flipped": ({"augment_flip": 1.0}, lambda p: torch.optim.SGD(p, 0.05)),
}


def by_sklearn(labels: np.ndarray) -> Tensor:
    present = np.unique(labels)
    weights = np.zeros(CLASSES, np.float32)
    weights[present] = compute_class_weight("balanced", classes=present, y=labels)
    return torch.from_numpy(weights)


@pytest.mark.parametrize("name", BY_HAND)
def test_rounds_of_one_client_are_those_by_hand(name: str) -> None:
    """Each with an optimiser made anew; what is measured is neither weighted nor flipped."""
    options, make = BY_HAND[name]
    settings = training(rounds=3, sample_rate=1.0, **options)
    hand = Rounds("convnet", settings, federation((9,), (4,)))
    labels = hand.labels(hand.data.train[0]).numpy()
    weights = by_sklearn(labels) if settings.class_weights == "balanced" else None
    for round_, _ in hand:
        optimizer, steps = make(hand.lend(hand.x).parameters()), hand.rows(0, round_)
        for step, rows in enumerate(steps):
            if settings.schedule == "cosine":
                done = round_ - 1 + (step / len(steps) if settings.schedule_by == "step" else 0)
                optimizer.param_groups[0]["lr"] = settings.lr / 2 * (1 + math.cos(math.pi * done / 3))
            images = normalised(hand.data, rows)
            optimizer.zero_grad()
            logits = hand.model(torch.flip(images, (-1,)) if settings.augment_flip else images)
            F.cross_entropy(logits, hand.labels(rows), weights).backward()
            if settings.clip:
                torch.nn.utils.clip_grad_norm_(hand.model.parameters(), settings.clip)
            optimizer.step()
        hand.x = hand.state()
    for executor in EXECUTORS:
        hand.check(hand.run("fedavg", executor), rtol=1e-4, atol=1e-5)


# --- optimisers ------------------------------------------------------------------------------------------------------

MOMENTA = {"momentum": 0.7, "weight_decay": 0.3}
STEPS: dict[str, tuple[dict[str, Any], Make]] = {
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


EVERY = ["fedtp", "ditto", "fedrod", "fedproto", "fedkd", "fedbabu", "moon", "pfedhn", "pfedme"]
OTHERS: dict[str, dict[str, Any]] = {
    "nesterov": {**NESTEROV, "lr": 0.002},
    "adamw": {**ADAMW, "lr": 0.002},
    "schedule": {"warmup": 1, "schedule": "exponential", "gamma": 0.5},
    "augmentation": {"augment_crop": 2, "augment_flip": 0.5, "augment_rotation": 15.0},
    "class weights": {"class_weights": "balanced"},
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", six_of(EVERY))
def test_settings_act_in_methods_and_executors_agree(name: str, kind: str) -> None:
    """Where clients hold different numbers of samples."""
    entry, options = method(name), OTHERS[kind]
    net = first_fitting(entry)
    if kind in ("nesterov", "adamw") and entry.plain_sgd:
        with pytest.raises(UserError, match=rf"method {name}: its local steps are plain SGD's"):
            run(entry, net, training=training(**options))
        return
    if kind == "class weights" and name == "fedrod":
        return  # refused: test_a_loss_that_passes_over_them_is_refused
    first = run_by_all(entry, net, training=training(**options))
    plain = run(entry, net, training=training(lr=options.get("lr", 0.05)))
    assert not np.allclose(first.loss, plain.loss, rtol=1e-6)


@pytest.mark.parametrize("name", ["apfl", "per_fedavg", "fednova", "fedrep"])
def test_methods_of_plain_sgd_refuse_others(name: str) -> None:
    entry = method(name)
    with pytest.raises(UserError, match=rf"method {name}: its local steps are plain SGD's"):
        run(entry, first_fitting(entry), training=training(optimizer="adam"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nesterov": True}, "nesterov is a form of momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, "beta1 instead"),
        ({"schedule": "step", "step_every": 2}, r"needs training\.gamma"),
        ({"schedule": "exponential"}, r"needs training\.gamma"),
        ({"schedule": "step", "gamma": 0.1}, r"either training\.milestones or training\.step_every"),
        ({"schedule": "step", "gamma": 0.1, "milestones": (1,), "step_every": 2}, r"either training\.milestones or"),
        ({"schedule": "step", "gamma": 0.1, "milestones": (5, 2)}, r"\[5, 2\] must ascend"),
        ({"precision": "fp16"}, r"Training.precision = 'fp16' must be one of"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        training(**options)


# --- learning rates --------------------------------------------------------------------------------------------------

ROUNDS, WARMUP = 11, 3
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
    with pytest.raises(UserError, match=r"method fednova: .* training\.schedule_by: step makes them others"):
        run(method("fednova"), backbone("convnet"), training=training(schedule="cosine", schedule_by="step"))


# --- class weights ---------------------------------------------------------------------------------------------------


def test_weights_are_scikit_learns() -> None:
    labels = np.array([0] * 7 + [1] * 2 + [3])
    counts = torch.tensor(np.bincount(labels, minlength=CLASSES)).float()
    torch.testing.assert_close(balanced(counts), by_sklearn(labels))


@dataclass(frozen=True, kw_only=True)
class OfItsOwn(FedAvg):
    """Has a loss that knows nothing of weights."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        return cross_entropy(local.forward(params, batch.inputs), batch.labels)


@pytest.mark.parametrize("entry", [method("fedrod"), OfItsOwn()], ids=["fedrod", "of its own"])
def test_a_loss_that_passes_over_them_is_refused(entry: FedAvg) -> None:
    with pytest.raises(UserError, match=r"does not go with training\.class_weights: none of its losses is a local"):
        run(entry, first_fitting(entry), training=training(class_weights="balanced"))


# --- local steps -----------------------------------------------------------------------------------------------------


def trainer(**changes: object) -> Trainer:
    model, groups = create(backbone("convnet"), SEED)
    return make_trainer(model, groups, federation(), method("fedavg"), training(**changes), SEED)


def test_each_step_draws_from_all_samples() -> None:
    made = trainer(local_steps=40, batch_size=5)
    batches = made.batches(1, 0)
    assert made.steps(0) == 40 and [len(batch) for batch in batches] == [5] * 40
    assert all(len(set(batch.tolist())) == 5 for batch in batches)  # without putting back within a batch
    drawn = torch.cat(batches).tolist()
    assert set(drawn) == set(made.data.train[0].tolist())
    assert len(set(drawn[:15])) < 15  # but not within what would be an epoch: 14 samples
    few = trainer(local_steps=3, batch_size=64)
    assert [sorted(batch.tolist()) for batch in few.batches(1, 1)] == [sorted(few.data.train[1].tolist())] * 3


@dataclass(frozen=True, kw_only=True)
class WildlyTuned(FedAvg):
    def tuning(self) -> Phase:
        return Phase(FedAvg(), epochs=2, lr=1e20)


def test_a_divergence_in_tuning_is_told() -> None:
    result = run(WildlyTuned(), backbone("convnet"), evaluation=EVERY_ROUND)
    assert result.diverged and result.diverged.round == 1 and len(result.round) == 0


def test_a_module_can_be_personal_as_a_group_can() -> None:
    result = run(FedAvg(also_personal=("blocks.1",)), backbone("tiny_vit"))
    own = {name.split(".", 2)[2] for name in result.weights if name.startswith("client.")}
    assert own and all(name.startswith("blocks.1.") for name in own)
    with pytest.raises(UserError, match=r"no parameter group 'blocks\.7'"):
        run(FedAvg(also_personal=("blocks.7",)), backbone("tiny_vit"))


@pytest.mark.parametrize(("base", "strength"), [("fedprox", "mu"), ("ditto", "lam")])
def test_what_is_personal_is_not_held_near_anything(base: str, strength: str) -> None:
    """A client's own head moves as it would without the term, in the first step of the first round."""
    settings = training(rounds=1, local_steps=2, batch_size=64, lr=1e-3)
    entries = [method(base, also_personal=("head",), **{strength: value}) for value in (0.0, 500.0)]
    free, held = (run(entry, backbone("convnet"), training=settings).weights for entry in entries)
    for name in (name for name in free if "head" in name):
        torch.testing.assert_close(free[name], held[name], atol=1e-4, rtol=1e-3)


def test_what_has_no_influence_has_a_gradient_of_zero() -> None:
    params = {"used": torch.tensor([2.0, -1.0]), "idle": torch.ones(2, 3)}
    slopes, value, aside = differentiate(lambda given: (given["used"].square().sum(), {"seen": given["idle"]}), params)
    assert list(slopes) == ["used", "idle"] and float(value.detach()) == 5
    assert slopes["used"].tolist() == [4, -2] and torch.equal(slopes["idle"], torch.zeros(2, 3))
    assert torch.equal(aside["seen"].detach(), params["idle"]) and not params["used"].requires_grad


# --- precision -------------------------------------------------------------------------------------------------------


def trained(precision: str, executor: str = "sequential", net: str = "tiny_vit") -> Result:
    return run(method("fedper"), backbone(net), training=training(precision=precision), executor=executor)


@pytest.mark.parametrize("net", ["convnet", "tiny_vit"])
def test_bf16_is_close_to_fp32_but_not_the_same(net: str) -> None:
    half, full = trained("bf16", net=net), trained("fp32", net=net)
    assert not np.array_equal(half.loss, full.loss)
    np.testing.assert_allclose(half.loss, full.loss, rtol=0.1)
    for name, tensor in half.weights.items():
        assert tensor.dtype == full.weights[name].dtype
        torch.testing.assert_close(tensor, full.weights[name], rtol=0.1, atol=0.02)
    if net == "tiny_vit":
        np.testing.assert_allclose(trained("bf16", "stacked").loss, half.loss, rtol=0.02)
        assert np.array_equal(trained("tf32").loss, full.loss)  # on a CPU


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True), ("bf16", False)])
def test_switches_are_set_for_the_run_and_put_back(precision: str, allowed: bool) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    with pytest.raises(KeyError), use_precision(precision):
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (allowed, allowed)
        raise KeyError
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before
