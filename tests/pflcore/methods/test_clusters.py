"""CFL and IFCA against rounds written out by hand, NumPy and scikit-learn."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from support.by_hand import SEED, Rounds, State, losses, near
from support.tiny import NormNet, backbone, create, facts, federation, method, run, training
from torch.nn import functional as F

from pflcore.groups import Roles, add_prefix
from pflcore.method import Federation, Server, Update
from pflcore.methods import METHODS

SIZES = ((14, 7, 9, 13, 12, 8), (5, 8, 6, 4, 7, 5))
CLIENTS = len(SIZES[0])
Matrix = np.ndarray[Any, Any]


def divided(likeness: Matrix, linkage: str) -> list[set[int]]:
    """Two groups: scikit-learn's by complete linkage, else the best of all pairs of groups, one after the other."""
    every = range(len(likeness))
    if linkage == "complete":
        labels = AgglomerativeClustering(metric="precomputed", linkage="complete").fit(-likeness).labels_
        return [{one for one in every if labels[one] == label} for label in (0, 1)]
    pairs = [set(one) for size in range(1, len(likeness)) for one in combinations(every, size)]
    best = min(pairs, key=lambda one: max(likeness[i, j] for i in one for j in set(every) - one))
    return [best, set(every) - best]


@pytest.mark.parametrize(
    ("net", "options", "share"),
    [
        pytest.param("convnet", {"eps1": 0.2, "eps2": 0.1, "after": 1, "linkage": "single"}, 1.0, id="single"),
        pytest.param("convnet", {"eps1": 0.5, "eps2": 0.0, "after": 2, "linkage": "complete"}, 0.67, id="sampled"),
        pytest.param("norm", {"eps1": 0.9, "eps2": 0.0, "after": 0, "linkage": "complete"}, 1.0, id="norm"),
    ],
)
def test_cfl(net: str, options: dict[str, Any], share: float) -> None:
    hand = Rounds(net, training(rounds=5, sample_rate=share, momentum=0.5), federation(*SIZES))
    clusters, models = [set(range(CLIENTS))], [hand.x]
    likeness = np.zeros((CLIENTS, CLIENTS))
    for round_, cohort in hand:
        ended, moved = {}, {}
        for i in cohort:
            start = next(one for one, members in zip(models, clusters, strict=True) if i in members)
            ended[i] = hand.train(i, round_, start)
            moved[i] = torch.cat([(ended[i][n] - start[n]).flatten() for n in hand.parameters()]).double().numpy()
        for i, j in combinations(moved, 2):
            cosine = moved[i] @ moved[j] / np.sqrt((moved[i] @ moved[i]) * (moved[j] @ moved[j]))
            likeness[i, j] = likeness[j, i] = cosine
        for place, members in enumerate(list(clusters)):
            updates = [moved[i] for i in members if i in moved]
            if round_ <= options["after"] or len(members) <= 2 or not updates:
                continue
            mean, largest = np.linalg.norm(np.mean(updates, 0)), max(np.linalg.norm(one) for one in updates)
            if mean < options["eps1"] and largest > options["eps2"]:
                order = sorted(members)
                parts = divided(likeness[np.ix_(order, order)], options["linkage"])
                clusters[place], second = sorted(({order[i] for i in half} for half in parts), key=min)
                clusters.append(second)
                models.append(models[place])
        for place, members in enumerate(clusters):
            if own := {i: ended[i] for i in sorted(members) if i in ended}:
                models[place] = hand.mean(own, "uniform")
    assert 1 < len(clusters) < CLIENTS and any(len(one) > 1 for one in clusters)
    of = [place for client in range(CLIENTS) for place, members in enumerate(clusters) if client in members]
    result = hand.run("cfl", **options)
    assert result.weights["server.cluster"].tolist() == of
    for place, own in enumerate(models):
        near({n: result.weights[f"server.models/{n}"][place] for n in own}, own)
    losses(result, [hand.loss(client, models[place]) for client, place in enumerate(of)])


APART = {0: [3.0, 0.1], 1: [-3.0, 0.1], 2: [2.9, 0.0], 3: [-2.9, 0.0]}


def stepped(entry: Any, rounds: dict[int, dict[int, list[float]]]) -> Server:
    """The server of four clients after rounds in which they moved so."""
    roles, told = Roles(frozenset(), frozenset(), frozenset({"w"})), Federation(4, 0, parameters=frozenset({"w"}))
    server: Server = entry.init_server({"w": torch.zeros(2)}, roles, told)
    for round_, moves in rounds.items():
        server.round, server.federation = round_, told
        (start,) = entry.generate(server, [0])
        updates = [Update(i, 1, start, {"w": (start["w"] + torch.tensor(to)).clone()}) for i, to in moves.items()]
        server = entry.update_server(server, roles, updates)
    return server


