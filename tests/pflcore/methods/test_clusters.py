"""Clusters and mixtures by layer against rounds written out by hand, NumPy and scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from support.by_hand import SEED, Rounds, State, losses, moved, near
from support.hypernets import fresh, hyper, linears
from support.tiny import NormNet, backbone, create, facts, federation, method, run, training
from torch import nn
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import Roles, add_prefix, pick, strip_prefix
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


# --- mixtures by layer: pFedLA and HeurpFedLA ------------------------------------------------------------------------


class Mixer(nn.Module):
    """One client's hypernetwork, and what it makes of all models; the `keep` layers of largest own share stay."""

    def __init__(self, server: Server, client: int, keep: int) -> None:
        super().__init__()
        own = {name: tensor[client].clone() for name, tensor in strip_prefix("hyper/", server.extra).items()}
        self.client, self.keep, self.embedding = client, keep, nn.Parameter(own.pop("embedding"))
        self.linears, self.kept = linears(own), set[str]()

    def forward(self, models: list[State]) -> State:
        hidden = self.embedding
        for index in range(3):
            hidden = self.linears[f"mlp|{index}"](hidden).relu()
        shares = {}
        for path, linear in self.linears.items():
            if path.startswith("layers|"):
                out = linear(hidden).relu()
                shares[path.removeprefix("layers|")] = out / out.sum()
        self.kept = set(sorted(shares, key=lambda one: -float(shares[one][self.client].detach()))[: self.keep])
        made = {}
        for name, mine in models[self.client].items():
            layer = name.rpartition(".")[0].replace(".", "|") or name
            mixed = sum(share * one[name] for share, one in zip(shares[layer], models, strict=True))
            made[name] = mine if layer in self.kept else mixed
        return made


@pytest.mark.parametrize(
    ("name", "net", "keep", "own"), [("pfedla_layerwise", "tiny_vit", 0, "head."), ("heurpfedla", "convnet", 2, "")]
)
def test_mixtures_by_layer(name: str, net: str, keep: int, own: str) -> None:
    hand = Rounds(net, training(rounds=3, lr=0.03), own=own)
    options = {"embedding": 4, "hidden": 6, "server_lr": 5.0 if keep else 0.05, **({"keep": keep} if keep else {})}
    entry: Any = method(name, **options, also_personal=("head",) if own else ())
    _, roles, told = facts(entry, hand.net)
    tables = add_prefix("common/", entry.init_shared(hand.initial, roles, told))
    server = entry.init_server({**hand.initial, **tables}, roles, replace(told, seed=SEED))
    mixers, models = [Mixer(server, i, keep) for i in range(3)], [hand.x] * 3
    sent, trained = 0, 0
    for round_, cohort in hand:
        ended = {}
        for i in cohort:
            received = {n: tensor.detach() for n, tensor in mixers[i](models).items()}
            trained += 1
            sent += sum(t.nbytes for n, t in received.items() if n.rpartition(".")[0] not in mixers[i].kept)
            ended[i] = pick(hand.train(i, round_, received | hand.own[i]), hand.x)
            sgd = torch.optim.SGD(mixers[i].parameters(), entry.server_lr)
            mixed = {n: tensor for n, tensor in mixers[i](models).items() if tensor.requires_grad}
            sgd.zero_grad()
            torch.autograd.backward(list(mixed.values()), [received[n] - ended[i][n] for n in mixed])
            sgd.step()
        models = [ended.get(i, models[i]) for i in range(3)]  # mixtures of a round are of the models before it
    result = hand.run(entry)
    for i, mixer in enumerate(mixers):
        values = hyper(mixer.embedding, mixer.linears)
        near({n: result.weights[f"server.models/{n}"][i] for n in models[i]}, models[i])
        near({n: result.weights[f"server.{n}"][i] for n in values}, values)
    losses(result, [hand.loss(i, mixer(models), hand.own[i]) for i, mixer in enumerate(mixers)])
    assert result.cost.sent_down == pytest.approx(sent / trained, abs=0.5)


def test_heurpfedla_between_pfedla_and_training_alone() -> None:
    sizes = {"embedding": 4, "hidden": 6, "server_lr": 5.0}
    for keep, other, net in (
        (0, method("pfedla_layerwise", **sizes), NormNet()),
        (4, method("local", schedule="when_sampled"), backbone("convnet")),
    ):
        one, plain = run(method("heurpfedla", keep=keep, **sizes), net), run(other, net)
        assert one.loss.tolist() == plain.loss.tolist() and one.cost.sent_down == plain.cost.sent_down
    with pytest.raises(UserError, match=r"^method heurpfedla: keep: 5 is more than the 4 layers that are mixed$"):
        run(method("heurpfedla", keep=5, **sizes), backbone("convnet"))


def test_mixtures_begin_near_the_mean_and_where_all_outputs_are_zero_a_client_gets_its_own_layer() -> None:
    entry, wide, roles = fresh("pfedla_layerwise", 20, "tiny_vit", embedding=100, hidden=100)
    assert {"patch_embed", "cls_token", "norm", "head", "blocks.0.attention.qkv"} <= set(entry.layers(wide))
    for one in entry.weights_of(wide, [0, 3]).values():
        assert one.shape == (2, 20) and bool((one >= 0).all()) and float((one - 1 / 20).abs().max()) < 0.5 / 20
        torch.testing.assert_close(one.sum(1), torch.ones(2))
    wide.extra["models/head.weight"].normal_()
    wide.extra["hyper/layers.head.weight"][2] = -1.0
    (made,) = entry.generate(wide, [2])
    assert torch.equal(made["head.weight"], wide.extra["models/head.weight"][2])
    after = entry.update_server(wide, roles, [moved(made, client=2)])
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.extra.values())
    assert bool((after.extra["hyper/layers.head.weight"][2] == -1).all())  # nothing to learn from
