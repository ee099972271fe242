"""Methods around a linear classifier, against rounds written out with modules, SGD and other people's solvers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from support.by_hand import Rounds, State, losses, near
from support.tiny import CLASSES, backbone, facts, federation, method, run, training
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import add_prefix, strip_prefix
from pflcore.methods.fedcp import normed_layer
from pflcore.methods.fedpac import combinations

DATA = federation()
SETTINGS = training(rounds=3, momentum=0.5, weight_decay=0.01)
ALL = ["fedcp", "feddbe", "fedpac", "gpfl", "pfedfda", "fedas", "pfedgp", "moon", "fedproto", "fedkd", "fedrod"]
Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("name", ALL)
def test_a_model_without_a_classifier_is_refused(name: str) -> None:
    entry = method(name)
    initial, roles, known = facts(entry, backbone("convnet"))
    headless = replace(known, head=(), features=0)
    with pytest.raises(UserError, match=f"^method {name} needs a backbone .*'head'") as error:
        entry.init_shared(initial, roles, headless)
        entry.init_client(initial, roles, headless)
    assert "\n" not in str(error.value)


def test_layers_beside_the_classifier_begin_as_pytorchs() -> None:
    """Uniform over ±1/√inputs, in weight and bias."""
    made, other = normed_layer(25, 400, 3, "one"), normed_layer(25, 400, 3, "two")
    for name in ("weight", "bias"):
        values, theirs, quantiles = made[name], nn.Linear(25, 400).state_dict()[name], torch.linspace(0, 1, 7)
        np.testing.assert_allclose(values.quantile(quantiles), theirs.quantile(quantiles), atol=0.04)
        assert values.abs().max() <= 0.2 and not torch.equal(values, other[name])
    assert made["norm.weight"].eq(1).all() and made["norm.bias"].eq(0).all() and made["norm.bias"].shape == (400,)


def leaves(state: State) -> State:
    return {name: tensor.clone().requires_grad_() for name, tensor in state.items()}


def values(state: State) -> State:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def linear(x: Tensor, layer: State) -> Tensor:
    return x @ layer["weight"].T + layer["bias"]


def normed(x: Tensor, layer: State) -> Tensor:
    away = x - x.mean(-1, keepdim=True)
    scaled = away / (away.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * layer["norm.weight"] + layer["norm.bias"]


def apart(ones: Tensor, others: Tensor) -> Tensor:
    """The discrepancy, pair by pair."""

    def kernel(one: Tensor, other: Tensor) -> Tensor:
        return torch.stack([(-0.5 * (one - other).square().sum() / b).exp() for b in (10, 15, 20, 50)]).sum()

    pairs = [(i, j) for i in range(len(ones)) for j in range(len(ones))]
    each = [kernel(ones[i], ones[j]) + kernel(others[i], others[j]) - 2 * kernel(ones[i], others[j]) for i, j in pairs]
    return torch.stack(each).mean()


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_fedcp(net: str) -> None:
    hand, lam, drawn = Rounds(net, SETTINGS, own="head."), 4.0, []
    entry = method("fedcp", lam=lam)
    head, common = hand.model.get_submodule("head"), strip_prefix("head.", hand.initial)
    wide = add_prefix("policy.", strip_prefix("policy/", entry.init_shared(*facts(entry, hand.net))))

    def divided(i: int, policy: State) -> Tensor:
        features, v = hand.features, hand.own[i]["head.weight"].sum(0)
        first, second = normed(linear(features * v / v.norm(), policy), policy).relu().chunk(2, 1)
        share = first.exp() / (first.exp() + second.exp())
        out: Tensor = head(share * features) + linear((1 - share) * features, common)
        return out

    def client(i: int, round_: int) -> State:
        hand.lend(hand.x, hand.own[i])
        policy, frozen = leaves(strip_prefix("policy.", wide)), hand.state()

        def loss(rows: Tensor) -> Tensor:
            old = hand.look(frozen, rows)[1]
            hand.logits(rows)
            away = apart(hand.features, old)
            drawn.append(float(away.detach()))
            return F.cross_entropy(divided(i, policy), hand.labels(rows)) + lam * away

        ended = hand.descend(hand.rows(i, round_), loss, beside=policy.values())
        ended |= add_prefix("policy.", values(policy))
        hand.own[i] = {name: ended[name] for name in hand.own[i]}
        return ended

    for round_, cohort in hand:
        ended = {i: client(i, round_) for i in cohort}
        heads = hand.mean({i: strip_prefix("head.", hand.own[i]) for i in cohort}, of=common)
        common = {name: (tensor + heads[name]) / 2 for name, tensor in common.items()}
        wide, hand.x = hand.mean(ended, of=wide), hand.mean(ended)
    assert max(drawn) > 1e-4
    result = hand.run(entry)
    policy = strip_prefix("policy.", wide)
    beside = add_prefix("common/policy/", policy) | add_prefix("common/head/head.", common)
    hand.check(result, beside, measured=False, atol=5e-5)
    measured = []
    for i, rows in enumerate(DATA.test):
        hand.lend(hand.x, hand.own[i]).eval()
        hand.logits(rows)
        measured.append(float(F.cross_entropy(divided(i, policy).detach(), hand.labels(rows))))
    losses(result, measured)


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_gpfl(net: str) -> None:
    hand, lam, mu = Rounds(net, SETTINGS, own="head."), 0.3, 0.2
    entry = method("gpfl", lam=lam, mu=mu)
    head, begun = hand.model.get_submodule("head"), entry.init_shared(*facts(entry, hand.net))
    wide = {"embeddings": begun["embeddings/head.weight"], **strip_prefix("valve/", begun)}

    def valve(state: State, features: Tensor, condition: Tensor) -> Tensor:
        parts = (strip_prefix(f"{part}.", state) for part in ("gamma", "beta"))
        gamma, beta = (normed(linear(condition, one).relu(), one) for one in parts)
        return F.relu(features * (gamma + 1) + beta)

    def condition(i: int) -> Tensor:
        return torch.stack([wide["embeddings"][label] for label in hand.labels(DATA.train[i]).tolist()]).mean(0)

    def client(i: int, round_: int) -> State:
        hand.lend(hand.x, hand.own[i])
        own, received, beside = condition(i), wide["embeddings"], leaves(wide)

        def loss(rows: Tensor) -> Tensor:
            hand.logits(rows)
            features, labels = hand.features, hand.labels(rows)
            guided = valve(beside, features, received.sum(0) / CLASSES)
            angles = torch.stack([F.cosine_similarity(guided, one, dim=1) for one in beside["embeddings"]], 1)
            away = (guided - received[labels]).square().sum().sqrt()
            value = F.cross_entropy(head(valve(beside, features, own)), labels) + lam * away
            return value + F.nll_loss(angles.log_softmax(1), labels)

        ended = hand.descend(hand.rows(i, round_), loss, beside=beside.values(), decay=mu) | values(beside)
        hand.own[i] = {name: ended[name] for name in hand.own[i]}
        return ended

    for round_, cohort in hand:
        ended = {i: client(i, round_) for i in cohort}
        wide, hand.x = hand.mean(ended, of=wide), hand.mean(ended)
    result = hand.run(entry)
    places = {"embeddings": "embeddings/head.weight"}
    beside = {f"common/{places.get(name, f'valve/{name}')}": tensor for name, tensor in wide.items()}
    hand.check(result, beside, measured=False, atol=5e-5)
    measured = []
    for i, rows in enumerate(DATA.test):
        hand.lend(hand.x, hand.own[i]).eval()
        hand.logits(rows)
        logits = head(valve(wide, hand.features, condition(i))).detach()
        measured.append(float(F.cross_entropy(logits, hand.labels(rows))))
    losses(result, measured)


# --- FedDBE ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "own"), [(1.0, ""), (0.3, "head.")])
def test_feddbe(mu: float, own: str) -> None:
    hand, kappa = Rounds("convnet", training(rounds=3, momentum=0.5, weight_decay=0.01, lr=0.02), own=own), 20.0
    shift = nn.Parameter(torch.zeros(hand.initial["head.weight"].shape[1]))
    hand.model.get_submodule("head").register_forward_pre_hook(lambda _, given: (given[0] + shift,))
    mean = torch.zeros_like(shift)
    shifts, shares = [shift.detach().clone() for _ in range(3)], hand.shares(range(3))
    moving = torch.zeros_like(shift)

    def loss(rows: Tensor, drawn: bool) -> Tensor:
        nonlocal moving
        plain = hand.cross_entropy(rows)
        moving = (1 - mu) * moving.detach() + mu * hand.features.mean(0)
        return plain + kappa * (0.5 * (moving - mean) ** 2).mean() if drawn else plain

    def client(i: int, round_: int) -> State:
        nonlocal moving
        moving, shift.data = torch.zeros_like(shift), shifts[i].clone()
        ended = hand.train(i, round_, loss=lambda rows: loss(rows, True), beside=[shift])
        shifts[i] = shift.detach().clone()
        return ended

    for i in range(3):  # a pass before the first round, of which nothing but the mean is left
        moving = torch.zeros_like(shift)
        hand.lend(hand.initial)
        hand.descend(hand.passes(i, "phase 2", 0), lambda rows: loss(rows, False))
        mean = mean + shares[i] * moving.detach()
    hand.average(client)
    result = hand.run("feddbe", kappa=kappa, mu=mu)
    hand.check(result, {"common/mean": mean}, kept=[{"shift/head.weight": one} for one in shifts], measured=False)
    measured = []
    for i in range(3):
        shift.data = shifts[i]
        measured.append(hand.loss(i, hand.x, hand.own[i]))
    losses(result, measured)
    assert max(float(one.abs().max()) for one in shifts) > 1e-3


# --- FedPAC ----------------------------------------------------------------------------------------------------------


def programme(client: int, means: list[Tensor], variances: list[float]) -> Array:
    """The weights of a client's combination, by sequential quadratic programming."""
    h = np.stack([one.flatten().double().numpy() for one in means])
    scale = 1 / np.square(h).mean()

    def objective(alpha: Array) -> float:
        return scale * float(np.square(alpha) @ np.array(variances) + np.square(h[client] - alpha @ h).sum())

    found = minimize(
        objective,
        np.full(len(h), 1 / len(h)),
        method="SLSQP",
        bounds=[(0, 1)] * len(h),
        constraints={"type": "eq", "fun": lambda alpha: alpha.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    kept = np.where(found.x < 1e-3, 0, found.x)
    return kept / kept.sum()


def moments(features: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """h and V, class by class."""
    h, v, n = torch.zeros(CLASSES, features.shape[1]), 0.0, len(labels)
    for one in labels.unique().tolist():
        own = features[labels == one]
        h[one] = len(own) / n * own.mean(0)
        v += float((own @ own.T).trace()) / n - float(h[one] @ h[one])
    return h, v / n


@pytest.mark.parametrize(("net", "head_epochs"), [("convnet", 2), ("norm", 1)])
def test_fedpac(net: str, head_epochs: int) -> None:
    settings = training(rounds=3, sample_rate=0.75, momentum=0.5, weight_decay=0.01)
    hand, lam = Rounds(net, settings, federation((14, 7, 9, 12), (5, 8, 6, 4)), own="head."), 2.0
    known: dict[int, Tensor] = {}
    mixed = False

    def aligned(rows: Tensor) -> Tensor:
        loss, labels = hand.cross_entropy(rows), hand.labels(rows).tolist()
        away = [(one - known[k] if k in known else 0 * one) for one, k in zip(hand.features, labels, strict=True)]
        return loss + lam * torch.stack(away).square().mean()

    for round_, cohort in hand:
        ended, told, seen = {}, [], []
        for i in cohort:
            hand.lend(hand.x, hand.own[i])
            told.append(moments(*hand.see(hand.passes(i, "phase 3", round_))))
            steps = hand.passes(i, "phase 4", round_, head_epochs)
            hand.descend(steps, moved=hand.parameters(head=True), statistics=False)
            ended[i] = hand.descend(hand.rows(i, round_), aligned, moved=hand.parameters(head=False))
            features, labels = hand.see(hand.passes(i, "phase 6", round_))
            seen += [(one, features[labels == one].sum(0), (labels == one).sum()) for one in labels.unique().tolist()]
        hand.x = hand.mean(ended)
        for one in range(CLASSES):
            if parts := [(total, count) for label, total, count in seen if label == one]:
                known[one] = sum(total for total, _ in parts) / sum(count for _, count in parts)
        for place, i in enumerate(cohort):
            alpha = programme(place, [h for h, _ in told], [v for _, v in told])
            mixed |= bool((alpha > 0.05).sum() > 1)
            shares = dict(zip(cohort, alpha.tolist(), strict=True))
            hand.own[i] = {n: sum(share * ended[j][n] for j, share in shares.items()) for n in hand.own[i]}
    assert mixed
    result = hand.run(method("fedpac", lam=lam, head_epochs=head_epochs))
    near(result.weights, hand.x, rtol=2e-3, atol=5e-4)
    near(dict(enumerate(result.weights["common/centroids"])), known, rtol=2e-3, atol=5e-4)
    for i, own in enumerate(hand.own):
        near({n: result.weights[f"server.heads/{n}"][i] for n in own}, own, rtol=2e-3, atol=5e-4)
    if net != "norm":
        losses(result, [hand.loss(i, hand.x, own) for i, own in enumerate(hand.own)])


def test_combinations_solve_the_programme() -> None:
    # Two clients combine by variance and distance: α of the other is V_1 / (V_1 + V_2 + d²), from the derivative.
    means = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    shares = combinations(means, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(shares, torch.tensor([[5 / 6, 1 / 6], [0.5, 0.5]]))
    for own, other in ((0.0045, 0.0), (0.0055, 0.0055 / 5.0055)):  # weights below a thousandth are none
        assert combinations(means, torch.tensor([own, 3.0]))[0].tolist() == pytest.approx([1 - other, other], abs=1e-6)
    for hopeless in (torch.zeros(2), torch.tensor([torch.inf, 1.0])):
        assert torch.equal(combinations(torch.zeros(2, 1, 2), hopeless), torch.eye(2))


def test_what_fedpac_keeps_and_sends() -> None:
    cost, plain = (run(method(name), backbone("convnet")).cost for name in ("fedpac", "fedavg"))
    table = 4 * CLASSES * 8
    assert cost.sent_up == plain.sent_up + 2 * table + 4 * (CLASSES + 1)
    assert cost.sent_down == plain.sent_down + table + CLASSES
    result = run(method("fedpac", also_personal=("head",)), backbone("convnet"))
    assert not torch.equal(result.weights["client.0.head.weight"], result.weights["client.1.head.weight"])
    assert not any(name.startswith("server.heads/") for name in result.weights)
