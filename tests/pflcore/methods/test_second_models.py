"""Methods with a second model, prototypes or a second classifier, against plain loops of modules."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from support.by_hand import Rounds, State, near
from support.tiny import CLASSES, backbone, create, federation, method, texts, training
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.data.federation import FederatedData
from pflcore.engine import Result
from pflcore.errors import UserError
from pflcore.groups import add_prefix, strip_prefix

SIZES = ((14, 7, 10), (5, 8, 6))
SETTINGS = training(rounds=3, momentum=0.5, weight_decay=1e-2)


def some_classes() -> FederatedData:
    """A federation of which every client lacks classes: client 0 has 0 and 1, client 1 has 1 and 2, client 2 has 0."""
    data = federation(*SIZES)
    for rows, classes in zip(data.train, ([0, 1], [1, 2], [0]), strict=True):
        data.labels[rows] = torch.tensor(classes).repeat(len(rows))[: len(rows)]
    return data


# The Transformer's classifier has no bias, and its logits are scaled after it.
KINDS = {
    "images": ("convnet", some_classes()),
    "batch norm": ("norm", federation(*SIZES)),
    "text": ("language_transformer", texts(*SIZES)),
}


@pytest.fixture(params=KINDS)
def hand(request: pytest.FixtureRequest) -> Rounds:
    net, data = KINDS[request.param]
    return Rounds(net, SETTINGS, data)


def hits(result: Result, hand: Rounds, client: int, logits: Tensor) -> None:
    """The run counted as many right predictions of the client's test samples."""
    labels = hand.labels(hand.data.test[client])
    assert result.correct[-3 + client] == int((logits.argmax(1) == labels).sum())


def plus(model: State, change: State, factor: float) -> State:
    return {name: tensor + factor * change[name] for name, tensor in model.items()}


@pytest.mark.parametrize("own", ["", "head."])
@pytest.mark.parametrize("name", ["ditto", "pfedme"])
def test_ditto_and_pfedme(name: str, own: str) -> None:
    """Groups that are also personal follow the gradient of their own model alone, from where they were."""
    hand, lam = Rounds("convnet", training(rounds=3), own=own), 2.0
    lr, mine = hand.settings.lr, [hand.initial] * 3

    def pulled(model: State, towards: State, rows: Tensor) -> State:
        slopes = hand.slopes(model, rows)
        pull = {n: g + (lam * (model[n] - towards[n]) if n in hand.x else 0) for n, g in slopes.items()}
        return plus(model, pull, -lr)

    def client(i: int, round_: int) -> State:
        received = w = hand.x | hand.own[i]
        theta = mine[i] if name == "ditto" else received
        for rows in hand.rows(i, round_):
            if name == "ditto":
                w, theta = plus(w, hand.slopes(w, rows), -lr), pulled(theta, received, rows)
                continue
            for _ in range(3):
                theta = pulled(theta, w, rows)
            w = {n: t - lr * lam * (t - theta[n]) if n in hand.x else theta[n] for n, t in w.items()}
        mine[i], hand.own[i] = theta, {n: w[n] for n in hand.own[i]}
        return w

    hand.average(client)
    result = hand.run(name, lam=lam, **({"inner_steps": 3} if name == "pfedme" else {}))
    hand.check(result, kept=mine, models=mine)
    if name == "pfedme":  # the server mixes
        hand = Rounds("convnet", training(rounds=1))
        whole, part = hand.run("pfedme").weights, hand.run("pfedme", beta=0.2).weights
        near(part, {n: 0.8 * tensor + 0.2 * whole[n] for n, tensor in hand.x.items()}, atol=1e-6)


@pytest.mark.parametrize(("variant", "begun"), [("as_written", 0.4), ("as_written", 0.0), ("as_released", 0.4)])
def test_apfl(variant: str, begun: float) -> None:
    hand = Rounds("convnet", training(sample_rate=1.0), federation((14, 7), (5, 8)))
    lr, alphas, wanted, mine = hand.settings.lr, [begun] * 2, set(), [hand.x] * 2

    def mixed(alpha: float, v: State, w: State) -> State:
        return {name: alpha * tensor + (1 - alpha) * w[name] for name, tensor in v.items()}

    def client(i: int, round_: int) -> State:
        w, v, alpha = hand.x, mine[i], alphas[i]
        for rows in hand.rows(i, round_):
            of_w, of_v = hand.slopes(w, rows), hand.slopes(v, rows)
            written = variant == "as_written"
            toward = hand.slopes(mixed(alpha, v, w), rows) if written else mixed(alpha, of_v, of_w)
            before = v, w
            w = plus(w, of_w, -lr)
            v = plus(v, {n: alpha * t for n, t in toward.items()} if written else of_v, -lr)
            own, common = before if written else (v, w)
            along = sum(float(((own[n] - common[n]) * toward[n]).sum()) for n in v) + 0.02 * alpha
            wanted.add(alpha - lr * along)
            alpha = min(1.0, max(0.0, alpha - lr * along))
        alphas[i], mine[i] = alpha, v if variant == "as_written" else mixed(alpha, v, w)
        return w

    hand.average(client)
    result = hand.run(method("apfl", alpha=begun, variant=variant))
    models = [mixed(a, own, hand.x) if variant == "as_written" else own for a, own in zip(alphas, mine, strict=True)]
    hand.check(result, kept=mine, models=models)
    assert [float(result.weights[f"client.{i}.own/alpha"]) for i in range(2)] == pytest.approx(alphas, abs=1e-5)
    assert begun or min(wanted) < 0  # cut off there


