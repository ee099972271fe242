"""Methods that note means and covariances of features, against rounds written out with textbook formulas."""

import math
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from support.by_hand import SEED, Rounds, losses, near, near_rows
from support.tiny import CLASSES, backbone, facts, federation, method, run, texts, training
from torch.nn import functional as F

from pflcore.groups import add_prefix, strip_prefix
from pflcore.methods.prototypes import combinations
from pflcore.operators.gaussian_classifier import Gaussians, Interpolation, Moments
from pflcore.operators.gaussian_process import BinaryClassifier, class_tree
from pflcore.seeds import torch_seed


def means_of(features, labels):
    """Of each class that there is."""
    return {label: features[labels == label].mean(0) for label in labels.unique().tolist()}


@pytest.mark.parametrize("net", ["convnet", "language_transformer"])
def test_fedproto(net):
    """Prototypes are of the last epoch; each client lacks images of some classes."""
    data = texts() if net != "convnet" else federation((14, 7, 10))
    for rows, classes in zip(data.train, ([0, 1], [1, 2], [0]), strict=True):
        data.labels[rows] = torch.tensor(classes).repeat(len(rows))[: len(rows)]
    hand = Rounds(net, training(rounds=3, momentum=0.5, weight_decay=0.01), data)
    models, prototypes = [hand.initial] * 3, {}

    def client(i, round_):
        seen = []

        def loss(rows):
            logits, labels = hand.logits(rows), hand.labels(rows)
            seen.append((hand.features.detach(), labels))
            pairs = zip(hand.features, labels.tolist(), strict=True)
            away = sum((part - prototypes[label]).square().sum() for part, label in pairs if label in prototypes)
            return F.cross_entropy(logits, labels) + 0.7 * away / hand.features.numel()

        hand.lend(models[i])
        models[i] = hand.descend(hand.rows(i, round_), loss)
        return means_of(*(torch.cat(parts) for parts in zip(*seen[len(seen) // 2 :], strict=True)))

    for round_, cohort in hand:
        returned = [client(i, round_) for i in cohort]
        for label in range(CLASSES):
            if have := [part[label] for part in returned if label in part]:
                prototypes[label] = torch.stack(have).mean(0)
    result, far = hand.run("fedproto", lam=0.7), torch.tensor(math.inf)
    assert result.weights["common/present"].tolist() == [label in prototypes for label in range(CLASSES)]
    near(dict(enumerate(result.weights["common/prototypes"])), prototypes)
    for i, model in enumerate(models):
        near(strip_prefix(f"client.{i}.", result.weights) or hand.initial, model)
        hand.loss(i, model)
        away = [(hand.features - prototypes.get(c, far)).square().mean(1).detach() for c in range(CLASSES)]
        right = torch.stack(away, 1).argmin(1) == hand.labels(hand.data.test[i])
        assert result.correct[-3 + i] == int(right.sum())


def moments(features, labels):
    """h and V, class by class."""
    h, n = torch.zeros(CLASSES, features.shape[1]), len(labels)
    for label, mean in means_of(features, labels).items():
        h[label] = (labels == label).sum() / n * mean
    return h, (features.square().sum() / n - h.square().sum()) / n


@pytest.mark.parametrize("net, head_epochs", [("convnet", 2), ("norm", 1)])
def test_fedpac(net, head_epochs):
    settings = training(rounds=3, sample_rate=0.75, momentum=0.5, weight_decay=0.01)
    hand, lam = Rounds(net, settings, federation((14, 7, 9, 12), (5, 8, 6, 4)), own="head."), 2.0
    means_, mixed = {}, False

    def aligned(rows):
        loss, labels = hand.cross_entropy(rows), hand.labels(rows).tolist()
        away = [(h - means_[k] if k in means_ else 0 * h) for h, k in zip(hand.features, labels, strict=True)]
        return loss + lam * torch.stack(away).square().mean()

    for round_, cohort in hand:
        ended, sent, seen = {}, [], []
        for i in cohort:
            hand.lend(hand.x, hand.own[i])
            sent.append(moments(*hand.see(hand.passes(i, "phase 3", round_))))
            steps = hand.passes(i, "phase 4", round_, head_epochs)
            hand.descend(steps, moved=hand.parameters(head=True), statistics=False)
            ended[i] = hand.descend(hand.rows(i, round_), aligned, moved=hand.parameters(head=False))
            hand.train_losses[-1][i] = sum(hand.taken) / len(hand.taken)  # extra passes do not count
            seen.append(hand.see(hand.passes(i, "phase 6", round_)))
        hand.x = hand.mean(ended)
        means_ |= means_of(*(torch.cat(parts) for parts in zip(*seen, strict=True)))
        alphas = combinations(*(torch.stack(part) for part in zip(*sent, strict=True)))
        mixed |= bool(((alphas > 0.05).sum(1) > 1).any())
        for i, alpha in zip(cohort, alphas, strict=True):
            hand.own[i] = {n: sum(a * ended[j][n] for j, a in zip(cohort, alpha, strict=True)) for n in hand.own[i]}
    assert mixed
    result = hand.run(method("fedpac", lam=lam, head_epochs=head_epochs))
    np.testing.assert_allclose(result.train_loss, np.ravel(hand.train_losses), rtol=1e-3)
    near(dict(enumerate(result.weights["common/centroids"])), means_, atol=5e-4)
    near(result.weights, hand.x, atol=5e-4)
    for i, head in enumerate(hand.own):
        near_rows(result, "heads", i, head, atol=5e-4)
    if net == "convnet":
        losses(result, [hand.loss(i, hand.x, head) for i, head in enumerate(hand.own)])
        table = 4 * CLASSES * 8
        body = sum(tensor.nbytes for tensor in [*hand.x.values(), *hand.own[0].values()])
        assert result.cost.sent_up == body + 2 * table + 4 * (CLASSES + 1)
        assert result.cost.sent_down == body + table + CLASSES


def test_combinations_solve_the_programme():
    draw = torch.Generator().manual_seed(0)
    means, variances = torch.randn(4, 3, 2, generator=draw), torch.tensor([1.0, 3.0, 0.5, 2.0])
    for i, solution in enumerate(combinations(means, variances).double()):
        alpha = solution.clone().requires_grad_()
        away = means[i].double() - torch.einsum("j,jkf->kf", alpha, means.double())
        (slope,) = torch.autograd.grad((alpha.square() * variances).sum() + away.square().sum(), alpha)
        lowest = slope[solution > 0].mean()  # what counts has one slope, what does not none that is lower
        assert (slope[solution > 0] - lowest).abs().max() < 1e-4 < 1e-3 + (slope - lowest).min()
        assert float(solution.sum()) == pytest.approx(1, abs=1e-6) and float(solution.min()) >= 0
    means = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    for v, other in ((0.0045, 0.0), (0.0055, 0.0055 / 5.0055)):  # weights below a thousandth are none
        assert combinations(means, torch.tensor([v, 3.0]))[0].tolist() == pytest.approx([1 - other, other], abs=1e-6)
    for hopeless in (torch.zeros(2), torch.tensor([torch.inf, 1.0])):
        assert torch.equal(combinations(torch.zeros(2, 1, 2), hopeless), torch.eye(2))


def test_fedas():
    hand, rate = Rounds("convnet", training(rounds=4, momentum=0.5, weight_decay=0.01), own="head."), 0.5
    last, prototypes = [hand.initial] * 3, [{}, {}, {}]

    def align(i, steps):
        sgd = torch.optim.SGD((hand.model.get_parameter(name) for name in hand.parameters(head=False)), rate)
        for rows in steps:
            sgd.zero_grad()
            hand.logits(rows)
            terms = [(hand.features[hand.labels(rows) == it] - mean) for it, mean in prototypes[i].items()]
            if any(map(len, terms)):
                sum(away.square().mean() for away in terms if len(away)).backward()
                sgd.step()

    for round_, cohort in hand:
        traces = {}
        for i in cohort:
            hand.lend(last[i], hand.x)
            align(i, hand.passes(i, "phase 3", round_, 2))
            last[i] = hand.descend(hand.rows(i, round_))
            hand.own[i] = {name: last[i][name] for name in hand.own[i]}
            prototypes[i] = means_of(*hand.see([hand.data.train[i]]))
            slopes = [hand.slopes(last[i], batch) for batch in hand.passes(i, "phase 5", round_)]
            traces[i] = sum(float(it.square().sum()) for each in slopes for it in each.values())
        hand.x = {n: sum(trace * last[i][n] for i, trace in traces.items()) / sum(traces.values()) for n in hand.x}
    result = hand.run(method("fedas", align_lr=rate, align_epochs=2))
    hand.check(result, kept=[add_prefix("body/", {n: it[n] for n in hand.x}) for it in last], models=last)
    for i, prototype in enumerate(prototypes):
        assert result.weights[f"client.{i}.own/present"].nonzero().flatten().tolist() == sorted(prototype)
        near(dict(enumerate(result.weights[f"client.{i}.own/prototypes"])), prototype)


def test_pfedfda():
    entry, settings = method("pfedfda", grid=5), training(rounds=4, momentum=0.5, weight_decay=0.01, lr=0.1)
    hand = Rounds("convnet", settings)
    begun = entry.init_shared(*facts(entry, hand.net))["means"]
    reference, chosen = Gaussians(begun, torch.eye(begun.shape[1])), set()

    def priors(i):
        counts = torch.bincount(hand.labels(hand.data.train[i]), minlength=CLASSES)
        return (counts / counts.sum() + 1e-4).log()

    def logits(i, under):
        away = hand.features.unsqueeze(1) - under.means
        return priors(i) - 0.5 * ((away @ torch.linalg.inv(under.covariance)) * away).sum(-1)

    def fitted(i):
        seen = hand.see([hand.data.train[i]])
        estimates = Moments.zeros(reference).plus(*seen, reference).estimates()
        fit = Interpolation.create(estimates, reference, torch.linspace(0, 1, 5), priors(i))
        chosen.add(int(fit.losses(*seen).argmin()))
        return fit.best(fit.losses(*seen))

    def train(i, round_):
        def loss(rows):
            hand.logits(rows)
            return F.cross_entropy(logits(i, reference), hand.labels(rows))

        return hand.train(i, round_, loss=loss, moved=hand.parameters(head=False)) | vars(fitted(i))

    for round_, cohort in hand:
        ended = {i: train(i, round_) for i in cohort}
        reference, hand.x = Gaussians(**hand.mean(ended, of=vars(reference))), hand.mean(ended)
    assert len(chosen) > 1 and begun.min() >= 0 and begun.max() <= 1 and begun.unique().numel() > 30
    result = hand.run(entry)
    body = {name: tensor for name, tensor in hand.x.items() if not name.startswith("head.")}
    near(result.weights, body, add_prefix("common/", vars(reference)), atol=1e-4)
    hand.lend(hand.x)
    mixtures = [fitted(i) for i in range(3)]
    losses(result, [hand.loss(i, hand.x, logits=lambda i, _: logits(i, mixtures[i])) for i in range(3)])


def draws_of(round_, client, purpose, *ids):
    seed = torch_seed(SEED, "draws", round_, client)
    return torch.Generator().manual_seed(torch_seed(seed, f"pfedgp {purpose}", *ids))


def tree_of(features, labels):
    means, table = means_of(features, labels), torch.zeros(CLASSES, features.shape[1])
    for label, mean in means.items():
        table[label] = mean
    return class_tree(table, torch.tensor([label in means for label in range(CLASSES)]))


def test_pfedgp():
    hand = Rounds("convnet", training(momentum=0.5, weight_decay=0.01, batch_size=8))

    def client(i, round_):
        hand.lend(hand.x)
        tree, streams = tree_of(*hand.see([hand.data.train[i]])), map(partial(draws_of, round_, i, "step"), count())

        def loss(rows):
            draws, total = next(streams), 0 * hand.cross_entropy(rows)
            for sides in tree[:, hand.labels(rows)]:
                fit_rows, test_rows = [], []
                for side in (1, -1):
                    places = (sides == side).nonzero().flatten()
                    drawn = places[torch.randperm(len(places), generator=draws)].tolist()
                    half = len(places) - len(places) // 2
                    fit_rows, test_rows = fit_rows + drawn[:half], test_rows + drawn[half:]
                if test_rows:
                    node = BinaryClassifier.fit(hand.features[fit_rows], sides[fit_rows] > 0, 3, 4, draws)
                    likely = node.probability(hand.features[test_rows])
                    total = total - torch.where(sides[test_rows] > 0, likely, 1 - likely).log().mean()
            return total

        return hand.train(i, round_, loss=loss, moved=hand.parameters(head=False))

    hand.average(client, "uniform")
    result = hand.run(method("pfedgp", gibbs_steps=3, chains=4, measured_chains=6))
    near(result.weights, {name: tensor for name, tensor in hand.x.items() if not name.startswith("head.")}, atol=1e-5)
    hand.lend(hand.x)
    measured = []
    for i in range(3):
        (features, labels), (others, truth) = hand.see([hand.data.train[i]]), hand.see([hand.data.test[i]])
        draws = draws_of(3, i, "measurement")
        likely = (torch.bincount(labels, minlength=CLASSES) > 0).double().repeat(len(truth), 1)
        for sides in tree_of(features, labels):
            members = sides[labels] != 0
            node = BinaryClassifier.fit(features[members], sides[labels[members]] > 0, 3, 6, draws)
            first = node.probability(others).unsqueeze(1)
            likely[:, sides > 0] *= first
            likely[:, sides < 0] *= 1 - first
        measured.append(-(likely[torch.arange(len(truth)), truth] + 1e-12).log().mean().item())
    losses(result, measured)


def test_clients_of_one_class_and_classes_of_no_client():
    data, settings = federation((9,), (4,)), training(sample_rate=1.0)
    data.labels[:] = 2
    result = run(method("pfedgp"), backbone("convnet"), data, training=settings)
    assert result.correct.tolist() == [4, 4] and result.loss.max() < 1e-6
    data.labels[data.train[0]], data.labels[data.test[0]] = torch.arange(9) % 3, 3
    result = run(method("pfedgp"), backbone("convnet"), data, training=settings)
    assert result.loss.tolist() == pytest.approx([-math.log(1e-12)] * 2, rel=1e-4) and not result.correct.any()
