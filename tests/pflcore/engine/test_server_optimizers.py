"""The server's optimisers, against rounds by hand in NumPy and double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.by_hand import Rounds
from support.tiny import first_fitting, method, result_bytes, run, training

from pflcore.engine.optimizers import ServerOptimizer
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.method import Server

KINDS: dict[str, dict[str, Any]] = {
    "momentum": {"server_beta1": 0.7, "server_lr": 0.5},
    "adam": {"server_beta1": 0.8, "server_beta2": 0.9, "server_lr": 0.05, "server_tau": 0.01},
    "yogi": {"server_beta1": 0.8, "server_beta2": 0.9, "server_lr": 0.05, "server_tau": 0.01},
    "adagrad": {"server_beta1": 0.0, "server_lr": 0.05, "server_tau": 0.01},
}


class ByHand:
    """One entry of the server, as the paper's algorithm 2 has it."""

    def __init__(self, kind: str, x: np.ndarray, beta1: float, beta2: float, lr: float, tau: float) -> None:
        self.kind, self.x, self.beta1, self.beta2, self.lr, self.tau = kind, x, beta1, beta2, lr, tau
        self.m, self.v = np.zeros_like(x), np.full_like(x, tau * tau)

    def step(self, mean: np.ndarray) -> None:
        delta = mean - self.x
        if self.kind == "momentum":
            self.m = self.m * self.beta1 + delta
            self.x = self.x + self.lr * self.m
            return
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        if self.kind == "adagrad":
            self.v = self.v + delta**2
        if self.kind == "adam":
            self.v = self.beta2 * self.v + (1 - self.beta2) * delta**2
        if self.kind == "yogi":
            self.v = self.v - (1 - self.beta2) * delta**2 * np.sign(self.v - delta**2)
        self.x = self.x + self.lr * self.m / (np.sqrt(self.v) + self.tau)


@pytest.mark.parametrize("kind", KINDS)
def test_four_rounds_by_hand(kind: str) -> None:
    """Of two clients each, sampled of three, with batch norm, whose statistics are averaged and nothing else."""
    options = KINDS[kind]
    # Small batches magnify rounding.
    hand = Rounds("norm", training(rounds=4, batch_size=16, server_optimizer=kind, **options))
    beta2, tau = options.get("server_beta2", 0.99), options.get("server_tau", 1e-3)
    servers = {
        name: ByHand(kind, hand.x[name].double().numpy(), options["server_beta1"], beta2, options["server_lr"], tau)
        for name in hand.parameters()
    }
    for round_, cohort in hand:
        hand.x = hand.mean({i: hand.train(i, round_) for i in cohort})
        for name, server in servers.items():
            server.step(hand.x[name].double().numpy())
            hand.x[name] = torch.from_numpy(np.asarray(server.x)).float()
    hand.check(hand.run("fedavg"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_restored_goes_on_alike(kind: str) -> None:
    begun = {"x": torch.tensor([1.0, -2.0]), "y": torch.tensor([[0.5]])}

    def made() -> ServerOptimizer:
        return ServerOptimizer(training(server_optimizer=kind, **KINDS[kind]), "any", begun)

    def moved(optimizer: ServerOptimizer, scale: float) -> Tensors:
        server = Server({name: tensor * scale for name, tensor in begun.items()}, {})
        return dict(optimizer.step(optimizer.before(Server(begun, {})), server).shared)

    first = made()
    moved(first, 1.5)
    kept = {name: tensor.clone() for name, tensor in first.state().items()}
    expected = moved(first, 0.7)
    assert first.misfit(kept) == "" and "missing" in first.misfit({})
    again = made()
    again.restore(kept)
    for name, tensor in moved(again, 0.7).items():
        assert torch.equal(tensor, expected[name])
        assert not torch.equal(moved(made(), 0.7)[name], expected[name])


@pytest.mark.parametrize(("kind", "step"), [("momentum", 1.0), ("adagrad", 0.01), ("adam", 0.01), ("yogi", 0.01)])
def test_rates_that_are_left_open(kind: str, step: float) -> None:
    """That of an average for momentum; else one hundredth, of a change in units of its own size."""
    settings = training(server_optimizer=kind, server_beta1=0.0, server_beta2=0.0, server_tau=1e-6)
    optimizer = ServerOptimizer(settings, "any", {"x": torch.tensor([0.0])})
    after = optimizer.step(
        optimizer.before(Server({"x": torch.tensor([1.0])}, {})), Server({"x": torch.tensor([2.0])}, {})
    )
    assert float(after.shared["x"]) == pytest.approx(1 + step, rel=1e-4)


@pytest.mark.parametrize("name", ["fedper", pytest.param("fedtp", marks=pytest.mark.matrix)])
def test_methods_and_executors(name: str) -> None:
    """Only what clients receive as shared is moved: the first round's personal parts stay what they were."""
    entry = method(name)
    net, settings = first_fitting(entry), training(server_optimizer="adam")
    one, pooled = (run(entry, net, training=settings, executor=executor) for executor in ("sequential", "pooled"))
    assert result_bytes(one) == result_bytes(pooled)
    first, plain = (run(entry, net, training=training(rounds=1, server_optimizer=kind)) for kind in ("adam", "none"))
    moved = {key for key, tensor in plain.weights.items() if not torch.equal(tensor, first.weights[key])}
    assert moved and not any(key.startswith(("client.", "extra")) for key in moved)
    assert first.cost == plain.cost


@pytest.mark.parametrize(
    "name", ["local", "fedproto", "fedkd", "fedu", "fedamp", "ifca", "cfl", "pfedhn", "pfedla_layerwise"]
)
def test_a_server_without_shared_parameters_has_no_optimizer(name: str) -> None:
    entry = method(name)
    with pytest.raises(UserError, match=rf"method {name} shares no parameters of the model"):
        run(entry, first_fitting(entry), training=training(server_optimizer="yogi"))
