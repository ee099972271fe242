"""What settings do to clients' and server's steps, against PyTorch's optimisers, schedulers and plain loops."""

import math

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from support import tiny
from support.by_hand import SEED, Rounds
from support.tiny import CLASSES, EXECUTORS, backbone, federation, method, normalised, result_bytes, run, training
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, lr_scheduler

from pflcore.engine.client import balanced
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.forward import use_precision
from pflcore.engine.optimizers import learning_rate
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.method import cross_entropy
from pflcore.methods.simple import FedAvg

MOMENTUM = {"momentum": 0.8, "weight_decay": 0.1}
ADAM = {"weight_decay": 0.1, "lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-4}
BY_STEP = {"schedule": "cosine", "schedule_by": "step", "lr": 0.2}
ROUNDS = {
    "clipped": ({**MOMENTUM, "clip": 0.5}, lambda p, lr: SGD(p, lr, 0.8, weight_decay=0.1)),
    "nesterov": ({**MOMENTUM, **BY_STEP, "nesterov": True}, lambda p, lr: SGD(p, lr, 0.8, 0, 0.1, nesterov=True)),
    "adam": ({**ADAM, "optimizer": "adam", "schedule": "cosine"}, lambda p, lr: Adam(p, lr, (0.8, 0.95), 1e-4, 0.1)),
    "adamw": ({**ADAM, "optimizer": "adamw", "clip": 0.1}, lambda p, lr: AdamW(p, lr, (0.8, 0.95), 1e-4, 0.1)),
    "adamw by step": ({**BY_STEP, **ADAM, "optimizer": "adamw"}, lambda p, lr: AdamW(p, lr, (0.8, 0.95), 1e-4, 0.1)),
    "by step": (BY_STEP, SGD),
    "class weights": ({"class_weights": "balanced"}, SGD),
    "flipped": ({"augment_flip": 1.0}, SGD),
}


def by_sklearn(labels):
    present, weights = np.unique(labels), np.zeros(CLASSES, np.float32)
    weights[present] = compute_class_weight("balanced", classes=present, y=labels)
    return torch.from_numpy(weights)


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_of_one_client_are_those_by_hand(name):
    """Each with an optimiser made anew; what is measured is neither weighted nor flipped."""
    options, make = ROUNDS[name]
    settings = training(rounds=3, sample_rate=1.0, **options)
    hand = Rounds("convnet", settings, federation((9,), (4,)))
    weights = by_sklearn(hand.labels(hand.data.train[0]).numpy()) if "class_weights" in options else None
    for round_, _ in hand:
        optimizer, steps = make(hand.lend(hand.x).parameters(), settings.lr), hand.rows(0, round_)
        for step, rows in enumerate(steps):
            if settings.schedule == "cosine":
                done = round_ - 1 + (step / len(steps) if settings.schedule_by == "step" else 0)
                optimizer.param_groups[0]["lr"] = settings.lr / 2 * (1 + math.cos(math.pi * done / 3))
            images = normalised(hand.data, rows)
            optimizer.zero_grad()
            logits = hand.model(torch.flip(images, (-1,)) if settings.augment_flip else images)
            F.cross_entropy(logits, hand.labels(rows), weights).backward()
            if settings.clip:
                nn.utils.clip_grad_norm_(hand.model.parameters(), settings.clip)
            optimizer.step()
        hand.x = hand.state()
    for executor in EXECUTORS:
        hand.check(hand.run("fedavg", executor), rtol=1e-4, atol=1e-5)


PLAIN = "^method fednova: its local steps are plain SGD by definition; leave out"


def test_settings_that_contradict_each_other():
    for options, why in (
        ({"nesterov": True}, "nesterov is a form of momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, "beta1 instead"),
        ({"schedule": "exponential"}, r"needs training\.gamma"),
        ({"schedule": "step", "gamma": 0.1}, r"either training\.milestones or training\.step_every"),
        ({"schedule": "step", "gamma": 0.1, "milestones": (5, 2)}, r"\[5, 2\] must ascend"),
        ({"gamma": 0.9}, r"^training\.gamma has no effect with schedule: constant; set .*: step or exponential, or"),
        ({"schedule": "exponential", "gamma": 0.9, "lr_min": 0.1}, "lr_min has no effect with schedule: exponential"),
        ({"schedule": "cosine", "milestones": (2, 5)}, "milestones has no effect with schedule: cosine"),
        ({"beta2": 0.9}, "beta2 has no effect with optimizer: sgd"),
        ({"server_lr": 0.1}, "server_lr has no effect with server_optimizer: none"),
        ({"server_optimizer": "momentum", "server_tau": 0.1}, "server_tau has no effect with server_opt.*: momentum"),
        ({"schedule_by": "step"}, "schedule_by has no effect without"),
        ({"optimizer": "adam"}, f"{PLAIN} training.optimizer: adam"),
        ({"schedule": "cosine", "schedule_by": "step"}, f"{PLAIN} training.schedule_by: step"),
    ):
        with pytest.raises(UserError, match=why):
            run(method("fednova"), backbone("convnet"), training=training(**options))
    with pytest.raises(UserError, match=r"method fedproto shares no parameters of the model"):
        run(method("fedproto"), backbone("convnet"), training=training(server_optimizer="yogi"))


# --- the server's optimisers, by hand in NumPy and double precision --------------------------------------------------

SERVERS = {  # rates that are left open are 1 and 0.01
    "momentum": {"beta1": 0.7},
    "adam": {"beta1": 0.8, "beta2": 0.9, "tau": 0.01},
    "yogi": {"beta1": 0.8, "beta2": 0.9, "lr": 0.05, "tau": 0.01},
    "adagrad": {"beta1": 0.0, "lr": 0.05, "tau": 0.01},
}


def moved(kind, x, m, v, mean, beta1, beta2=0.99, lr=0.01, tau=1e-3):
    """An entry of the server and its moments after a round, as the paper's algorithm 2 has it."""
    delta = mean - x
    if kind == "momentum":
        m = beta1 * m + delta
        return x + m, m, v
    m = beta1 * m + (1 - beta1) * delta
    v = {
        "adagrad": v + delta**2,
        "adam": beta2 * v + (1 - beta2) * delta**2,
        "yogi": v - (1 - beta2) * delta**2 * np.sign(v - delta**2),
    }[kind]
    return x + lr * m / (np.sqrt(v) + tau), m, v


@pytest.mark.parametrize("kind", SERVERS)
def test_four_rounds_by_hand(kind):
    """Of two clients each, sampled of three, with batch norm, whose statistics are averaged and nothing else."""
    options = {f"server_{name}": value for name, value in SERVERS[kind].items()}
    hand = Rounds("norm", training(rounds=4, batch_size=16, server_optimizer=kind, **options))
    x = {name: hand.x[name].double().numpy() for name in hand.parameters()}
    states = {name: (it, 0 * it, 0 * it + SERVERS[kind].get("tau", 1e-3) ** 2) for name, it in x.items()}
    for round_, cohort in hand:
        hand.x = hand.mean({i: hand.train(i, round_) for i in cohort})
        for name, state in states.items():
            states[name] = moved(kind, *state, hand.x[name].double().numpy(), **SERVERS[kind])
            hand.x[name] = torch.from_numpy(np.asarray(states[name][0])).float()
    hand.check(hand.run("fedavg"))


# --- learning rates --------------------------------------------------------------------------------------------------

SCHEDULES = {
    "constant": ({}, lambda sgd, rounds: lr_scheduler.ConstantLR(sgd, 1.0)),
    "cosine": ({"lr_min": 0.01}, lambda sgd, rounds: lr_scheduler.CosineAnnealingLR(sgd, rounds, 0.01)),
    "linear": ({}, lambda sgd, rounds: lr_scheduler.LinearLR(sgd, 1.0, 0.0, rounds)),
    "step": ({"milestones": (2, 5), "gamma": 0.1}, lambda sgd, _: lr_scheduler.MultiStepLR(sgd, [2, 5], 0.1)),
    "step every": ({"step_every": 2, "gamma": 0.5}, lambda sgd, rounds: lr_scheduler.StepLR(sgd, 2, 0.5)),
    "exponential": ({"gamma": 0.9}, lambda sgd, rounds: lr_scheduler.ExponentialLR(sgd, 0.9)),
}


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR's own use of it
def test_rates_are_pytorchs(name, warmup):
    options, make = SCHEDULES[name]
    settings = training(rounds=11, lr=0.3, warmup=warmup, schedule=name.split()[0], **options)
    sgd = SGD([torch.zeros(1, requires_grad=True)], 0.3)
    scheduler = make(sgd, 11 - warmup)
    if warmup:
        sgd.param_groups[0]["lr"] = 0.3
        rising = lr_scheduler.LinearLR(sgd, 1 / (warmup + 1), 1.0, warmup)
        scheduler = lr_scheduler.SequentialLR(sgd, [rising, scheduler], [warmup])
    expected = []
    for _ in range(11):
        expected.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    assert [learning_rate(settings, done) for done in range(11)] == pytest.approx(expected)
    if name == "cosine":  # within rounds it passes through those of rounds and never jumps
        fine = [learning_rate(settings, done / 100) for done in range(1100)]
        assert fine[::100] == pytest.approx(expected) and np.abs(np.diff(fine)).max() < 0.3 / 100


class OfItsOwn(FedAvg):
    """Has a loss that knows nothing of weights."""

    def loss(self, local, params, batch):
        return cross_entropy(local.forward(params, batch.inputs), batch.labels)


def test_weights_are_scikit_learns_and_a_loss_that_passes_over_them_is_refused():
    labels = np.array([0] * 7 + [1] * 2 + [3])
    torch.testing.assert_close(balanced(torch.tensor([7.0, 2.0, 0.0, 1.0])), by_sklearn(labels))
    for entry in (method("fedrod"), OfItsOwn()):
        with pytest.raises(UserError, match=r"does not go with training\.class_weights: none of its losses is a local"):
            run(entry, tiny.first_fitting(entry), training=training(class_weights="balanced"))


def test_each_step_draws_from_all_samples():
    for client, steps, size in ((0, 40, 5), (1, 3, 64)):
        settings = training(local_steps=steps, batch_size=size)
        model = tiny.create(backbone("convnet"), SEED)
        batches = make_trainer(*model, federation(), method("fedavg"), settings, SEED).local
        drawn, rows = [batch.tolist() for batch in batches.batches(1, client)], set(federation().train[client].tolist())
        assert batches.steps(1, client) == len(drawn) == steps and {row for batch in drawn for row in batch} == rows
        assert all(len(set(batch)) == len(batch) == min(size, len(rows)) for batch in drawn)  # without putting back
        assert set(drawn[0]) & set(drawn[1])  # but not within what would be an epoch


def test_a_straggler_stops_early_on_the_schedule_of_all():
    settings = training(schedule="exponential", gamma=0.5, schedule_by="step")
    arguments = (*tiny.create(backbone("convnet"), SEED), federation(), method("fedavg"), settings, SEED)
    usual, slow = make_trainer(*arguments), make_trainer(*arguments, lambda *_: 0.5)
    steps, slow_steps = (trainer.local.batches(1, 0) for trainer in (usual, slow))
    assert len(slow_steps) == len(steps) // 2 > 1 and all(map(torch.equal, slow_steps, steps))
    assert slow.learning_rate(1, 0, 1) == usual.learning_rate(1, 0, 1) < usual.learning_rate(1, 0, 0)


def test_the_rate_and_the_scale_of_dropout():
    for p in (0.1, 0.9):
        model = nn.Sequential(nn.Dropout(p))
        noise = DropoutBits(model, torch.zeros(1, 1000))
        noise.load(noise.draw(200, 0))
        x = (torch.rand(200, 1000) + 1).requires_grad_()
        y = model.train()(x)
        y.sum().backward()
        mask = y != 0
        assert float(mask.float().mean()) == pytest.approx(1 - p, abs=0.004)
        torch.testing.assert_close((y[mask], x.grad * x), (x[mask] / (1 - p), y), rtol=1e-3, atol=0)
    layers = nn.Dropout(0.5), nn.Linear(2, 3), nn.Sequential(nn.Dropout(0.25)), nn.Dropout(0.0)
    assert DropoutBits(nn.Sequential(*layers), torch.zeros(1, 2)).per_sample == 5  # what drops nothing needs none


def test_bf16_is_close_to_fp32_but_not_the_same():
    tries = (("fp32", "sequential"), ("bf16", "sequential"), ("bf16", "stacked"), ("tf32", "sequential"))
    full, half, stacked, tf32 = (
        run(method("fedper"), backbone("tiny_vit"), training=training(precision=precision), executor=executor)
        for precision, executor in tries
    )
    assert not np.array_equal(half.loss, full.loss)
    np.testing.assert_allclose(half.loss, full.loss, rtol=0.1)
    for name, tensor in half.weights.items():
        torch.testing.assert_close(tensor, full.weights[name], rtol=0.1, atol=0.02)
    np.testing.assert_allclose(stacked.loss, half.loss, rtol=0.02)
    assert result_bytes(tf32) == result_bytes(full)  # on a CPU


def test_switches_are_set_for_the_run_and_put_back():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    for precision, allowed in (("fp32", False), ("tf32", True), ("bf16", False)):
        with pytest.raises(KeyError), use_precision(precision):
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (allowed, allowed)
            raise KeyError
        assert (matmul.allow_tf32, cudnn.allow_tf32) == before
