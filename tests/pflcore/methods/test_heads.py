"""Methods around a linear classifier, against rounds written out with modules, SGD and other people's solvers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from support.by_hand import SEED, Rounds, State, losses, near
from support.tiers import six_of
from support.tiny import CLASSES, TEXT, NormNet, backbone, facts, federation, method, run, run_by_all, spied, training
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import add_prefix, strip_prefix
from pflcore.method import Update
from pflcore.methods._features import normed_layer
from pflcore.methods.fedpac import combinations

DATA = federation()
SETTINGS = training(rounds=3, momentum=0.5, weight_decay=0.01)
ALL = ["fedcp", "feddbe", "fedpac", "gpfl", "pfedfda", "fedas", "pfedgp", "moon", "fedproto", "fedkd", "fedrod"]
Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("net", ["norm_net", TEXT])
@pytest.mark.parametrize("name", six_of(ALL))
def test_class_weights_act_and_executors_agree(name: str, net: str) -> None:
    chosen = NormNet() if net == "norm_net" else backbone(net)
    weighted = training(class_weights="balanced", batch_size=6)
    if name in ("pfedgp", "fedrod"):
        with pytest.raises(UserError, match=rf"^method {name}.* training\.class_weights"):
            run(method(name), chosen, training=weighted)
        return
    first = run_by_all(method(name), chosen, training=weighted)
    assert not np.allclose(first.loss, run(method(name), chosen, training=training(batch_size=6)).loss, rtol=1e-6)


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
    made = normed_layer(25, 400, 3, "one")
    for name in ("weight", "bias"):
        values, theirs = made[name], nn.Linear(25, 400).state_dict()[name]
        assert (float(values.min()), float(values.max())) == pytest.approx((-0.2, 0.2), abs=0.005)
        quantiles = torch.linspace(0.05, 0.95, 7)
        np.testing.assert_allclose(values.quantile(quantiles), theirs.quantile(quantiles), atol=0.04)
    assert made["norm.weight"].eq(1).all() and made["norm.bias"].eq(0).all() and made["norm.bias"].shape == (400,)
    for other in (normed_layer(25, 400, 4, "one"), normed_layer(25, 400, 3, "two")):
        assert not torch.equal(other["weight"], made["weight"]) and not torch.equal(other["bias"], made["bias"])


class Beside(nn.Module):
    """Layers beside the model whose parameters have other names in a state."""

    def named(self) -> State:
        """Its parameters under the names that they have in a state."""
        swapped = {name: name.replace("0.", "").replace("2.", "norm.").replace("1.", "norm.") for name in self.names()}
        return {mine: self.get_parameter(name).detach().clone() for name, mine in swapped.items()}

    def names(self) -> list[str]:
        return [name for name, _ in self.named_parameters()]

    def load(self, state: State) -> None:
        for name, mine in zip(self.names(), self.named(), strict=True):
            self.get_parameter(name).data = state[mine].clone()


# --- FedCP -----------------------------------------------------------------------------------------------------------


def apart(ones: Tensor, others: Tensor) -> Tensor:
    """The discrepancy, pair by pair."""

    def kernel(one: Tensor, other: Tensor) -> Tensor:
        return torch.stack([(-0.5 * (one - other).square().sum() / b).exp() for b in (10, 15, 20, 50)]).sum()

    pairs = [(i, j) for i in range(len(ones)) for j in range(len(ones))]
    each = [kernel(ones[i], ones[j]) + kernel(others[i], others[j]) - 2 * kernel(ones[i], others[j]) for i, j in pairs]
    return torch.stack(each).mean()


class Policy(Beside):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU())

    def forward(self, features: Tensor) -> Tensor:
        first, second = self.policy(features).chunk(2, 1)
        return first.exp() / (first.exp() + second.exp())


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_fedcp(net: str) -> None:
    hand, lam = Rounds(net, SETTINGS, own="head."), 4.0
    entry = method("fedcp", lam=lam)
    head, width = hand.model.get_submodule("head"), hand.initial["head.weight"].shape[1]
    policy, common = Policy(width), nn.Linear(width, CLASSES)
    common.load_state_dict(head.state_dict())
    wide = add_prefix("policy.", strip_prefix("policy/", entry.init_shared(*facts(entry, hand.net))))
    drawn = []

    def lend(client: int) -> Tensor:
        hand.lend(hand.x, hand.own[client])
        policy.load(wide)
        rows = hand.own[client]["head.weight"].sum(0)
        return rows / rows.norm()

    def divided(v: Tensor) -> Tensor:
        features = hand.features  # what the classifier gets next is another
        share = policy(features * v)
        out: Tensor = head(share * features) + common((1 - share) * features)
        return out

    def client(i: int, round_: int) -> State:
        v, frozen = lend(i), hand.state()

        def loss(rows: Tensor) -> Tensor:
            old = hand.look(frozen, rows)[1]
            hand.logits(rows)
            away = apart(hand.features, old)
            drawn.append(float(away.detach()))
            return F.cross_entropy(divided(v), hand.labels(rows)) + lam * away

        ended = hand.descend(hand.rows(i, round_), loss, beside=policy.parameters()) | policy.named()
        hand.own[i] = {name: ended[name] for name in hand.own[i]}
        return ended

    for round_, cohort in hand:
        ended = {i: client(i, round_) for i in cohort}
        wide = hand.mean(ended, of=wide)
        heads = hand.mean({i: strip_prefix("head.", hand.own[i]) for i in cohort}, of=["weight", "bias"])
        for name, tensor in common.named_parameters():
            tensor.data = (tensor.data + heads[name]) / 2
        hand.x = hand.mean(ended)
    assert max(drawn) > 1e-4
    result = hand.run(entry)
    beside = {f"common/policy/{n.removeprefix('policy.')}": t for n, t in wide.items()}
    hand.check(result, beside, add_prefix("common/head/head.", common.state_dict()), measured=False, atol=5e-5)
    measured = []
    for i, rows in enumerate(DATA.test):
        v = lend(i)
        hand.model.eval()
        hand.logits(rows)
        measured.append(float(F.cross_entropy(divided(v).detach(), hand.labels(rows))))
    losses(result, measured)


# --- GPFL ------------------------------------------------------------------------------------------------------------


class Valve(Beside):
    """Embeddings and valve, as modules."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embeddings = nn.Parameter(torch.empty(CLASSES, width))
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in range(2)
        )

    def forward(self, features: Tensor, condition: Tensor) -> Tensor:
        return F.relu(features * (self.gamma(condition) + 1) + self.beta(condition))


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_gpfl(net: str) -> None:
    hand, lam, mu = Rounds(net, SETTINGS, own="head."), 0.3, 0.2
    entry = method("gpfl", lam=lam, mu=mu)
    head, begun = hand.model.get_submodule("head"), entry.init_shared(*facts(entry, hand.net))
    valve = Valve(begun["embeddings/head.weight"].shape[1])
    wide = {"embeddings": begun["embeddings/head.weight"], **strip_prefix("valve/", begun)}

    def lend(client: int) -> Tensor:
        """The client's condition."""
        hand.lend(hand.x, hand.own[client])
        valve.load(wide)
        return torch.stack([wide["embeddings"][label] for label in hand.labels(DATA.train[client]).tolist()]).mean(0)

    def client(i: int, round_: int) -> State:
        own, received = lend(i), wide["embeddings"]

        def loss(rows: Tensor) -> Tensor:
            hand.logits(rows)
            features, labels = hand.features, hand.labels(rows)
            guided = valve(features, received.sum(0) / CLASSES)
            angles = torch.stack([F.cosine_similarity(guided, one, dim=1) for one in valve.embeddings], 1)
            away = (guided - received[labels]).square().sum().sqrt()
            value = F.cross_entropy(head(valve(features, own)), labels) + lam * away
            return value + F.nll_loss(angles.log_softmax(1), labels)

        ended = hand.descend(hand.rows(i, round_), loss, beside=valve.parameters(), decay=mu) | valve.named()
        hand.own[i] = {name: ended[name] for name in hand.own[i]}
        return ended

    for round_, cohort in hand:
        ended = {i: client(i, round_) for i in cohort}
        wide, hand.x = hand.mean(ended, of=wide), hand.mean(ended)
    result = hand.run(entry)
    rest = {name: tensor for name, tensor in wide.items() if name != "embeddings"}
    beside = {"common/embeddings/head.weight": wide["embeddings"], **add_prefix("common/valve/", rest)}
    hand.check(result, beside, measured=False, atol=5e-5)
    measured = []
    for i, rows in enumerate(DATA.test):
        own = lend(i)
        hand.model.eval()
        hand.logits(rows)
        measured.append(float(F.cross_entropy(head(valve(hand.features, own)).detach(), hand.labels(rows))))
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


def test_a_class_that_nobody_in_the_round_has_keeps_its_centroid() -> None:
    data, seen, settings = federation(), list[list[Update]](), training(rounds=3, sample_rate=0.34)
    for client, rows in enumerate(data.train):
        data.labels[rows] = client
    weights = run(spied(method("fedpac"), seen), backbone("convnet"), data, training=settings, seed=SEED).weights
    last = {one.client: one.returned["common/centroids"] for updates in seen for one in updates}
    assert len(last) > 1
    assert weights["common/known"].nonzero().flatten().tolist() == sorted(last)
    for client, own in last.items():
        torch.testing.assert_close(weights["common/centroids"][client], own[client])


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
