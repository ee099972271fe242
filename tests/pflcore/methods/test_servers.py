"""Methods that differ from FedAvg in what the server makes of the clients' models, against rounds by hand."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from support.by_hand import SEED, Rounds, losses, near, near_rows
from support.tiny import backbone, create, federation, method, run, training
from torch.nn import functional as F

from pflcore.groups import add_prefix
from pflcore.method import Federation


@pytest.mark.parametrize("net, alpha, own, averaging", [("convnet", 0.05, "head.", "samples"), ("norm", 0.3, "", None)])
def test_feddyn(net, alpha, own, averaging):
    hand = Rounds(net, training(rounds=3, momentum=0.5 if own else 0.0), own=own)
    h, g = hand.zeros(), [hand.zeros() for _ in range(3)]
    for round_, cohort in hand:
        ended = {}
        for i in cohort:
            ended[i] = hand.train(i, round_, pull=lambda n, w, i=i: alpha * (w - hand.x[n]) - g[i][n])
            g[i] = {n: g[i][n] - alpha * (ended[i][n] - hand.x[n]) for n in h}
        mean = hand.mean(ended, averaging or "uniform")
        h = {n: h[n] - alpha * len(cohort) / 3 * (mean[n] - hand.x[n]) for n in h}
        hand.x = mean | {n: mean[n] - h[n] / alpha for n in h}
    hand.check(hand.run("feddyn", alpha=alpha, averaging=averaging), add_prefix("server.state/", h), kept=g)


@pytest.mark.parametrize("net, step, own", [("convnet", 0.5, "head."), ("norm", 1.0, "")])
def test_scaffold(net, step, own):
    settings = training(rounds=3, momentum=0.5 if own else 0.0, schedule="exponential", gamma=0.5)
    hand = Rounds(net, settings, own=own)
    c, variates = hand.zeros(), [hand.zeros() for _ in range(3)]
    for round_, cohort in hand:
        lr, ended, change = settings.lr * 0.5 ** (round_ - 1), {}, hand.zeros()
        for i in cohort:
            ended[i] = hand.train(i, round_, lr=lr, pull=lambda n, _, c=c, i=i: c[n] - variates[i][n])
            steps = len(hand.rows(i, round_))
            new = {n: variates[i][n] - c[n] + (hand.x[n] - ended[i][n]) / (steps * lr) for n in c}
            change = {n: change[n] + new[n] - variates[i][n] for n in c}
            variates[i] = new
        mean = hand.mean(ended, "uniform")
        hand.x = mean | {n: hand.x[n] + step * (mean[n] - hand.x[n]) for n in c}
        c = {n: c[n] + change[n] / 3 for n in c}
    # Of a bias under batch norm a variate is what rounding leaves of weights, divided by the learning rate.
    hand.check(hand.run("scaffold", server_step=step), add_prefix("common/", c), kept=variates, atol=1e-4)


@pytest.mark.parametrize("net, own, rho", [("convnet", "", 0.0), ("convnet", "head.", 0.6), ("norm", "", 0.0)])
def test_fednova(net, own, rho):
    hand = Rounds(net, own=own, settings=training(rounds=3, momentum=rho))
    for round_, cohort in hand:
        p, ended = hand.shares(cohort), {i: hand.train(i, round_) for i in cohort}
        # A gradient counts in the step that sees it and, by momentum, in all later ones.
        a = {i: sum(rho**j for k in range(len(hand.rows(i, round_))) for j in range(k + 1)) for i in cohort}
        tau = sum(p[i] * a[i] for i in cohort)
        moved = {n: sum(p[i] * (hand.x[n] - ended[i][n]) / a[i] for i in cohort) for n in hand.zeros()}
        hand.x = hand.mean(ended) | {n: hand.x[n] - tau * change for n, change in moved.items()}
    hand.check(hand.run("fednova"))


def grown(mask, moved, rate, limit):
    result = mask.flatten().clone()
    free = (~result).nonzero().flatten()
    count = min(round(rate * len(free)), int(limit * len(result)) - int(result.sum()))
    result[free[moved.flatten()[free].argsort(descending=True)[: max(count, 0)]]] = True
    return result.view_as(mask)


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_fedselect(net):
    hand = Rounds(net, training(rounds=5, momentum=0.5, weight_decay=1e-2))
    names, travelled, turns = hand.parameters(), [], 2 if net == "convnet" else 1
    masks = [{n: torch.zeros_like(hand.x[n], dtype=torch.bool) for n in names}] * 3
    values, took = [hand.x] * 3, [0] * 3

    def personal(i):
        return hand.x | {n: torch.where(masks[i][n], values[i][n], hand.x[n]) for n in names}

    def passed(steps, moves):
        """SGD, in which what does not move is put back after each step; momentum is that of all."""
        sgd = torch.optim.SGD(hand.model.parameters(), hand.settings.lr, 0.5, weight_decay=1e-2)
        for rows in steps:
            before = hand.state()
            sgd.zero_grad()
            hand.cross_entropy(rows).backward()
            sgd.step()
            hand.lend(hand.state(), {n: torch.where(moves[n], hand.state()[n], before[n]) for n in names})

    def client(i, round_):
        start, mask, steps = personal(i), masks[i], hand.rows(i, round_)
        hand.lend(start)
        for turn in range(turns):
            passed(hand.passes(i, f"phase {3 + 2 * turn}", round_), mask)
            each = len(steps) // turns
            passed(steps[turn * each : (turn + 1) * each], {n: ~t for n, t in mask.items()})
        values[i], took[i] = hand.state(), took[i] + 1
        weights = {n: t for n, t in mask.items() if "weight" in n}
        if took[i] % 2 == 0:
            moved = {n: (values[i][n] - start[n]).abs() for n in weights}
            masks[i] = mask | {n: grown(mask[n], t, 0.3, 0.4) for n, t in moved.items()}
        down = sum(t.nbytes for t in hand.x.values()) - 4 * sum(int(t.sum()) for t in mask.values())
        travelled.append((down + sum(-(-t.numel() // 8) for t in weights.values()), down))
        return values[i]

    for round_, cohort in hand:
        shared = {i: {n: ~t for n, t in masks[i].items()} for i in cohort}
        ended = {i: client(i, round_) for i in cohort}
        mean = hand.mean(ended, "uniform")
        for n in names:
            total, count = sum(shared[i][n] * ended[i][n] for i in cohort), sum(shared[i][n].float() for i in cohort)
            mean[n] = torch.where(count > 0, total / count.clamp_min(1), hand.x[n])
        hand.x = mean
    assert any(bool((t["head.weight"].float().mean() > 0.3) & ~t["head.weight"].all()) for t in masks)
    result = hand.run("fedselect", rate=0.3, limit=0.4, every=2, alternations=turns)
    stored = [{f"mask/{n}": t for n, t in mask.items() if "weight" in n} for mask in masks]
    hand.check(result, kept=stored, models=[personal(i) for i in range(3)])
    assert [result.cost.sent_up, result.cost.sent_down] == pytest.approx(np.mean(travelled, 0).tolist(), abs=0.5)


def attention(vectors, options):
    """ξ of all clients, one pair after the other."""
    shares, cosine, sigma = np.zeros((len(vectors), len(vectors))), "attention" in options, options["sigma"]
    for i, a in enumerate(vectors):
        for j, b in enumerate(vectors):
            close = sigma * (a @ b) / np.sqrt((a @ a) * (b @ b)) if cosine else -((a - b) @ (a - b)) / sigma
            shares[i, j] = 0 if i == j else np.exp(close) * (1 if cosine else options["alpha"] / sigma)
        if cosine:
            shares[i] *= (1 - options["own_weight"]) / shares[i].sum()
        shares[i, i] = 1 - shares[i].sum()
    return shares.tolist()


DISTANCE = {"lam": 0.6, "alpha": 0.4, "sigma": 2.0}
COSINE = {"attention": "cosine", "lam": 3.0, "alpha": 2.0, "sigma": 40.0, "own_weight": 0.6}


@pytest.mark.parametrize("net, start", [("convnet", "mixture"), ("convnet", "own"), ("norm", "mixture")])
def test_fedamp(net, start):
    own = "head." if (net, start) == ("convnet", "mixture") else ""
    hand, options = Rounds(net, training(rounds=3, momentum=0.5), own=own), COSINE if own else DISTANCE
    names, models_, pull = list(hand.zeros()), [hand.initial] * 3, options["lam"] / options["alpha"]
    mixed = [{n: hand.x[n] for n in names} for _ in range(3)]
    for round_, cohort in hand:
        for i in cohort:
            begun = models_[i] if start == "own" else models_[i] | mixed[i]
            models_[i] = hand.train(i, round_, begun, pull=lambda n, w, u=mixed[i]: pull * (w - u[n]))
        vectors = np.stack([torch.cat([model[n].flatten() for n in names]).double().numpy() for model in models_])
        shares = attention(vectors, options)
        mixed = [{n: sum(s * model[n] for s, model in zip(row, models_, strict=True)) for n in names} for row in shares]
    result = hand.run("fedamp", start=start, **options)
    for i, state in enumerate(models_):
        near(result.weights, {f"client.{i}.own/{n}" if n in names else f"client.{i}.{n}": t for n, t in state.items()})
        near_rows(result, "models", i, {n: state[n] for n in names})
    losses(result, [hand.loss(i, state) for i, state in enumerate(models_)])


def test_fedcac():
    tau, beta, models, masks, friends, sizes = 0.3, 3, {}, {}, {}, set()
    hand = Rounds("convnet", training(rounds=5), federation((14, 7, 9, 11), (5, 8, 6, 4)))

    def critical(before, after):
        moved = ((after - before) * after).abs().flatten()
        best = moved.argsort(descending=True)[: int(tau * moved.numel())]
        mask = torch.zeros_like(moved, dtype=torch.bool)
        mask[best[moved[best] > 0]] = True
        return mask.view_as(after)

    def sent_to(i):
        circle = [models[it] for it in friends.get(i, ())]
        part = {n: sum(it[n] for it in circle) / len(circle) for n in hand.x} if circle else {}
        return hand.x | {n: torch.where(masks[i][n], mean, hand.x[n]) for n, mean in part.items()}

    for round_, cohort in hand:
        begun = {i: sent_to(i) for i in cohort}
        for i, before in begun.items():
            models[i] = hand.train(i, round_, before)
            masks[i] = {n: critical(before[n], after) for n, after in models[i].items()}
        hand.x = hand.mean({i: models[i] for i in cohort})
        flat = {i: torch.cat([mask.flatten() for mask in part.values()]).numpy() for i, part in masks.items()}
        pairs = {(i, j): 1 - np.sum(a != b) / (2 * a.sum()) for i, a in flat.items() for j, b in flat.items() if i != j}
        friends = {i: {i} for i in masks}
        mean, largest = np.mean(list(pairs.values())), max(pairs.values())
        for (i, j), overlap in pairs.items():
            if round_ <= beta and overlap >= mean + round_ / beta * (largest - mean) - 1e-12:
                friends[i].add(j)
        sizes |= {len(it) for it in friends.values()}
    assert len(sizes) > 1  # at some time some were alone and some were not
    result = hand.run("fedcac", tau=tau, beta=beta)
    near(result.weights, add_prefix("server.global/", hand.x))
    for i, part in models.items():
        near_rows(result, "models", i, part)
        near_rows(result, "critical", i, masks[i])
    losses(result, [hand.loss(i, sent_to(i)) for i in range(4)])


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_fedu(net):
    """Two of three clients a round; who is not sampled neither moves nor pulls; buffers stay on the client."""
    hand = Rounds(net, training(rounds=3, momentum=0.5))
    models, names = [hand.x] * 3, hand.parameters()
    for round_, cohort in hand:
        done = {i: hand.train(i, round_, models[i]) for i in cohort}
        for i, w in done.items():
            models[i] = w | {n: w[n] - 0.08 * sum(w[n] - other[n] for other in done.values()) for n in names}
    result = hand.run("fedu", coupling=0.4, strength=0.2)
    for i, model in enumerate(models):
        near_rows(result, "models", i, {n: model[n] for n in names})
    losses(result, [hand.loss(i, model) for i, model in enumerate(models)])


# --- clusters of clients ---------------------------------------------------------------------------------------------


def divided(similarity, linkage):
    """Two groups: scikit-learn's by complete linkage, else the best of all pairs of groups, one after the other."""
    every = set(range(len(similarity)))
    if linkage == "complete":
        labels = AgglomerativeClustering(metric="precomputed", linkage="complete").fit(-similarity).labels_
        return [{k for k in every if labels[k] == label} for label in (0, 1)]
    pairs = [set(k) for size in range(1, len(similarity)) for k in combinations(every, size)]
    best = min(pairs, key=lambda k: max(similarity[i, j] for i in k for j in every - k))
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
            start = next(it for it, members in zip(models, clusters, strict=True) if i in members)
            ended[i] = hand.train(i, round_, start)
            moved[i] = torch.cat([(ended[i][n] - start[n]).flatten() for n in hand.parameters()]).double().numpy()
        for i, j in combinations(moved, 2):
            cosine = moved[i] @ moved[j] / np.sqrt((moved[i] @ moved[i]) * (moved[j] @ moved[j]))
            similarity[i, j] = similarity[j, i] = cosine
        for place, members in enumerate(list(clusters)):
            updates = [moved[i] for i in members if i in moved]
            if round_ <= after or len(members) <= 2 or not updates:
                continue
            mean, largest = np.linalg.norm(np.mean(updates, 0)), max(np.linalg.norm(it) for it in updates)
            if mean < eps1 and largest > eps2:
                order = sorted(members)
                halves = [{order[i] for i in part} for part in divided(similarity[np.ix_(order, order)], linkage)]
                across = max(similarity[i, j] for i in halves[0] for j in halves[1])
                if np.sqrt((1 - across) / 2) > gamma:
                    clusters[place], second = sorted(halves, key=min)
                    clusters.append(second)
                    models.append(models[place])
        for place, members in enumerate(clusters):
            if returned := {i: ended[i] for i in sorted(members) if i in ended}:
                models[place] = hand.mean(returned, "uniform")
    assert 1 < len(clusters) < 6 and any(len(it) > 1 for it in clusters)
    numbers = [place for client in range(6) for place, members in enumerate(clusters) if client in members]
    result = hand.run("cfl", eps1=eps1, eps2=eps2, after=after, linkage=linkage, gamma=gamma)
    assert result.weights["server.cluster"].tolist() == numbers
    for place, returned in enumerate(models):
        near_rows(result, "models", place, returned)
    losses(result, [hand.loss(client, models[place]) for client, place in enumerate(numbers)])