# --- MOON ------------------------------------------------------------------------------------------------------------


def cosine(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1)).clamp_min(1e-8)


@pytest.mark.parametrize(("kind", "width"), [("text", None), ("images", 5), ("batch norm", None)])
def test_moon(kind: str, width: int | None) -> None:
    """With a projection the classifier gets, and the loss compares, what it gives."""
    entry = method("moon", mu=2.0, tau=0.3, projection=width)
    net, data = KINDS[kind]
    hand = Rounds(net, SETTINGS, data, entry=entry)
    previous = [hand.initial] * 3

    def client(i: int, round_: int) -> State:
        others = hand.x, previous[i]

        def loss(rows: Tensor) -> Tensor:
            zs = [hand.look(one, rows)[1] for one in others]
            logits = hand.logits(rows)
            near_, far = (torch.exp(cosine(hand.features, z) / 0.3) for z in zs)
            return F.cross_entropy(logits, hand.labels(rows)) - 2.0 * (near_ / (near_ + far)).log().mean()

        previous[i] = hand.train(i, round_, loss=loss)
        return previous[i]

    hand.average(client)
    hand.check(hand.run(entry), kept=[one if one is not hand.initial else {} for one in previous])


def test_the_projection_of_a_transformer_gets_what_its_classifier_got() -> None:
    """That is the class token after its norm, in a backbone that is no sequence of layers."""
    net = backbone("tiny_vit")
    model, plain = create(net, 0, method("moon", projection=6))[0].eval(), create(net, 0)[0].eval()
    plain.head = nn.Identity()
    state, images = model.state_dict(), torch.randn(3, 1, 8, 8)
    hidden = F.relu(plain(images) @ state["projection.hidden.weight"].T + state["projection.hidden.bias"])
    z = hidden @ state["projection.out.weight"].T + state["projection.out.bias"]
    torch.testing.assert_close(model(images), z @ state["head.weight"].T + state["head.bias"])
    with pytest.raises(UserError, match=r"^method moon: projection: the backbone ends with Softmax, not a linear"):
        method("moon", projection=4).extend(nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1)))


