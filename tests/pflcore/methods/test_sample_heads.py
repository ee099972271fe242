"""Classifiers made of a client's own samples (pFedFDA, pFedGP), and FedAS, against textbook formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from support.by_hand import SEED, Rounds, State, losses, near
from support.tiny import CLASSES, backbone, facts, federation, method, run, training
from torch import Tensor
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import add_prefix
from pflcore.operators.class_tree import class_tree
from pflcore.operators.gaussian_process import JITTER, SCALE, gibbs
from pflcore.seeds import torch_seed

DATA = federation()
Array = np.ndarray[Any, Any]


def test_options_that_do_not_go_together() -> None:
    for name in ("pfedfda", "pfedgp", "ifca", "per_fedavg"):
        with pytest.raises(UserError, match=rf"^method {name}: finetune_\*: "):
            method(name, finetune_epochs=1)
    for name in ("pfedgp", "fedrod"):
        with pytest.raises(UserError, match=rf"^method {name}.* training\.class_weights"):
            run(method(name), backbone("convnet"), training=training(class_weights="balanced"))


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
    begun = entry.init_shared(*facts(entry, hand.net))["means"]
    assert begun.min() >= 0 and begun.max() <= 1 and begun.unique().numel() > 30
    known, chosen = Classes(begun.double().numpy(), np.eye(begun.shape[1])), set()

    def seen(client: int) -> tuple[Array, Array]:
        features, labels = hand.see([DATA.train[client]])
        return features.double().numpy(), labels.numpy()

    def train(i: int, round_: int) -> State:
        inverse, means = (torch.from_numpy(one).float() for one in (np.linalg.inv(known.covariance), known.means))
        priors = torch.from_numpy(priors_of(i)).float().log()

        def loss(rows: Tensor) -> Tensor:
            hand.logits(rows)
            away = hand.features.unsqueeze(1) - means
            return F.cross_entropy(priors - 0.5 * ((away @ inverse) * away).sum(-1), hand.labels(rows))

        return hand.train(i, round_, loss=loss, moved=hand.parameters(head=False))

    for round_, cohort in hand:
        ended, mixtures = {}, {}
        for i in cohort:
            ended[i] = train(i, round_)
            mixtures[i], share = fitted(*seen(i), known, priors_of(i))
            chosen.add(share)
        hand.x, shares = hand.mean(ended), hand.shares(cohort)
        means, covariance = (
            sum(share * getattr(mixtures[i], part) for i, share in shares.items()) for part in ("means", "covariance")
        )
        known = Classes(means, covariance)
    assert len(chosen) > 1
    result = hand.run(entry)
    told = {name: torch.from_numpy(getattr(known, name)).float() for name in ("means", "covariance")}
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
            here = {one: hand.features[labels == one] for one in prototypes[client] if one in labels.tolist()}
            if here:
                sum((own - prototypes[client][one]).square().mean() for one, own in here.items()).backward()
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
    bodies = [add_prefix("body/", {n: one[n] for n in hand.x}) for one in last]
    hand.check(result, kept=bodies, models=last)
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


def tree_of(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    means = torch.zeros(CLASSES, features.shape[1])
    for label in labels.unique():
        means[label] = features[labels == label].mean(0)
    present = torch.bincount(labels, minlength=CLASSES) > 0
    return class_tree(means, present), present


def test_pfedgp() -> None:
    hand = Rounds("convnet", training(momentum=0.5, weight_decay=0.01, batch_size=8))

    def client(i: int, round_: int) -> State:
        hand.lend(hand.x)
        tree, _ = tree_of(*hand.see([DATA.train[i]]))
        streams = (draws_of(round_, i, "step", step) for step in range(100))

        def loss(rows: Tensor) -> Tensor:
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

        return hand.train(i, round_, loss=loss, moved=hand.parameters(head=False))

    hand.average(client, "uniform")
    result = hand.run(method("pfedgp", **GIBBS))
    near(result.weights, {name: tensor for name, tensor in hand.x.items() if not name.startswith("head.")}, atol=1e-5)
    hand.lend(hand.x)
    measured = []
    for i in range(3):
        (features, labels), (others, truth) = hand.see([DATA.train[i]]), hand.see([DATA.test[i]])
        draws = draws_of(hand.settings.rounds + 1, i, "measurement")
        tree, present = tree_of(features, labels)
        likely = present.double().expand(len(truth), CLASSES).clone()
        for sides in tree:
            mine, chains = sides[labels] != 0, GIBBS["measured_chains"]
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
    data.labels[data.train[0]], data.labels[data.test[0]] = torch.arange(9) % 3, 3
    result = run(method("pfedgp"), backbone("convnet"), data, training=training(sample_rate=1.0))
    assert result.loss.tolist() == pytest.approx([-np.log(1e-12)] * 2, rel=1e-4) and not result.correct.any()
