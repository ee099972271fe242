"""Methods that note means and covariances of features, against rounds written out with textbook formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.by_hand import SEED, Rounds, State, losses, near
from support.tiny import CLASSES, backbone, facts, federation, method, run, texts, training
from torch import Tensor
from torch.nn import functional as F

from pflcore.groups import add_prefix, strip_prefix
from pflcore.methods.prototypes import combinations
from pflcore.operators.gaussian_classifier import Gaussians, Interpolation, Moments
from pflcore.operators.gaussian_process import BinaryClassifier, class_tree
from pflcore.seeds import torch_seed

DATA = federation()
SETTINGS = training(rounds=3, momentum=0.5, weight_decay=0.01)


# --- FedProto --------------------------------------------------------------------------------------------------------


def some_classes() -> Any:
    """Images of which every client lacks classes."""
    data = federation((14, 7, 10))
    for rows, classes in zip(data.train, ([0, 1], [1, 2], [0]), strict=True):
        data.labels[rows] = torch.tensor(classes).repeat(len(rows))[: len(rows)]
    return data


@pytest.mark.parametrize("net", ["convnet", "language_transformer"])
def test_fedproto(net: str) -> None:
    """Prototypes are of the last epoch."""
    hand = Rounds(net, SETTINGS, some_classes() if net == "convnet" else texts())
    models, known = [hand.initial] * 3, dict[int, Tensor]()

    def client(i: int, round_: int) -> dict[int, Tensor]:
        epoch = -(-len(hand.data.train[i]) // hand.settings.batch_size)
        seen = list[tuple[Tensor, Tensor]]()

        def loss(rows: Tensor) -> Tensor:
            if len(seen) % epoch == 0:
                seen.clear()
            logits, labels = hand.logits(rows), hand.labels(rows)
            seen.append((hand.features.detach(), labels))
            pairs = zip(hand.features, labels.tolist(), strict=True)
            away = sum((one - known[label]).square().sum() for one, label in pairs if label in known)
            return F.cross_entropy(logits, labels) + 0.7 * away / hand.features.numel()

        hand.lend(models[i])
        models[i] = hand.descend(hand.rows(i, round_), loss)
        features, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        return {label: features[labels == label].mean(0) for label in labels.unique().tolist()}

    for round_, cohort in hand:
        returned = [client(i, round_) for i in cohort]
        for label in range(CLASSES):
            if have := [one[label] for one in returned if label in one]:
                known[label] = torch.stack(have).mean(0)
    result = hand.run("fedproto", lam=0.7)
    assert result.weights["common/present"].tolist() == [label in known for label in range(CLASSES)]
    near(dict(enumerate(result.weights["common/prototypes"])), known)
    far = torch.tensor(math.inf)
    for i, own in enumerate(models):
        near(strip_prefix(f"client.{i}.", result.weights) or hand.initial, own)
        hand.loss(i, own)
        away = [(hand.features - known.get(c, far)).square().mean(1).detach() for c in range(CLASSES)]
        right = torch.stack(away, 1).argmin(1) == hand.labels(hand.data.test[i])
        assert result.correct[-3 + i] == int(right.sum())


# --- FedPAC ----------------------------------------------------------------------------------------------------------


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
            seen.append(hand.see(hand.passes(i, "phase 6", round_)))
        hand.x, (features, labels) = hand.mean(ended), (torch.cat(parts) for parts in zip(*seen, strict=True))
        known |= {one: features[labels == one].mean(0) for one in labels.unique().tolist()}
        alphas = combinations(torch.stack([h for h, _ in told]), torch.tensor([v for _, v in told]))
        mixed |= bool(((alphas > 0.05).sum(1) > 1).any())
        for i, alpha in zip(cohort, alphas, strict=True):
            shares = dict(zip(cohort, alpha.tolist(), strict=True))
            hand.own[i] = {n: sum(share * ended[j][n] for j, share in shares.items()) for n in hand.own[i]}
    assert mixed
    result = hand.run(method("fedpac", lam=lam, head_epochs=head_epochs))
    centroids = {f"{label}": result.weights["common/centroids"][label] for label in known}
    heads = {f"{i}.{n}": result.weights[f"server.heads/{n}"][i] for i, own in enumerate(hand.own) for n in own}
    expected = {f"{i}.{n}": tensor for i, own in enumerate(hand.own) for n, tensor in own.items()}
    near(
        result.weights | centroids | heads, hand.x, {f"{one}": mean for one, mean in known.items()}, expected, atol=5e-4
    )
    if net != "norm":
        losses(result, [hand.loss(i, hand.x, own) for i, own in enumerate(hand.own)])
    table = 4 * CLASSES * 8  # of the convnet's features
    body = sum(tensor.nbytes for tensor in hand.x.values()) + sum(tensor.nbytes for tensor in hand.own[0].values())
    if net == "convnet":
        assert result.cost.sent_up == body + 2 * table + 4 * (CLASSES + 1)
        assert result.cost.sent_down == body + table + CLASSES


def test_combinations_solve_the_programme() -> None:
    draw = torch.Generator().manual_seed(0)
    means, variances = torch.randn(4, 3, 2, generator=draw), torch.tensor([1.0, 3.0, 0.5, 2.0])
    for i, found in enumerate(combinations(means, variances).double()):
        alpha = found.clone().requires_grad_()
        away = means[i].double() - torch.einsum("j,jkf->kf", alpha, means.double())
        (slope,) = torch.autograd.grad((alpha.square() * variances).sum() + away.square().sum(), alpha)
        lowest = slope[found > 0].mean()  # what counts has one slope, what does not none that is lower
        assert (slope[found > 0] - lowest).abs().max() < 1e-4 < 1e-3 + (slope - lowest).min()
        assert float(found.sum()) == pytest.approx(1, abs=1e-6) and float(found.min()) >= 0
    means = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    for own, other in ((0.0045, 0.0), (0.0055, 0.0055 / 5.0055)):  # weights below a thousandth are none
        assert combinations(means, torch.tensor([own, 3.0]))[0].tolist() == pytest.approx([1 - other, other], abs=1e-6)
    for hopeless in (torch.zeros(2), torch.tensor([torch.inf, 1.0])):
        assert torch.equal(combinations(torch.zeros(2, 1, 2), hopeless), torch.eye(2))


# --- FedAS -----------------------------------------------------------------------------------------------------------


def test_fedas() -> None:
    hand, rate = Rounds("convnet", training(rounds=4, momentum=0.5, weight_decay=0.01), own="head."), 0.5
    last = [hand.initial] * 3
    prototypes: list[dict[int, Tensor]] = [{}, {}, {}]

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
            last[i] = hand.descend(hand.rows(i, round_))
            hand.own[i] = {name: last[i][name] for name in hand.own[i]}
            features, labels = hand.see([DATA.train[i]])
            prototypes[i] = {one: features[labels == one].mean(0) for one in labels.unique().tolist()}
            slopes = [hand.slopes(last[i], batch) for batch in hand.passes(i, "phase 5", round_)]
            traces[i] = sum(float(one.square().sum()) for each in slopes for one in each.values())
        hand.x = {n: sum(trace * last[i][n] for i, trace in traces.items()) / sum(traces.values()) for n in hand.x}
    result = hand.run(method("fedas", align_lr=rate, align_epochs=2))
    hand.check(result, kept=[add_prefix("body/", {n: one[n] for n in hand.x}) for one in last], models=last)
    for i, own in enumerate(prototypes):
        assert result.weights[f"client.{i}.own/present"].nonzero().flatten().tolist() == sorted(own)
        near(dict(enumerate(result.weights[f"client.{i}.own/prototypes"])), own)


# --- pFedFDA ---------------------------------------------------------------------------------------------------------


def test_pfedfda() -> None:
    hand, shares = (
        Rounds("convnet", training(rounds=4, momentum=0.5, weight_decay=0.01, lr=0.1)),
        torch.linspace(0, 1, 5),
    )
    entry = method("pfedfda", grid=5)
    begun = entry.init_shared(*facts(entry, hand.net))["means"]
    known, chosen = Gaussians(begun, torch.eye(begun.shape[1])), set()

    def priors(i: int) -> Tensor:
        counts = torch.bincount(DATA.labels[DATA.train[i]], minlength=CLASSES)
        return (counts / counts.sum() + 1e-4).log()

    def logits(i: int, under: Gaussians) -> Tensor:
        away = hand.features.unsqueeze(1) - under.means
        return priors(i) - 0.5 * ((away @ torch.linalg.inv(under.covariance)) * away).sum(-1)

    def fitted(i: int) -> Gaussians:
        seen = hand.see([DATA.train[i]])
        fit = Interpolation.of(Moments.none(known).plus(*seen, known).estimates(), known, shares, priors(i))
        chosen.add(int(fit.losses(*seen).argmin()))
        return fit.best(fit.losses(*seen))

    def train(i: int, round_: int) -> State:
        def loss(rows: Tensor) -> Tensor:
            hand.logits(rows)
            return F.cross_entropy(logits(i, known), hand.labels(rows))

        return hand.train(i, round_, loss=loss, moved=hand.parameters(head=False)) | vars(fitted(i))

    for round_, cohort in hand:
        ended = {i: train(i, round_) for i in cohort}
        known, hand.x = Gaussians(**hand.mean(ended, of=vars(known))), hand.mean(ended)
    assert len(chosen) > 1 and begun.min() >= 0 and begun.max() <= 1 and begun.unique().numel() > 30
    result = hand.run(entry)
    body = {name: tensor for name, tensor in hand.x.items() if not name.startswith("head.")}
    near(result.weights, body, add_prefix("common/", vars(known)), atol=1e-4)
    hand.lend(hand.x)
    mixtures = [fitted(i) for i in range(3)]
    losses(result, [hand.loss(i, hand.x, logits=lambda i, _: logits(i, mixtures[i])) for i in range(3)])


# --- pFedGP ----------------------------------------------------------------------------------------------------------


def draws_of(round_: int, client: int, purpose: str, *ids: int) -> torch.Generator:
    own = torch_seed(SEED, "draws", round_, client)
    return torch.Generator().manual_seed(torch_seed(own, f"pfedgp {purpose}", *ids))


def tree_of(features: Tensor, labels: Tensor) -> Tensor:
    present = torch.bincount(labels, minlength=CLASSES) > 0
    means = [features[labels == one].mean(0) if present[one] else features[0] * 0 for one in range(CLASSES)]
    return class_tree(torch.stack(means), present)


def test_pfedgp() -> None:
    hand = Rounds("convnet", training(momentum=0.5, weight_decay=0.01, batch_size=8))

    def client(i: int, round_: int) -> State:
        hand.lend(hand.x)
        tree = tree_of(*hand.see([DATA.train[i]]))
        streams = (draws_of(round_, i, "step", step) for step in range(100))

        def loss(rows: Tensor) -> Tensor:
            draws, labels = next(streams), hand.labels(rows)
            hand.logits(rows)
            total = hand.features.sum() * 0
            for sides in tree[:, labels]:
                given, held = list[int](), list[int]()
                for side in (1, -1):
                    places = (sides == side).nonzero().flatten().tolist()
                    drawn = [places[one] for one in torch.randperm(len(places), generator=draws).tolist()]
                    half = len(places) - len(places) // 2
                    given, held = given + drawn[:half], held + drawn[half:]
                if held:
                    node = BinaryClassifier.fitted(hand.features[given], sides[given] > 0, 3, 4, draws)
                    likely = node.probability(hand.features[held])
                    total = total - torch.where(sides[held] > 0, likely, 1 - likely).log().mean()
            return total

        return hand.train(i, round_, loss=loss, moved=hand.parameters(head=False))

    hand.average(client, "uniform")
    result = hand.run(method("pfedgp", gibbs_steps=3, chains=4, measured_chains=6))
    near(result.weights, {name: tensor for name, tensor in hand.x.items() if not name.startswith("head.")}, atol=1e-5)
    hand.lend(hand.x)
    measured = []
    for i in range(3):
        (features, labels), (others, truth) = hand.see([DATA.train[i]]), hand.see([DATA.test[i]])
        draws = draws_of(hand.settings.rounds + 1, i, "measurement")
        likely = (torch.bincount(labels, minlength=CLASSES) > 0).double().expand(len(truth), CLASSES).clone()
        for sides in tree_of(features, labels):
            mine = sides[labels] != 0
            node = BinaryClassifier.fitted(features[mine], sides[labels[mine]] > 0, 3, 6, draws)
            first = node.probability(others).unsqueeze(1)
            likely[:, sides > 0] *= first
            likely[:, sides < 0] *= 1 - first
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
