"""Methods around a linear classifier, against rounds written out with textbook formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.by_hand import Rounds, State
from support.tiny import CLASSES, backbone, facts, federation, method, run, training
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import add_prefix, strip_prefix

DATA = federation()
SETTINGS = training(rounds=3, momentum=0.5, weight_decay=0.01)
ALL = ["fedcp", "feddbe", "fedpac", "gpfl", "pfedfda", "fedas", "pfedgp", "moon", "fedproto", "fedkd", "fedrod"]


@pytest.mark.parametrize("name", ALL)
def test_a_model_without_a_classifier_is_refused(name: str) -> None:
    entry = method(name)
    initial, roles, known = facts(entry, backbone("convnet"))
    headless = replace(known, head=(), features=0)
    with pytest.raises(UserError, match=f"^method {name} needs a backbone .*'head'"):
        entry.init_shared(initial, roles, headless)
        entry.init_client(initial, roles, headless)


def test_options_that_do_not_go_together() -> None:
    for name in ("pfedfda", "pfedgp", "ifca", "per_fedavg"):
        with pytest.raises(UserError, match=rf"^method {name}: finetune_\*: "):
            method(name, finetune_epochs=1)
    for name in ("pfedgp", "fedrod"):
        with pytest.raises(UserError, match=rf"^method {name}.* training\.class_weights"):
            run(method(name), backbone("convnet"), training=training(class_weights="balanced"))


# --- FedCP and GPFL --------------------------------------------------------------------------------------------------


def leaves(state: State) -> State:
    return {name: tensor.clone().requires_grad_() for name, tensor in state.items()}


def values(state: State) -> State:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def linear(x: Tensor, layer: State) -> Tensor:
    return x @ layer["weight"].T + layer["bias"]


def normed(x: Tensor, layer: State) -> Tensor:
    away = x - x.mean(-1, keepdim=True)
    return away / (away.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer["norm.weight"] + layer["norm.bias"]


def apart(ones: Tensor, others: Tensor) -> Tensor:
    """The discrepancy."""
    pairs = ((ones, ones, 1), (others, others, 1), (ones, others, -2))
    squares = [(sign, (one.unsqueeze(1) - other).square().sum(2)) for one, other, sign in pairs]
    return torch.stack([sign * (-0.5 * one / b).exp().mean() for sign, one in squares for b in (10, 15, 20, 50)]).sum()


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_fedcp(net: str) -> None:
    hand, entry = Rounds(net, SETTINGS, own="head."), method("fedcp", lam=4.0)
    common, begun = strip_prefix("head.", hand.initial), entry.init_shared(*facts(entry, hand.net))
    wide = add_prefix("policy.", strip_prefix("policy/", begun))
    largest = wide["policy.weight"].abs().max() * wide["policy.weight"].shape[1] ** 0.5
    assert 0.9 < float(largest) <= 1  # uniform, as PyTorch's

    def divided(i: int, policy: State) -> Tensor:
        features, v = hand.features, hand.own[i]["head.weight"].sum(0)
        first, second = normed(linear(features * v / v.norm(), policy), policy).relu().chunk(2, 1)
        share = first.exp() / (first.exp() + second.exp())
        out: Tensor = hand.head(share * features) + linear((1 - share) * features, common)
        return out

    def client(i: int, round_: int) -> State:
        policy, frozen = leaves(strip_prefix("policy.", wide)), hand.x | hand.own[i]

        def loss(rows: Tensor) -> Tensor:
            old = hand.look(frozen, rows)[1]
            hand.logits(rows)
            away = apart(hand.features, old)
            return F.cross_entropy(divided(i, policy), hand.labels(rows)) + 4.0 * away

        return hand.train(i, round_, loss=loss, beside=policy.values()) | add_prefix("policy.", values(policy))

    for round_, cohort in hand:
        ended = {i: client(i, round_) for i in cohort}
        heads = hand.mean({i: strip_prefix("head.", hand.own[i]) for i in cohort}, of=common)
        common = {name: (tensor + heads[name]) / 2 for name, tensor in common.items()}
        wide, hand.x = hand.mean(ended, of=wide), hand.mean(ended)
    policy = strip_prefix("policy.", wide)
    beside = add_prefix("common/policy/", policy) | add_prefix("common/head/head.", common)
    hand.check(hand.run(entry), beside, logits=lambda i, _: divided(i, policy), atol=5e-5)


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_gpfl(net: str) -> None:
    hand, lam, mu = Rounds(net, SETTINGS, own="head."), 0.3, 0.2
    entry = method("gpfl", lam=lam, mu=mu)
    begun = entry.init_shared(*facts(entry, hand.net))
    wide = {"embeddings": begun["embeddings/head.weight"], **strip_prefix("valve/", begun)}

    def valve(state: State, features: Tensor, condition: Tensor) -> Tensor:
        parts = (strip_prefix(f"{part}.", state) for part in ("gamma", "beta"))
        gamma, beta = (normed(linear(condition, one).relu(), one) for one in parts)
        return F.relu(features * (gamma + 1) + beta)

    def condition(i: int) -> Tensor:
        return torch.stack([wide["embeddings"][label] for label in hand.labels(DATA.train[i]).tolist()]).mean(0)

    def client(i: int, round_: int) -> State:
        own, received, beside = condition(i), wide["embeddings"], leaves(wide)

        def loss(rows: Tensor) -> Tensor:
            hand.logits(rows)
            features, labels = hand.features, hand.labels(rows)
            guided = valve(beside, features, received.sum(0) / CLASSES)
            angles = torch.stack([F.cosine_similarity(guided, one, dim=1) for one in beside["embeddings"]], 1)
            away = (guided - received[labels]).square().sum().sqrt()
            value = F.cross_entropy(hand.head(valve(beside, features, own)), labels) + lam * away
            return value + F.nll_loss(angles.log_softmax(1), labels)

        return hand.train(i, round_, loss=loss, beside=beside.values(), decay=mu) | values(beside)

    for round_, cohort in hand:
        ended = {i: client(i, round_) for i in cohort}
        wide, hand.x = hand.mean(ended, of=wide), hand.mean(ended)
    beside = {f"common/valve/{name}": tensor for name, tensor in wide.items() if name != "embeddings"}
    beside["common/embeddings/head.weight"] = wide["embeddings"]
    personal = lambda i, _: hand.head(valve(wide, hand.features, condition(i)))  # noqa: E731
    hand.check(hand.run(entry), beside, logits=personal, atol=5e-5)


# --- FedDBE ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "own"), [(1.0, ""), (0.3, "head.")])
def test_feddbe(mu: float, own: str) -> None:
    hand, kappa = Rounds("convnet", training(rounds=3, momentum=0.5, weight_decay=0.01, lr=0.02), own=own), 20.0
    shift = nn.Parameter(torch.zeros(hand.initial["head.weight"].shape[1]))
    hand.head.register_forward_pre_hook(lambda _, given: (given[0] + shift,))
    mean = moving = torch.zeros_like(shift)
    shifts, shares = [shift.detach().clone() for _ in range(3)], hand.shares(range(3))

    def loss(rows: Tensor, kappa: float = kappa) -> Tensor:
        nonlocal moving
        plain = hand.cross_entropy(rows)
        moving = (1 - mu) * moving.detach() + mu * hand.features.mean(0)
        return plain + kappa * (0.5 * (moving - mean) ** 2).mean()

    def client(i: int, round_: int) -> State:
        nonlocal moving
        moving, shift.data = torch.zeros_like(shift), shifts[i].clone()
        ended = hand.train(i, round_, loss=loss, beside=[shift])
        shifts[i], shift.data = shift.detach().clone(), torch.zeros_like(shift)
        return ended

    for i in range(3):  # a pass before the first round, of which nothing but the mean is left
        moving = torch.zeros_like(shift)
        hand.lend(hand.initial)
        hand.descend(hand.passes(i, "phase 2", 0), lambda rows: loss(rows, 0.0))
        mean = mean + shares[i] * moving.detach()
    hand.average(client)
    kept = [{"shift/head.weight": one} for one in shifts]
    shifted = lambda i, plain: plain + shifts[i] @ hand.head.weight.T  # noqa: E731
    hand.check(hand.run("feddbe", kappa=kappa, mu=mu), {"common/mean": mean}, kept=kept, logits=shifted)
    assert max(float(one.abs().max()) for one in shifts) > 1e-3
