"""FedPAC against rounds written out with a module, PyTorch's SGD and a general solver of quadratic programmes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from support.by_hand import Hand, State
from support.tiny import (
    CLASSES,
    EXECUTORS,
    TEXT,
    NormNet,
    backbone,
    facts,
    federation,
    method,
    normalised,
    run,
    run_by_all,
    sampled,
    spied,
    training,
)
from torch import Tensor
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.method import Update
from pflcore.methods.fedpac import combinations

SEED, LAM = 3, 2.0
DATA = federation((14, 7, 9, 12), (5, 8, 6, 4))


def programme(client: int, means: list[Tensor], variances: list[float]) -> np.ndarray[Any, Any]:
    """The weights of a client's combination, by sequential quadratic programming."""
    h = np.stack([one.flatten().double().numpy() for one in means])
    scale = 1 / np.square(h).mean()

    def objective(alpha: np.ndarray[Any, Any]) -> float:
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


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("net", "head_epochs"), [("convnet", 2), ("norm", 1)])
def test_rounds_are_those_of_the_algorithm(net: str, head_epochs: int, executor: str) -> None:
    chosen = NormNet() if net == "norm" else backbone(net)
    settings = training(rounds=3, sample_rate=0.75, momentum=0.5, weight_decay=0.01)
    entry = method("fedpac", lam=LAM, head_epochs=head_epochs)
    result = run(entry, chosen, DATA, training=settings, seed=SEED, executor=executor)
    hand = Hand(chosen, DATA, settings, SEED)
    body = {name: tensor for name, tensor in hand.initial.items() if not name.startswith("head.")}
    heads = [{name: tensor for name, tensor in hand.initial.items() if name not in body} for _ in range(4)]
    known: dict[int, Tensor] = {}

    def aligned(rows: Tensor) -> Tensor:
        loss = hand.cross_entropy(rows)
        targets = [known.get(one) for one in DATA.labels[rows].tolist()]
        away = [
            (own - target if target is not None else 0 * own).square().mean()
            for own, target in zip(hand.features, targets, strict=True)
        ]
        return loss + LAM * torch.stack(away).mean()

    mixed = False
    for round_ in range(1, settings.rounds + 1):
        cohort = sampled(SEED, round_, 4, settings)
        ended: dict[int, State] = {}
        told, seen = [], []
        for client in cohort:
            hand.model.load_state_dict({**body, **heads[client]})
            told.append(moments(*hand.see(hand.passes(client, 3, round_))))
            steps = hand.passes(client, 4, round_, head_epochs)
            hand.descend(hand.parameters(head=True), steps, hand.cross_entropy, statistics=False)
            hand.descend(hand.parameters(head=False), hand.rows(client, round_), aligned)
            seen.append(centroids(*hand.see(hand.passes(client, 6, round_))))
            ended[client] = hand.state()
        total = sum(len(DATA.train[client]) for client in cohort)
        for name, tensor in body.items():
            if tensor.is_floating_point():
                body[name] = sum(len(DATA.train[client]) / total * ended[client][name] for client in cohort)
        for one in range(CLASSES):
            if parts := [own[one] for own in seen if one in own]:
                known[one] = sum(count * mean for mean, count in parts) / sum(count for _, count in parts)
        for place, client in enumerate(cohort):
            alpha = programme(place, [h for h, _ in told], [v for _, v in told])
            mixed |= bool((alpha > 0.05).sum() > 1)
            heads[client] = {
                name: sum(float(share) * ended[other][name] for share, other in zip(alpha, cohort, strict=True))
                for name in heads[client]
            }
    assert mixed

    def close(name: str, actual: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(actual, expected, rtol=2e-3, atol=5e-4, msg=lambda text: name + text)

    for name, tensor in body.items():
        if tensor.is_floating_point():
            close(name, result.weights[name], tensor)
    for one, tensor in known.items():
        close("centroids", result.weights["common/centroids"][one], tensor)
    for client in range(4):
        for name, tensor in heads[client].items():
            close(name, result.weights[f"server.heads/{name}"][client], tensor)
        hand.model.load_state_dict({**hand.state(), **body, **heads[client]})
        rows = DATA.test[client]
        if net != "norm":
            loss = float(F.cross_entropy(hand.model(normalised(DATA, rows)).detach(), DATA.labels[rows]))
            assert result.loss[8 + client] == pytest.approx(loss, rel=1e-3)


def test_a_class_that_nobody_in_the_round_has_keeps_its_centroid() -> None:
    data, seen, settings = federation(), list[list[Update]](), training(rounds=3, sample_rate=0.34)
    for client, rows in enumerate(data.train):
        data.labels[rows] = client
    weights = run(spied(method("fedpac"), seen), backbone("convnet"), data, training=settings, seed=SEED).weights
    last = {one.client: one.returned["common/centroids"] for updates in seen for one in updates}
    assert len(last) > 1
    assert weights["common/known"].nonzero().flatten().tolist() == sorted(last)
    for client, centroids_ in last.items():
        torch.testing.assert_close(weights["common/centroids"][client], centroids_[client])
        assert not centroids_[[one for one in range(CLASSES) if one != client]].any()


def test_combinations_solve_the_programme() -> None:
    drawn = torch.Generator().manual_seed(1)
    for clients, noise in ((2, 0.1), (5, 0.5), (9, 3.0)):
        means = torch.rand(3, 4, generator=drawn) + noise * torch.rand(clients, 3, 4, generator=drawn)
        variances = noise * torch.rand(clients, generator=drawn)
        shares = combinations(means, variances)
        for client in range(clients):
            expected = programme(client, list(means), variances.tolist())
            np.testing.assert_allclose(shares[client].numpy(), expected, atol=2e-4)


def test_two_clients_combine_by_variance_and_distance() -> None:
    """α of the other is V_1 / (V_1 + V_2 + d²), from the derivative."""
    means = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    shares = combinations(means, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(shares, torch.tensor([[5 / 6, 1 / 6], [0.5, 0.5]]))
    # Weights below a thousandth are none.
    for own, other in ((0.0045, 0.0), (0.0055, 0.0055 / 5.0055)):
        assert combinations(means, torch.tensor([own, 3.0]))[0].tolist() == pytest.approx([1 - other, other], abs=1e-6)
    for hopeless in (torch.zeros(2), torch.tensor([torch.inf, 1.0])):
        assert torch.equal(combinations(torch.zeros(2, 1, 2), hopeless), torch.eye(2))


def test_clients_may_keep_their_own_classifiers() -> None:
    result = run_by_all(method("fedpac", also_personal=("head",)), backbone("convnet"))
    own = [result.weights[f"client.{client}.head.weight"] for client in range(3)]
    assert not any(torch.equal(own[one], own[other]) for one, other in ((0, 1), (1, 2), (0, 2)))
    assert not any(name.startswith("server.heads/") for name in result.weights)


def test_without_weight_nothing_is_aligned() -> None:
    plain, drawn = (run(method("fedpac", lam=lam), backbone("convnet"), DATA).weights for lam in (0.0, 5.0))
    assert not torch.equal(plain["conv1.weight"], drawn["conv1.weight"])


@pytest.mark.parametrize("net", ["norm_net", TEXT])
def test_class_weights_act_and_executors_agree(net: str) -> None:
    chosen = NormNet() if net == "norm_net" else backbone(net)
    first = run_by_all(method("fedpac"), chosen, training=training(class_weights="balanced", batch_size=6))
    plain = run(method("fedpac"), chosen, training=training(batch_size=6))
    assert not np.allclose(first.loss, plain.loss, rtol=1e-6)


def test_moments_are_sent_up_and_known_classes_down() -> None:
    cost, plain = (run(method(name), backbone("convnet"), DATA).cost for name in ("fedpac", "fedavg"))
    table = 4 * CLASSES * 8
    assert cost.sent_up == plain.sent_up + 2 * table + 4 * (CLASSES + 1)
    assert cost.sent_down == plain.sent_down + table + CLASSES


def test_what_cannot_be_is_one_line() -> None:
    entry = method("fedpac")
    initial, roles, known = facts(entry, backbone("convnet"))
    with pytest.raises(UserError, match=r"^method fedpac needs a backbone with a classifier, a group 'head'$"):
        entry.common(initial, roles, replace(known, head=(), features=0))
    with pytest.raises(UserError, match=r"^method fedpac: all but the classifier is personal"):
        run(method("fedpac", also_personal=("conv", "fc")), backbone("convnet"), DATA)
    with pytest.raises(UserError, match="head_epochs"):
        method("fedpac", head_epochs=0)
