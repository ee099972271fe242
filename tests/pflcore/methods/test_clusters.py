"""Methods that divide clients into clusters, against rounds by hand."""

from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from support.by_hand import SEED, Rounds, losses, near
from support.tiny import create, federation, method, training
from torch.nn import functional as F

from pflcore.groups import add_prefix
from pflcore.method import Federation


def divided(similarity, linkage):
    """Two groups: scikit-learn's by complete linkage, else the best of all pairs of groups, one after the other."""
    every = set(range(len(similarity)))
    if linkage == "complete":
        labels = AgglomerativeClustering(metric="precomputed", linkage="complete").fit(-similarity).labels_
        return [{one for one in every if labels[one] == label} for label in (0, 1)]
    pairs = [set(one) for size in range(1, len(similarity)) for one in combinations(every, size)]
    best = min(pairs, key=lambda one: max(similarity[i, j] for i in one for j in every - one))
    return [best, every - best]


@pytest.mark.parametrize(
    "net, eps1, eps2, after, linkage, gamma, share",
    [
        ("convnet", 0.2, 0.1, 1, "single", 0.0, 1.0),
        ("convnet", 9.0, 0.0, 0, "single", 0.6, 1.0),
        ("norm", 0.9, 0.0, 0, "complete", 0.0, 0.67),
    ],
)
def test_cfl(net, eps1, eps2, after, linkage, gamma, share):
    sizes = (14, 7, 9, 13, 12, 8), (5, 8, 6, 4, 7, 5)
    hand = Rounds(net, training(rounds=5, sample_rate=share, momentum=0.5), federation(*sizes))
    clusters, models, similarity = [set(range(6))], [hand.x], np.zeros((6, 6))
    for round_, cohort in hand:
        ended, moved = {}, {}
        for i in cohort:
            start = next(one for one, members in zip(models, clusters, strict=True) if i in members)
            ended[i] = hand.train(i, round_, start)
            moved[i] = torch.cat([(ended[i][n] - start[n]).flatten() for n in hand.parameters()]).double().numpy()
        for i, j in combinations(moved, 2):
            cosine = moved[i] @ moved[j] / np.sqrt((moved[i] @ moved[i]) * (moved[j] @ moved[j]))
            similarity[i, j] = similarity[j, i] = cosine
        for place, members in enumerate(list(clusters)):
            updates = [moved[i] for i in members if i in moved]
            if round_ <= after or len(members) <= 2 or not updates:
                continue
            mean, largest = np.linalg.norm(np.mean(updates, 0)), max(np.linalg.norm(one) for one in updates)
            if mean < eps1 and largest > eps2:
                order = sorted(members)
                halves = [{order[i] for i in part} for part in divided(similarity[np.ix_(order, order)], linkage)]
                across = max(similarity[i, j] for i in halves[0] for j in halves[1])
                if np.sqrt((1 - across) / 2) > gamma:
                    clusters[place], second = sorted(halves, key=min)
                    clusters.append(second)
                    models.append(models[place])
        for place, members in enumerate(clusters):
            if own := {i: ended[i] for i in sorted(members) if i in ended}:
                models[place] = hand.mean(own, "uniform")
    assert 1 < len(clusters) < 6 and any(len(one) > 1 for one in clusters)
    of = [place for client in range(6) for place, members in enumerate(clusters) if client in members]
    result = hand.run("cfl", eps1=eps1, eps2=eps2, after=after, linkage=linkage, gamma=gamma)
    assert result.weights["server.cluster"].tolist() == of
    for place, own in enumerate(models):
        near({n: result.weights[f"server.models/{n}"][place] for n in own}, own)
    losses(result, [hand.loss(client, models[place]) for client, place in enumerate(of)])


@pytest.mark.parametrize("net, own", [("convnet", "head."), ("norm", "")])
def test_ifca(net, own):
    hand = Rounds(net, training(rounds=4, momentum=0.5), own=own)
    entry, groups = method("ifca", clusters=3, also_personal=("head",) if own else ()), create(hand.net, SEED)[1]
    others = entry.init_shared(hand.initial, entry.roles(groups), Federation(3, SEED, parameters=groups.parameters))
    models, chosen = [{n: others.get(f"{one}/{n}", t) for n, t in hand.x.items()} for one in range(3)], set()

    def best(client, stream, round_):
        """The number of the model of least loss over the client's samples, in shuffled batches."""
        totals = []
        for one in models:
            seen = [(hand.look(one | hand.own[client], rows)[0], rows) for rows in hand.passes(client, stream, round_)]
            totals.append(sum(float(F.cross_entropy(s, hand.labels(r), reduction="sum")) for s, r in seen))
        return totals.index(min(totals))

    for round_, cohort in hand:
        ended = [{}, {}, {}]
        for i in cohort:
            choice = best(i, "phase 3", round_)
            hand.x = models[choice]
            ended[choice][i] = hand.train(i, round_)
            chosen.add(choice)
        models = [hand.mean(own, "uniform") if own else one for own, one in zip(ended, models, strict=True)]
    assert len(chosen) > 1
    hand.x, places = {}, zip(("server.first/", "common/1/", "common/2/"), models, strict=True)
    own_models = [models[best(i, "tuning", 4)] | hand.own[i] for i in range(3)]
    hand.check(hand.run(entry), *(add_prefix(place, one) for place, one in places), models=own_models)