@pytest.mark.parametrize(
    ("options", "moves", "round_", "split"),
    [
        ({}, APART, 21, True),
        ({}, APART, 20, False),
        ({"eps1": 0.04}, APART, 30, False),  # the mean is 0.05
        ({"eps2": 3.1}, APART, 30, False),
        ({"gamma": 0.99}, APART, 30, True),  # √((1 + 0.999) / 2) = 0.9997
        ({"gamma": 0.9999}, APART, 30, False),
        ({}, {0: [3.0, 0.1], 1: [-3.0, 0.1]}, 30, True),  # the others have been in no round
    ],
)
def test_when_a_cluster_is_split(options: dict[str, Any], moves: Any, round_: int, split: bool) -> None:
    clusters = stepped(METHODS.create("cfl", **options), {round_: moves}).extra["cluster"].tolist()
    assert (clusters[0] != clusters[1]) == split and (max(clusters) == 1) == split
    assert not split or len(moves) < 4 or clusters == [0, 1, 0, 1]


def test_a_half_that_was_not_there_goes_on_from_the_model_as_it_was() -> None:
    some = {client: APART[client] for client in (0, 2)}
    extra = stepped(METHODS.create("cfl", eps1=10.0, eps2=1.0), {20: APART, 21: some}).extra
    first, second = extra["models/w"][:2]
    assert second.tolist() == pytest.approx([0.0, 0.05])  # the mean of round 20
    assert first.tolist() == pytest.approx([2.95, 0.1])  # and with it that of both updates of round 21


@pytest.mark.parametrize(("net", "own"), [("convnet", "head."), ("norm", "")])
def test_ifca(net: str, own: str) -> None:
    hand = Rounds(net, training(rounds=4, momentum=0.5), own=own)
    entry: Any = method("ifca", clusters=3, also_personal=(own.rstrip("."),) if own else ())
    groups = create(hand.net, SEED)[1]
    others = entry.init_shared(hand.initial, entry.roles(groups), Federation(3, SEED, parameters=groups.parameters))
    models = [hand.x, *({n: others.get(f"{one}/{n}", tensor) for n, tensor in hand.x.items()} for one in (1, 2))]

    def best(client: int, stream: str, round_: int) -> int:
        """The number of the model of least loss over the client's samples, in shuffled batches."""
        totals = []
        for one in models:
            seen = [(hand.look(one | hand.own[client], rows)[0], rows) for rows in hand.passes(client, stream, round_)]
            totals.append(sum(float(F.cross_entropy(s, hand.labels(r), reduction="sum")) for s, r in seen))
        return totals.index(min(totals))

    chosen = set()
    for round_, cohort in hand:
        ended: list[dict[int, State]] = [{}, {}, {}]
        for i in cohort:
            choice = best(i, "phase 3", round_)
            hand.x = models[choice]
            ended[choice][i] = hand.train(i, round_)
            chosen.add(choice)
        models = [hand.mean(own, "uniform") if own else one for own, one in zip(ended, models, strict=True)]
    assert len(chosen) > 1
    result = hand.run(entry)
    places = zip(("server.first/", "common/1/", "common/2/"), models, strict=True)
    near(result.weights, *(add_prefix(place, one) for place, one in places))
    near(result.weights, *(add_prefix(f"client.{i}.", one) for i, one in enumerate(hand.own)))
    losses(result, [hand.loss(i, models[best(i, "tuning", 4)], hand.own[i]) for i in range(3)])


def test_with_one_cluster_it_is_fedavg_with_more_all_are_sent() -> None:
    plain = run(method("fedavg", averaging="uniform"), NormNet())
    for entry in (method("cfl", eps1=0.0), method("ifca", clusters=1)):
        assert run(entry, NormNet()).loss.tolist() == plain.loss.tolist()
    ifca, fedavg = (run(method(name), backbone("convnet")).cost for name in ("ifca", "fedavg"))
    assert (ifca.sent_up, ifca.sent_down) == (fedavg.sent_up + 8, 2 * fedavg.sent_down)  # the number of its choice
    entry = method("ifca", clusters=3)
    initial, roles, told = facts(entry, NormNet())
    made = entry.init_shared(initial, roles, told)
    for name, tensor in initial.items():
        for cluster in (1, 2):  # the same numbers elsewhere; running statistics where they were
            redrawn = made[f"{cluster}/{name}"]
            assert torch.equal(redrawn.flatten().sort().values, tensor.flatten().sort().values)
            assert name in told.parameters or torch.equal(redrawn, tensor)
    assert not torch.equal(made["1/head.weight"], made["2/head.weight"])
