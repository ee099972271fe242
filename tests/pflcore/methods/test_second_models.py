"""Methods whose clients train more than one model or see one by several losses, against plain loops."""

import copy

import numpy as np
import pytest
import torch
from support.by_hand import Rounds, near
from support.tiny import CLASSES, backbone, create, federation, method, training
from torch import nn
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import add_prefix

SETTINGS = training(rounds=3, momentum=0.5, weight_decay=1e-2)


def plus(model, change, factor):
    return {name: tensor + factor * change[name] for name, tensor in model.items()}


@pytest.mark.parametrize("own", ["", "head."])
@pytest.mark.parametrize("name", ["ditto", "pfedme"])
def test_ditto_and_pfedme(name, own):
    """Groups that are also personal follow the gradient of their own model alone, from where they were."""
    hand, lam, decay = Rounds("convnet", training(rounds=3, weight_decay=0.3), own=own), 2.0, 0.3
    lr, models = hand.settings.lr, [hand.initial] * 3

    def pulled(model, towards, rows):
        slopes = plus(hand.slopes(model, rows), model, decay)
        pull = {n: g + (lam * (model[n] - towards[n]) if n in hand.x else 0) for n, g in slopes.items()}
        return plus(model, pull, -lr)

    def client(i, round_):
        received = w = hand.x | hand.own[i]
        theta = models[i] if name == "ditto" else received
        for rows in hand.rows(i, round_):
            if name == "ditto":
                w, theta = plus(w, plus(hand.slopes(w, rows), w, decay), -lr), pulled(theta, received, rows)
                continue
            for _ in range(3):
                theta = pulled(theta, w, rows)
            w = {n: t - lr * lam * (t - theta[n]) if n in hand.x else theta[n] for n, t in w.items()}
        models[i], hand.own[i] = theta, {n: w[n] for n in hand.own[i]}
        return w

    hand.average(client)
    hand.check(hand.run(name, lam=lam, **({"inner_steps": 3} if name == "pfedme" else {})), kept=models, models=models)
    if name == "pfedme":  # the server mixes
        hand = Rounds("convnet", training(rounds=1))
        full, part = hand.run("pfedme").weights, hand.run("pfedme", beta=0.2).weights
        near(part, {n: 0.8 * tensor + 0.2 * full[n] for n, tensor in hand.x.items()}, atol=1e-6)
        hand = Rounds("norm", training(rounds=1))
        full, part = hand.run("pfedme").weights, hand.run("pfedme", beta=3.0).weights
        expected = {n: 3 * full[n] - 2 * hand.x[n] if n in hand.parameters() else full[n] for n in hand.x}
        near(part, expected, atol=1e-6)


@pytest.mark.parametrize("variant, begun", [("as_written", 0.4), ("as_written", 0.0), ("as_released", 0.4)])
def test_apfl(variant, begun):
    hand = Rounds("convnet", training(sample_rate=1.0, weight_decay=0.3), federation((14, 7), (5, 8)))
    lr, alphas, expected, vs, written = hand.settings.lr, [begun] * 2, set(), [hand.x] * 2, variant == "as_written"
    decay = hand.settings.weight_decay  # of both models, not of α

    def mixed(alpha, v, w):
        return {name: alpha * tensor + (1 - alpha) * w[name] for name, tensor in v.items()}

    def client(i, round_):
        w, v, alpha = hand.x, vs[i], alphas[i]
        for rows in hand.rows(i, round_):
            of_w, of_v = hand.slopes(w, rows), hand.slopes(v, rows)
            toward = hand.slopes(mixed(alpha, v, w), rows) if written else mixed(alpha, of_v, of_w)
            before = v, w
            w = plus(w, plus(of_w, w, decay), -lr)
            v = plus(v, plus({n: alpha * t for n, t in toward.items()} if written else of_v, v, decay), -lr)
            model, common = before if written else (v, w)
            along = sum(float(((model[n] - common[n]) * toward[n]).sum()) for n in v) + 0.02 * alpha
            expected.add(alpha - lr * along)
            alpha = min(1.0, max(0.0, alpha - lr * along))
        alphas[i], vs[i] = alpha, v if written else mixed(alpha, v, w)
        return w

    hand.average(client)
    models = [mixed(alpha, model, hand.x) if written else model for alpha, model in zip(alphas, vs, strict=True)]
    stored = [model | {"alpha": torch.tensor(alpha)} for alpha, model in zip(alphas, vs, strict=True)]
    hand.check(hand.run(method("apfl", alpha=begun, variant=variant)), kept=stored, models=models)
    assert begun or min(expected) < 0  # cut off there


def cut(change, energy):
    """A matrix of the smallest rank that keeps `energy`, and its size as factors."""
    if change.ndim < 2 or not change.is_floating_point():
        return change, change.numel()
    u, s, vh = np.linalg.svd(change.flatten(1).double().numpy(), full_matrices=False)
    rank = next(rank for rank in range(len(s) + 1) if (s[:rank] ** 2).sum() >= energy * (s**2).sum())
    short = torch.from_numpy((u[:, :rank] * s[:rank]) @ vh[:rank]).float().view(change.shape)
    return short, min(rank * (len(u) + vh.shape[1] + 1), change.numel())


def kl(target, logits):
    p, q = target.softmax(1), logits.softmax(1)
    return (p * (p.log() - q.log())).sum(1).mean()


