"""Methods around the classifier, against rounds written out with modules, PyTorch's SGD and other people's solvers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from support.by_hand import SEED, Rounds, State, losses, near
from support.tiers import six_of
from support.tiny import (
    CLASSES,
    TEXT,
    NormNet,
    backbone,
    facts,
    federation,
    method,
    run,
    run_by_all,
    spied,
    training,
)
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import add_prefix, strip_prefix
from pflcore.method import Update
from pflcore.methods._features import add_sums, class_means, no_sums, normed_layer
from pflcore.methods.fedpac import combinations
from pflcore.operators.class_tree import class_tree
from pflcore.operators.gaussian_process import JITTER, SCALE, gibbs
from pflcore.seeds import torch_seed

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


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("pfedfda", {"finetune_epochs": 1}, r"^method pfedfda: finetune_\*: "),
        ("pfedgp", {"finetune_epochs": 1}, r"^method pfedgp: finetune_\*: "),
        ("fedas", {"averaging": "uniform"}, r"^method fedas: averaging has no meaning"),
    ],
)
def test_options_that_do_not_go_together(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        method(name, **options)


# --- layers beside the classifier ------------------------------------------------------------------------------------


def test_a_layer_begins_as_pytorchs() -> None:
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
    assert torch.equal(normed_layer(25, 400, 3, "one")["weight"], made["weight"])
    entry = method("gpfl")
    initial, roles, known = facts(entry, backbone("convnet"))
    wide = entry.init_shared(initial, roles, replace(known, classes=200, features=100))["embeddings/head.weight"]
    assert wide.shape == (200, 100) and float(wide.std()) == pytest.approx(1, abs=0.03)


def test_sums_of_features_by_class() -> None:
    features, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]]), torch.tensor([2, 0, 2])
    seen = add_sums(add_sums(no_sums(torch.empty(3, 2)), features[:2], labels[:2]), features[2:], labels[2:])
    assert seen["counts"].tolist() == [1, 0, 2] and seen["sums"].tolist() == [[3, 4], [0, 0], [6, 2]]
    assert class_means(seen).tolist() == [[3.0, 4.0], [0.0, 0.0], [3.0, 1.0]]


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

    every = range(len(ones))
    pairs = [
        kernel(ones[i], ones[j]) + kernel(others[i], others[j]) - 2 * kernel(ones[i], others[j])
        for i in every
        for j in every
    ]
    return torch.stack(pairs).mean()


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
    begun = strip_prefix("policy/", entry.init_shared(*facts(entry, hand.net)))
    wide = add_prefix("policy.", begun)
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

    for round_, cohort in hand:
        ended = {}
        for i in cohort:
            v, frozen = lend(i), hand.state()

            def loss(rows: Tensor, v: Tensor = v, frozen: State = frozen) -> Tensor:
                old = hand.look(frozen, rows)[1]
                hand.logits(rows)
                away = apart(hand.features, old)
                drawn.append(float(away.detach()))
                return F.cross_entropy(divided(v), hand.labels(rows)) + lam * away

            ended[i] = hand.descend(hand.rows(i, round_), loss, beside=policy.parameters()) | policy.named()
            hand.own[i] = {name: ended[i][name] for name in hand.own[i]}
        wide = hand.mean(ended, of=wide)
        heads = hand.mean({i: strip_prefix("head.", hand.own[i]) for i in cohort}, of=["weight", "bias"])
        for name, tensor in common.named_parameters():
            tensor.data = (tensor.data + heads[name]) / 2
        hand.x = hand.mean(ended)
    assert max(drawn) > 1e-4
    result = hand.run(entry)
    beside = {f"common/policy/{n.removeprefix('policy.')}": t for n, t in wide.items()}
    hand.check(result, beside, add_prefix("common/head/head.", common.state_dict()), measured=False, atol=5e-5)
    for i, rows in enumerate(DATA.test):
        v = lend(i)
        hand.model.eval()
        hand.logits(rows)
        assert result.loss[6 + i] == pytest.approx(
            float(F.cross_entropy(divided(v).detach(), hand.labels(rows))), rel=1e-3
        )


# --- FedDBE ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "own"), [(1.0, ""), (0.3, "head.")])
def test_feddbe(mu: float, own: str) -> None:
    hand, kappa = Rounds("convnet", training(rounds=3, momentum=0.5, weight_decay=0.01, lr=0.02), own=own), 20.0
    shift = nn.Parameter(torch.zeros(hand.initial["head.weight"].shape[1]))
    hand.model.get_submodule("head").register_forward_pre_hook(lambda _, given: (given[0] + shift,))
    mean = torch.zeros_like(shift)
    shifts, samples = [shift.detach().clone() for _ in range(3)], [len(rows) for rows in DATA.train]
    moving = torch.zeros_like(shift)

    def loss(rows: Tensor, drawn: bool) -> Tensor:
        nonlocal moving
        plain = hand.cross_entropy(rows)
        moving = (1 - mu) * moving.detach() + mu * hand.features.mean(0)
        return plain + kappa * (0.5 * (moving - mean) ** 2).mean() if drawn else plain

    for i in range(3):  # a pass before the first round, of which nothing but the mean is left
        moving = torch.zeros_like(shift)
        hand.lend(hand.initial)
        hand.descend(hand.passes(i, "phase 2", 0), lambda rows: loss(rows, False))
        mean = mean + samples[i] / sum(samples) * moving.detach()
    for round_, cohort in hand:
        ended = {}
        for i in cohort:
            moving, shift.data = torch.zeros_like(shift), shifts[i].clone()
            ended[i] = hand.train(i, round_, loss=lambda rows: loss(rows, True), beside=[shift])
            shifts[i] = shift.detach().clone()
        hand.x = hand.mean(ended)
    result = hand.run("feddbe", kappa=kappa, mu=mu)
    kept = {f"client.{i}.own/shift/head.weight": one for i, one in enumerate(shifts)}
    hand.check(result, kept, {"common/mean": mean}, measured=False)
    for i in range(3):
        shift.data = shifts[i]
        assert result.loss[6 + i] == pytest.approx(hand.loss(i, hand.x, hand.own[i]), rel=1e-3)
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
        share = len(own) / n
        h[one] = share * own.mean(0)
        v += share * float((own @ own.T).trace()) / len(own) - float(h[one] @ h[one])
    return h, v / n


def centroids(features: Tensor, labels: Tensor) -> dict[int, tuple[Tensor, int]]:
    return {one: (features[labels == one].mean(0), int((labels == one).sum())) for one in labels.unique().tolist()}


@pytest.mark.parametrize(("net", "head_epochs"), [("convnet", 1), ("convnet", 2), ("norm", 1)])
def test_fedpac(net: str, head_epochs: int) -> None:
    settings = training(rounds=3, sample_rate=0.75, momentum=0.5, weight_decay=0.01)
    hand, lam = Rounds(net, settings, federation((14, 7, 9, 12), (5, 8, 6, 4)), own="head."), 2.0
    known: dict[int, Tensor] = {}
    mixed = False

    def aligned(rows: Tensor) -> Tensor:
        loss = hand.cross_entropy(rows)
        targets = [known.get(one) for one in hand.labels(rows).tolist()]
        away = [
            (own - target if target is not None else 0 * own).square().mean()
            for own, target in zip(hand.features, targets, strict=True)
        ]
        return loss + lam * torch.stack(away).mean()

    for round_, cohort in hand:
        ended, told, seen = {}, [], []
        for i in cohort:
            hand.lend(hand.x, hand.own[i])
            told.append(moments(*hand.see(hand.passes(i, "phase 3", round_))))
            steps = hand.passes(i, "phase 4", round_, head_epochs)
            hand.descend(steps, moved=hand.parameters(head=True), statistics=False)
            ended[i] = hand.descend(hand.rows(i, round_), aligned, moved=hand.parameters(head=False))
            seen.append(centroids(*hand.see(hand.passes(i, "phase 6", round_))))
        hand.x = hand.mean(ended)
        for one in range(CLASSES):
            if parts := [own[one] for own in seen if one in own]:
                known[one] = sum(count * mean for mean, count in parts) / sum(count for _, count in parts)
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
    drawn = torch.Generator().manual_seed(1)
    for clients, noise in ((2, 0.1), (5, 0.5), (9, 3.0)):
        means = torch.rand(3, 4, generator=drawn) + noise * torch.rand(clients, 3, 4, generator=drawn)
        variances = noise * torch.rand(clients, generator=drawn)
        shares = combinations(means, variances)
        for client in range(clients):
            expected = programme(client, list(means), variances.tolist())
            np.testing.assert_allclose(shares[client].numpy(), expected, atol=2e-4)
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
    result = run_by_all(method("fedpac", also_personal=("head",)), backbone("convnet"))
    own = [result.weights[f"client.{client}.head.weight"] for client in range(3)]
    assert not any(torch.equal(own[one], own[other]) for one, other in ((0, 1), (1, 2), (0, 2)))
    assert not any(name.startswith("server.heads/") for name in result.weights)
    with pytest.raises(UserError, match=r"^method fedpac: one of its phases trains what is shared"):
        run(method("fedpac", also_personal=("conv", "fc")), backbone("convnet"))


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

    for round_, cohort in hand:
        ended = {}
        for i in cohort:
            own, received = lend(i), wide["embeddings"]

            def loss(rows: Tensor, received: Tensor = received, own: Tensor = own) -> Tensor:
                hand.logits(rows)
                features, labels = hand.features, hand.labels(rows)
                guided = valve(features, received.sum(0) / CLASSES)
                angles = torch.stack([F.cosine_similarity(guided, one, dim=1) for one in valve.embeddings], 1)
                away = (guided - received[labels]).square().sum().sqrt()
                value = F.cross_entropy(head(valve(features, own)), labels) + lam * away
                return value + F.nll_loss(angles.log_softmax(1), labels)

            steps = hand.rows(i, round_)
            ended[i] = hand.descend(steps, loss, beside=valve.parameters(), decay=mu) | valve.named()
            hand.own[i] = {name: ended[i][name] for name in hand.own[i]}
        wide = hand.mean(ended, of=wide)
        hand.x = hand.mean(ended)
    result = hand.run(entry)
    rest = {name: tensor for name, tensor in wide.items() if name != "embeddings"}
    beside = {"common/embeddings/head.weight": wide["embeddings"], **add_prefix("common/valve/", rest)}
    hand.check(result, beside, measured=False, atol=5e-5)
    for i, rows in enumerate(DATA.test):
        own = lend(i)
        hand.model.eval()
        hand.logits(rows)
        measured = float(F.cross_entropy(head(valve(hand.features, own)).detach(), hand.labels(rows)))
        assert result.loss[6 + i] == pytest.approx(measured, rel=1e-3)


# --- pFedFDA ---------------------------------------------------------------------------------------------------------


class Classes:
    """Gaussians of one covariance, in float64."""

    def __init__(self, means: Array, covariance: Array) -> None:
        self.means, self.covariance = means, covariance

    @classmethod
    def estimated(cls, features: Array, labels: Array, given: Classes) -> Classes:
        means = given.means.copy()
        for one in set(labels.tolist()):
            means[one] = features[labels == one].mean(0)
        away = features - means[labels]
        return cls(means, away.T @ away / max(len(labels) - 1, 1) + np.eye(len(given.covariance)))

    def mixed(self, given: Classes, share: float) -> Classes:
        covariance = share * self.covariance + (1 - share) * given.covariance
        return Classes(share * self.means + (1 - share) * given.means, covariance)

    def posteriors(self, features: Array, priors: Array) -> Array:
        """log p(class | features)."""
        densities = [multivariate_normal(mean, self.covariance).logpdf(features) for mean in self.means]
        joint = np.stack([np.atleast_1d(one) for one in densities], 1) + np.log(priors)
        return joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)


def fitted(features: Array, labels: Array, given: Classes, priors: Array) -> tuple[Classes, float]:
    """The best mixture, each sample left out of what judges it."""

    def loss(share: float) -> float:
        total = 0.0
        for one in range(len(labels)):
            rest = np.arange(len(labels)) != one
            mixed = Classes.estimated(features[rest], labels[rest], given).mixed(given, share)
            total -= mixed.posteriors(features[one : one + 1], priors)[0, labels[one]]
        return total

    best = min(np.linspace(0, 1, 5).tolist(), key=loss)
    return Classes.estimated(features, labels, given).mixed(given, best), best


def priors_of(client: int) -> Array:
    counts = np.bincount(DATA.labels[DATA.train[client]].numpy(), minlength=CLASSES)
    made = counts / counts.sum() + 1e-4
    result: Array = made / made.sum()
    return result


def test_pfedfda() -> None:
    hand = Rounds("convnet", training(rounds=4, momentum=0.5, weight_decay=0.01, lr=0.1))
    entry = method("pfedfda", grid=5)
    begun = entry.init_shared(*facts(entry, hand.net))
    assert begun["means"].min() >= 0 and begun["means"].max() <= 1 and begun["means"].unique().numel() > 30
    known, chosen = Classes(begun["means"].double().numpy(), np.eye(begun["means"].shape[1])), set()

    def seen(client: int) -> tuple[Array, Array]:
        features, labels = hand.see([DATA.train[client]])
        return features.double().numpy(), labels.numpy()

    for round_, cohort in hand:
        ended, mixtures = {}, {}
        for i in cohort:
            inverse, priors = torch.from_numpy(np.linalg.inv(known.covariance)).float(), priors_of(i)
            means = torch.from_numpy(known.means).float()

            def loss(rows: Tensor, means: Tensor = means, inverse: Tensor = inverse, priors: Array = priors) -> Tensor:
                hand.logits(rows)
                away = hand.features.unsqueeze(1) - means
                logits = torch.from_numpy(priors).float().log() - 0.5 * ((away @ inverse) * away).sum(-1)
                return F.cross_entropy(logits, hand.labels(rows))

            ended[i] = hand.train(i, round_, loss=loss, moved=hand.parameters(head=False))
            mixtures[i], share = fitted(*seen(i), known, priors)
            chosen.add(share)
        hand.x = hand.mean(ended)
        shares = hand.shares(cohort)
        known = Classes(
            sum(share * mixtures[i].means for i, share in shares.items()),
            sum(share * mixtures[i].covariance for i, share in shares.items()),
        )
    assert len(chosen) > 1
    result = hand.run(entry)
    told = {"means": torch.from_numpy(known.means).float(), "covariance": torch.from_numpy(known.covariance).float()}
    body = {name: tensor for name, tensor in hand.x.items() if not name.startswith("head.")}
    near(result.weights, body, add_prefix("common/", told), atol=1e-4)
    hand.lend(hand.x)
    measured = []
    for i, rows in enumerate(DATA.test):
        mixture, _ = fitted(*seen(i), known, priors_of(i))
        features, labels = hand.see([rows])
        likely = mixture.posteriors(features.double().numpy(), priors_of(i))
        measured.append(-likely[np.arange(len(rows)), labels.numpy()].mean())
    losses(result, measured)


# --- FedAS -----------------------------------------------------------------------------------------------------------


def test_fedas() -> None:
    hand, rate = Rounds("convnet", training(rounds=4, momentum=0.5, weight_decay=0.01), own="head."), 0.5
    last = [hand.initial] * 3
    prototypes: list[dict[int, Tensor]] = [{}, {}, {}]
    moved = 0.0

    def align(client: int, steps: list[Tensor]) -> None:
        sgd = torch.optim.SGD((hand.model.get_parameter(name) for name in hand.parameters(head=False)), rate)
        for rows in steps:
            sgd.zero_grad()
            hand.logits(rows)
            labels = hand.labels(rows)
            terms = [
                F.mse_loss(hand.features[labels == one], known.expand_as(hand.features[labels == one]))
                for one, known in prototypes[client].items()
                if one in labels.tolist()
            ]
            if terms:
                torch.stack(terms).sum().backward()
                sgd.step()

    for round_, cohort in hand:
        traces = {}
        for i in cohort:
            hand.lend(last[i], hand.x)
            align(i, hand.passes(i, "phase 3", round_, 2))
            moved = max(moved, *(float((hand.state()[name] - hand.x[name]).abs().max()) for name in hand.x))
            last[i] = hand.descend(hand.rows(i, round_))
            hand.own[i] = {name: last[i][name] for name in hand.own[i]}
            features, labels = hand.see([DATA.train[i]])
            prototypes[i] = {one: features[labels == one].mean(0) for one in labels.unique().tolist()}
            slopes = [hand.slopes(last[i], batch) for batch in hand.passes(i, "phase 5", round_)]
            traces[i] = sum(float(one.square().sum()) for each in slopes for one in each.values())
        shares = {i: trace / sum(traces.values()) for i, trace in traces.items()}
        hand.x = {n: sum(share * last[i][n] for i, share in shares.items()) for n in hand.x}
    assert moved > 0.01
    result = hand.run(method("fedas", align_lr=rate, align_epochs=2))
    bodies = [add_prefix(f"client.{i}.own/body/", {n: one[n] for n in hand.x}) for i, one in enumerate(last)]
    hand.check(result, *bodies, measured=False)
    losses(result, [hand.loss(i, one) for i, one in enumerate(last)])
    for i, own in enumerate(prototypes):
        assert result.weights[f"client.{i}.own/present"].nonzero().flatten().tolist() == sorted(own)
        near(dict(enumerate(result.weights[f"client.{i}.own/prototypes"])), own)


# --- pFedGP ----------------------------------------------------------------------------------------------------------

GIBBS = {"gibbs_steps": 3, "chains": 4, "measured_chains": 6}


def first_side(features: Tensor, first: Tensor, others: Tensor, chains: int, draws: torch.Generator) -> Tensor:
    """Probabilities of the first side, by a textbook's formulas: inverses and a sum over a grid."""

    def covariances(one: Tensor, other: Tensor) -> Tensor:
        return SCALE * torch.exp(-torch.cdist(one, other).square() / 2)

    one, other = (part.double() / part.double().norm(dim=1, keepdim=True) for part in (features, others))
    prior = covariances(one, one) + JITTER * torch.eye(len(one))
    signs = torch.where(first, 0.5, -0.5).double()
    across, parts = covariances(one, other), []
    for omega in gibbs(prior.detach(), signs, GIBBS["gibbs_steps"], chains, draws):
        inverse = torch.linalg.inv(prior + torch.diag(1 / omega))
        mean = across.T @ inverse @ (signs / omega)
        variance = SCALE + JITTER - torch.einsum("nm,nk,km->m", across, inverse, across)
        grid = torch.linspace(-9, 9, 721, dtype=torch.float64)
        at = mean.unsqueeze(1) + variance.sqrt().unsqueeze(1) * grid
        parts.append(at.sigmoid() @ torch.exp(-grid.square() / 2) / torch.exp(-grid.square() / 2).sum())
    return torch.stack(parts).mean(0)