@pytest.mark.parametrize("net, own", [("convnet", "head."), ("norm", "")])
def test_ifca(net, own):
    hand = Rounds(net, training(rounds=4, momentum=0.5), own=own)
    entry, groups = method("ifca", clusters=3, also_personal=("head",) if own else ()), create(hand.net, SEED)[1]
    others = entry.init_shared(hand.initial, entry.roles(groups), Federation(3, SEED, parameters=groups.parameters))
    models, chosen = [{n: others.get(f"{it}/{n}", t) for n, t in hand.x.items()} for it in range(3)], set()

    def best(client, stream, round_):
        """The number of the model of least loss over the client's samples, in shuffled batches."""
        totals = []
        for it in models:
            seen = [(hand.look(it | hand.own[client], rows)[0], rows) for rows in hand.passes(client, stream, round_)]
            totals.append(sum(float(F.cross_entropy(s, hand.labels(r), reduction="sum")) for s, r in seen))
        return totals.index(min(totals))

    for round_, cohort in hand:
        ended = [{}, {}, {}]
        for i in cohort:
            choice = best(i, "phase 3", round_)
            hand.x = models[choice]
            ended[choice][i] = hand.train(i, round_)
            chosen.add(choice)
        models = [hand.mean(own, "uniform") if own else it for own, it in zip(ended, models, strict=True)]
    assert len(chosen) > 1
    hand.x, places = {}, zip(("server.first/", "common/1/", "common/2/"), models, strict=True)
    own_models = [models[best(i, "tuning", 4)] | hand.own[i] for i in range(3)]
    hand.check(hand.run(entry), *(add_prefix(place, it) for place, it in places), models=own_models)


ALIKE = {**COSINE, "own_weight": None}
SPLIT = {"eps1": 10.0, "eps2": 0.0, "after": 0}
WITH_NOVEL = [("scaffold", {}), ("feddyn", {"alpha": 0.3}), ("fedamp", DISTANCE), ("fedamp", ALIKE), ("cfl", SPLIT)]


@pytest.mark.parametrize("name, options", WITH_NOVEL)
def test_a_client_that_never_trains_changes_nothing_for_the_others(name, options):
    data = federation((14, 7, 9, 11), (5, 8, 6, 4))
    three = replace(data, train=data.train[:3], test=data.test[:3])
    settings = training(rounds=3, sample_rate=1.0)
    four, three = (
        run(method(name, **options), backbone("convnet"), data_, training=settings)
        for data_ in (replace(data, novel=frozenset({3})), three)
    )
    np.testing.assert_allclose(four.loss.reshape(3, 4)[:, :3], three.loss.reshape(3, 3), rtol=1e-6)