@pytest.mark.parametrize("net", ["convnet", "norm", "language_transformer"])
def test_fedkd(net):
    hand, other = (Rounds(net, SETTINGS) for _ in range(2))
    width, student = hand.initial["head.weight"].shape[1], hand.initial
    teachers, maps, had, traffic = [hand.initial] * 3, [torch.eye(width)] * 3, [0] * 3, []
    broadcast = full = sum(tensor.numel() for tensor in hand.initial.values())

    def client(i, round_):
        mapping = nn.Parameter(maps[i].clone())
        parts = hand.lend(teachers[i]).parameters(), [*other.lend(student).parameters(), mapping]
        optimisers = [torch.optim.SGD(part, SETTINGS.lr, 0.5, weight_decay=1e-2) for part in parts]
        for rows in hand.rows(i, round_):
            t, s, labels = hand.logits(rows), other.logits(rows), hand.labels(rows)
            h_t, h_s = hand.features, other.features @ mapping.T
            l_t, l_s = F.cross_entropy(t, labels), F.cross_entropy(s, labels)
            total = (l_t + l_s).detach()
            of_t = l_t + (kl(s.detach(), t) + (h_t - h_s.detach()).square().mean()) / total
            of_s = l_s + (kl(t.detach(), s) + (h_t.detach() - h_s).square().mean()) / total
            for it, loss in zip(optimisers, (of_t, of_s), strict=True):
                it.zero_grad()
                loss.backward()
            for it in optimisers:
                it.step()
        teachers[i], maps[i] = hand.state(), mapping.detach()
        return other.state()

    for round_, cohort in hand:
        energy, changes = 0.8 + 0.1 * round_ / 3, {}
        for i in cohort:
            pieces = {name: cut(after - student[name], energy) for name, after in client(i, round_).items()}
            changes[i] = {name: piece for name, (piece, _) in pieces.items()}
            traffic.append((4 * sum(size for _, size in pieces.values()), 4 * min(broadcast - had[i], full)))
            had[i] = broadcast
        sent = {name: cut(it, energy) for name, it in hand.mean(changes, "uniform").items()}
        student = {name: before + sent[name][0] for name, before in student.items()}
        broadcast += sum(size for _, size in sent.values())
    result = hand.run("fedkd", tmin=0.8, tmax=0.9)
    hand.x, hand.own = {}, teachers
    hand.check(result, add_prefix("common/", student), kept=[{"projection": it} for it in maps], models=teachers)
    assert result.weights["common/numbers"].tolist() == [0, broadcast]
    assert [result.cost.sent_up, result.cost.sent_down] == np.mean(traffic, 0).round().tolist()
    assert result.cost.sent_up < 4 * full


@pytest.mark.parametrize("net", ["convnet", "language_transformer", "norm", "tiny_vit"])
def test_fedrod(net):
    hand, balanced = Rounds(net, SETTINGS), net != "norm"
    hand.data.labels[hand.data.train[0]] %= 3  # the first client lacks a class
    heads, seen = [nn.Linear(*reversed(hand.head.weight.shape), bias=hand.head.bias is not None) for _ in range(3)], []
    reads = hand.model.get_submodule("norm" if net == "tiny_vit" else "head")  # there the class token, before its norm
    reads.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(0, -2)))
    for head in heads:
        head.load_state_dict(hand.head.state_dict())

    def client(i, round_):
        counts = torch.bincount(hand.labels(hand.data.train[i]), minlength=CLASSES)
        prior = counts.log() if balanced else torch.zeros(CLASSES)  # minus infinity for a class that is not there

        def loss(rows):
            logits, labels = hand.logits(rows), hand.labels(rows)
            personal = logits.detach() + heads[i](seen[-1].detach())
            return F.cross_entropy(logits + prior, labels) + F.cross_entropy(personal, labels)

        return hand.train(i, round_, loss=loss, beside=heads[i].parameters())

    hand.average(client)
    result, stored = hand.run("fedrod", balanced=balanced), [add_prefix("head.", layer.state_dict()) for layer in heads]
    hand.check(result, kept=stored, logits=lambda i, plain: plain + heads[i](seen[-1]))
    assert result.cost.sent_up == sum(tensor.nbytes for tensor in hand.initial.values())


@pytest.mark.parametrize("net, width", [("language_transformer", None), ("convnet", 5), ("norm", None)])
def test_moon(net, width):
    """With a projection the classifier gets, and the loss compares, what it gives."""
    entry = method("moon", mu=2.0, tau=0.3, projection=width)
    hand = Rounds(net, SETTINGS, entry=entry)
    previous = [hand.initial] * 3

    def client(i, round_):
        others = hand.x, previous[i]

        def loss(rows):
            zs = [hand.look(model, rows)[1] for model in others]
            logits, cosine = hand.logits(rows), nn.CosineSimilarity()
            like, unlike = (torch.exp(cosine(hand.features, z) / 0.3) for z in zs)
            return F.cross_entropy(logits, hand.labels(rows)) - 2.0 * (like / (like + unlike)).log().mean()

        previous[i] = hand.train(i, round_, loss=loss)
        return previous[i]

    hand.average(client)
    hand.check(hand.run(entry), kept=[model if model is not hand.initial else {} for model in previous])


def test_a_projection_in_a_backbone_that_is_no_sequence_of_layers():
    model = create(backbone("tiny_vit"), 0, method("moon", projection=6))[0].eval()
    images, other = torch.randn(3, 1, 8, 8), copy.deepcopy(model)
    logits = model(images)
    nn.init.zeros_(model.get_parameter("projection.out.weight"))  # not that of the copy
    nn.init.ones_(model.get_parameter("projection.out.bias"))
    torch.testing.assert_close(model(images)[0], model.head.weight.sum(1) + model.head.bias)
    assert torch.equal(other(images), logits)
    with pytest.raises(UserError, match=r"^method moon: projection: the backbone ends with Softmax, not a linear"):
        method("moon", projection=4).extend(nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1)))