def draws_of(round_: int, client: int, purpose: str, *ids: int) -> torch.Generator:
    own = torch_seed(SEED, "draws", round_, client)
    return torch.Generator().manual_seed(torch_seed(own, f"pfedgp {purpose}", *ids))


def means_of(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    means = torch.zeros(CLASSES, features.shape[1])
    for label in labels.unique():
        means[label] = features[labels == label].mean(0)
    return means, torch.bincount(labels, minlength=CLASSES) > 0


def test_pfedgp() -> None:
    hand = Rounds("convnet", training(momentum=0.5, weight_decay=0.01, batch_size=8))
    for round_, cohort in hand:
        ended = {}
        for i in cohort:
            hand.lend(hand.x)
            tree = class_tree(*means_of(*hand.see([DATA.train[i]])))
            streams = (draws_of(round_, i, "step", step) for step in range(100))

            def loss(rows: Tensor, tree: Tensor = tree, streams: Iterator[torch.Generator] = streams) -> Tensor:
                draws, labels = next(streams), hand.labels(rows)
                hand.logits(rows)
                total = hand.features.sum() * 0
                for sides in tree:
                    given, held = list[int](), list[int]()
                    for side in (1, -1):
                        places = [place for place, label in enumerate(labels.tolist()) if sides[label] == side]
                        order = torch.randperm(len(places), generator=draws).tolist()
                        half = len(places) - len(places) // 2
                        given += [places[one] for one in order[:half]]
                        held += [places[one] for one in order[half:]]
                    if held:
                        first, seen = sides[labels] > 0, hand.features
                        likely = first_side(seen[given], first[given], seen[held], GIBBS["chains"], draws)
                        total = total - torch.where(first[held], likely, 1 - likely).log().mean()
                return total

            ended[i] = hand.train(i, round_, loss=loss, moved=hand.parameters(head=False))
        hand.x = hand.mean(ended, "uniform")
    result = hand.run(method("pfedgp", **GIBBS))
    near(result.weights, {name: tensor for name, tensor in hand.x.items() if not name.startswith("head.")}, atol=1e-5)
    hand.lend(hand.x)
    measured = []
    for i in range(3):
        features, labels = hand.see([DATA.train[i]])
        others, truth = hand.see([DATA.test[i]])
        draws = draws_of(hand.settings.rounds + 1, i, "measurement")
        means, present = means_of(features, labels)
        likely = present.double().expand(len(truth), CLASSES).clone()
        for sides in class_tree(means, present):
            mine = sides[labels] != 0
            chains = GIBBS["measured_chains"]
            first = first_side(features[mine], sides[labels[mine]] > 0, others, chains, draws).unsqueeze(1)
            likely[:, sides > 0] *= first
            likely[:, sides < 0] *= 1 - first
        torch.testing.assert_close(likely.sum(1), torch.ones(len(truth), dtype=torch.float64))
        measured.append(-(likely[torch.arange(len(truth)), truth] + 1e-12).log().mean().item())
    losses(result, measured)


def test_clients_of_one_class_and_classes_of_no_client() -> None:
    data = federation((9,), (4,))
    data.labels[:] = 2
    result = run(method("pfedgp"), backbone("convnet"), data, training=training(sample_rate=1.0))
    assert result.correct.tolist() == [4, 4] and result.loss.max() < 1e-6
    data = federation((12,), (6,))
    data.labels[data.train[0]], data.labels[data.test[0]] = torch.arange(12) % 3, 3
    result = run(method("pfedgp"), backbone("convnet"), data, training=training(sample_rate=1.0))
    assert result.loss.tolist() == pytest.approx([-np.log(1e-12)] * 2, rel=1e-4) and not result.correct.any()