# --- FedProto --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "local_steps"), [("images", None), ("text", 5), ("batch norm", None)])
def test_fedproto(kind: str, local_steps: int | None) -> None:
    """Prototypes are of the last epoch, or with local steps of the last one that was begun."""
    hand = Rounds(KINDS[kind][0], SETTINGS, KINDS[kind][1])
    if local_steps:
        hand.settings = training(rounds=1, sample_rate=1.0, local_steps=local_steps, momentum=0.5, weight_decay=1e-2)
    models, known = [hand.initial] * 3, dict[int, Tensor]()

    def client(i: int, round_: int) -> dict[int, Tensor]:
        epoch = -(-len(hand.data.train[i]) // hand.settings.batch_size)
        steps, seen = hand.rows(i, round_), list[tuple[Tensor, Tensor]]()
        if local_steps:
            steps = [hand.passes(i, "batches", round_, local_steps)[k * epoch] for k in range(local_steps)]

        def loss(rows: Tensor) -> Tensor:
            if len(seen) % epoch == 0:
                seen.clear()
            logits, labels = hand.logits(rows), hand.labels(rows)
            seen.append((hand.features.detach(), labels))
            pairs = zip(hand.features, labels.tolist(), strict=True)
            away = sum((one - known[label]).square().sum() for one, label in pairs if label in known)
            return F.cross_entropy(logits, labels) + 0.7 * away / hand.features.numel()

        hand.lend(models[i])
        models[i] = hand.descend(steps, loss)
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
    for i, own in enumerate(models):
        near(strip_prefix(f"client.{i}.", result.weights) or hand.initial, own)
        hand.lend(own).eval()
        hand.logits(hand.data.test[i])
        far = torch.full((len(hand.features),), math.inf)
        away = [(hand.features - known[c]).square().mean(1).detach() if c in known else far for c in range(CLASSES)]
        hits(result, hand, i, -torch.stack(away, 1))


# --- FedKD -----------------------------------------------------------------------------------------------------------


def cut(change: Tensor, energy: float) -> tuple[Tensor, int]:
    """A matrix of the smallest rank that keeps `energy`, and its size as factors."""
    if change.ndim < 2 or not change.is_floating_point():
        return change, change.numel()
    matrix = change.reshape(len(change), -1).double().numpy()
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    rank = 0
    while (values[:rank] ** 2).sum() < energy * (values**2).sum():
        rank += 1
    short = torch.from_numpy((left[:, :rank] * values[:rank]) @ right[:rank]).float().view(change.shape)
    return short, min(rank * (sum(matrix.shape) + 1), matrix.size)


def kl(target: Tensor, logits: Tensor) -> Tensor:
    p, q = target.softmax(1), logits.softmax(1)
    return (p * (p.log() - q.log())).sum(1).mean()


def test_fedkd(hand: Rounds) -> None:
    width = hand.initial["head.weight"].shape[1]
    teachers, student, maps = [hand.initial] * 3, hand.initial, [nn.Linear(width, width, bias=False) for _ in range(3)]
    for one in maps:
        one.load_state_dict({"weight": torch.eye(width)})
    whole = sum(tensor.numel() for tensor in hand.initial.values())
    broadcast, had, traffic = whole, [0] * 3, []

    def another(state: State) -> Rounds:
        """With a module of its own, that trains beside the first."""
        made = Rounds(hand.name, hand.settings, hand.data)
        made.lend(state)
        return made

    def sgd_of(*modules: nn.Module) -> torch.optim.SGD:
        params = [parameter for one in modules for parameter in one.parameters()]
        return torch.optim.SGD(params, SETTINGS.lr, SETTINGS.momentum, weight_decay=SETTINGS.weight_decay)

    for round_, cohort in hand:
        energy, changes = 0.8 + 0.1 * round_ / hand.settings.rounds, {}
        for i in cohort:
            teacher, pupil, mapping = another(teachers[i]), another(student), maps[i]
            of_teacher, of_student = sgd_of(teacher.model), sgd_of(pupil.model, mapping)
            for rows in hand.rows(i, round_):
                t, s, labels = teacher.logits(rows), pupil.logits(rows), hand.labels(rows)
                h_t, h_s = teacher.features, pupil.features
                l_t, l_s = F.cross_entropy(t, labels), F.cross_entropy(s, labels)
                total = (l_t + l_s).detach()
                of_teacher.zero_grad()
                of_student.zero_grad()
                fixed = mapping(h_s).detach()
                (l_t + kl(s.detach(), t) / total + (h_t - fixed).square().mean() / total).backward()
                (l_s + kl(t.detach(), s) / total + (h_t.detach() - mapping(h_s)).square().mean() / total).backward()
                of_teacher.step()
                of_student.step()
            teachers[i], trained = teacher.state(), pupil.state()
            pieces = {name: cut(trained[name] - before, energy) for name, before in student.items()}
            changes[i] = {name: piece for name, (piece, _) in pieces.items()}
            traffic.append((4 * sum(size for _, size in pieces.values()), 4 * min(broadcast - had[i], whole)))
            had[i] = broadcast
        sent = {name: cut(one, energy) for name, one in hand.mean(changes, "uniform").items()}
        student = {name: before + sent[name][0] for name, before in student.items()}
        broadcast += sum(size for _, size in sent.values())
    result = hand.run("fedkd", tmin=0.8, tmax=0.9)
    near(result.weights, add_prefix("common/", student))
    assert result.weights["common/numbers"].tolist() == [0, broadcast]
    for i, own in enumerate(teachers):
        near({n: result.weights.get(f"client.{i}.{n}", tensor) for n, tensor in hand.initial.items()}, own)
        mapped = result.weights.get(f"client.{i}.own/projection", torch.eye(width))
        torch.testing.assert_close(mapped, maps[i].weight.detach(), atol=2e-5, rtol=1e-3)
        hand.lend(own).eval()
        hits(result, hand, i, hand.logits(hand.data.test[i]))
    on_average = tuple(round(float(np.mean(part))) for part in zip(*traffic, strict=True))
    assert (result.cost.sent_up, result.cost.sent_down) == on_average and result.cost.sent_up < 4 * whole


# --- FedRoD ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "balanced"), [("images", True), ("text", True), ("batch norm", False)])
def test_fedrod(kind: str, balanced: bool) -> None:
    hand = Rounds(KINDS[kind][0], SETTINGS, KINDS[kind][1])
    heads = [copy.deepcopy(hand.model.get_submodule("head")) for _ in range(3)]
    for one in heads:
        one._forward_pre_hooks.clear()

    def client(i: int, round_: int) -> State:
        counts = torch.bincount(hand.labels(hand.data.train[i]), minlength=CLASSES)
        prior = counts.log() if balanced else torch.zeros(CLASSES)  # minus infinity for a class that is not there

        def loss(rows: Tensor) -> Tensor:
            logits, labels = hand.logits(rows), hand.labels(rows)
            own = logits.detach() + heads[i](hand.features.detach())
            return F.cross_entropy(logits + prior, labels) + F.cross_entropy(own, labels)

        return hand.train(i, round_, loss=loss, beside=heads[i].parameters())

    hand.average(client)
    result = hand.run("fedrod", balanced=balanced)
    hand.check(result, measured=False)
    for i, head in enumerate(heads):
        near(strip_prefix(f"client.{i}.own/head.", result.weights) or head.state_dict(), head.state_dict())
        hand.lend(hand.x).eval()
        hits(result, hand, i, hand.logits(hand.data.test[i]) + head(hand.features))
    assert result.cost.sent_up == sum(tensor.nbytes for tensor in hand.initial.values())
