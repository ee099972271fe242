"""Methods around a linear classifier, against rounds written out with textbook formulas."""

import pytest
import torch
from support.by_hand import Rounds
from support.tiny import CLASSES, facts, method, training
from torch import nn
from torch.nn import functional as F

from pflcore.groups import add_prefix, strip_prefix

SETTINGS = training(rounds=3, momentum=0.5, weight_decay=0.01)


def leaves(state):
    return {name: tensor.clone().requires_grad_() for name, tensor in state.items()}


def values(state):
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def linear(x, layer):
    return x @ layer["weight"].T + layer["bias"]


def normed(x, layer):
    away = x - x.mean(-1, keepdim=True)
    return away / (away.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer["norm.weight"] + layer["norm.bias"]


def discrepancy(first, second):
    pairs = ((first, first, 1), (second, second, 1), (first, second, -2))
    squares = [(sign, (x.unsqueeze(1) - y).square().sum(2)) for x, y, sign in pairs]
    return torch.stack([sign * (-0.5 * x / b).exp().mean() for sign, x in squares for b in (10, 15, 20, 50)]).sum()


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_fedcp(net):
    hand, entry = Rounds(net, SETTINGS, own="head."), method("fedcp", lam=4.0)
    common, begun = strip_prefix("head.", hand.initial), entry.init_shared(*facts(entry, hand.net))
    wide = add_prefix("policy.", strip_prefix("policy/", begun))
    largest = wide["policy.weight"].abs().max() * wide["policy.weight"].shape[1] ** 0.5
    assert 0.9 < float(largest) <= 1  # uniform, as PyTorch's

    def divided(i, policy):
        features, v = hand.features, hand.own[i]["head.weight"].sum(0)
        first, second = normed(linear(features * v / v.norm(), policy), policy).relu().chunk(2, 1)
        share = first.exp() / (first.exp() + second.exp())
        return hand.head(share * features) + linear((1 - share) * features, common)

    def client(i, round_):
        policy, frozen = leaves(strip_prefix("policy.", wide)), hand.x | hand.own[i]

        def loss(rows):
            old = hand.look(frozen, rows)[1]
            hand.logits(rows)
            away = discrepancy(hand.features, old)
            return F.cross_entropy(divided(i, policy), hand.labels(rows)) + 4.0 * away

        return hand.train(i, round_, loss=loss, beside=policy.values()) | add_prefix("policy.", values(policy))

    for round_, cohort in hand:
        ended = {i: client(i, round_) for i in cohort}
        heads = hand.mean({i: strip_prefix("head.", hand.own[i]) for i in cohort}, of=common)
        common = {name: (tensor + heads[name]) / 2 for name, tensor in common.items()}
        wide, hand.x = hand.mean(ended, of=wide), hand.mean(ended)
    policy = strip_prefix("policy.", wide)
    exchanged = add_prefix("common/policy/", policy) | add_prefix("common/head/head.", common)
    hand.check(hand.run(entry), exchanged, logits=lambda i, _: divided(i, policy), atol=5e-5)


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_gpfl(net):
    hand, entry = Rounds(net, SETTINGS, own="head."), method("gpfl", lam=0.3, mu=0.2)
    begun = entry.init_shared(*facts(entry, hand.net))
    wide = {"embeddings": begun["embeddings/head.weight"], **strip_prefix("valve/", begun)}

    def valve(state, condition):
        parts = (strip_prefix(f"{part}.", state) for part in ("gamma", "beta"))
        gamma, beta = (normed(linear(condition, layer).relu(), layer) for layer in parts)
        return F.relu(hand.features * (gamma + 1) + beta)

    def condition(i):
        return wide["embeddings"][hand.labels(hand.data.train[i])].mean(0)

    def client(i, round_):
        personal, received, exchanged = condition(i), wide["embeddings"], leaves(wide)

        def loss(rows):
            hand.logits(rows)
            guided, labels = valve(exchanged, received.sum(0) / CLASSES), hand.labels(rows)
            angles = torch.stack([F.cosine_similarity(guided, layer, dim=1) for layer in exchanged["embeddings"]], 1)
            away = (guided - received[labels]).square().sum().sqrt()
            value = F.cross_entropy(hand.head(valve(exchanged, personal)), labels) + 0.3 * away
            return value + F.nll_loss(angles.log_softmax(1), labels)

        return hand.train(i, round_, loss=loss, beside=exchanged.values(), decay=0.2) | values(exchanged)

    for round_, cohort in hand:
        ended = {i: client(i, round_) for i in cohort}
        wide, hand.x = hand.mean(ended, of=wide), hand.mean(ended)
    exchanged = {f"common/valve/{name}": tensor for name, tensor in wide.items() if name != "embeddings"}
    exchanged["common/embeddings/head.weight"] = wide["embeddings"]
    hand.check(hand.run(entry), exchanged, logits=lambda i, _: hand.head(valve(wide, condition(i))), atol=5e-5)


@pytest.mark.parametrize("mu, own", [(1.0, ""), (0.3, "head.")])
def test_feddbe(mu, own):
    hand, kappa = Rounds("convnet", training(rounds=3, momentum=0.5, weight_decay=0.01, lr=0.02), own=own), 20.0
    shift = nn.Parameter(torch.zeros(hand.initial["head.weight"].shape[1]))
    hand.head.register_forward_pre_hook(lambda _, inputs: (inputs[0] + shift,))
    mean, moving, shifts = torch.zeros_like(shift), torch.zeros_like(shift), [torch.zeros_like(shift)] * 3

    def loss(rows, kappa=kappa):
        nonlocal moving
        plain = hand.cross_entropy(rows)
        moving = (1 - mu) * moving.detach() + mu * hand.features.mean(0)
        return plain + kappa * (0.5 * (moving - mean) ** 2).mean()

    def client(i, round_):
        nonlocal moving
        moving, shift.data = torch.zeros_like(shift), shifts[i].clone()
        ended = hand.train(i, round_, loss=loss, beside=[shift])
        shifts[i], shift.data = shift.detach().clone(), torch.zeros_like(shift)
        return ended

    for i, share in hand.shares(range(3)).items():  # a pass before the first round, of which only the mean is left
        moving = torch.zeros_like(shift)
        hand.lend(hand.initial)
        hand.descend(hand.passes(i, "phase 2", 0), lambda rows: loss(rows, 0.0))
        mean = mean + share * moving.detach()
    hand.average(client)
    keep = [{"shift/head.weight": vector} for vector in shifts]
    result = hand.run("feddbe", kappa=kappa, mu=mu)
    hand.check(result, {"common/mean": mean}, kept=keep, logits=lambda i, plain: plain + shifts[i] @ hand.head.weight.T)
    assert max(float(vector.abs().max()) for vector in shifts) > 1e-3
