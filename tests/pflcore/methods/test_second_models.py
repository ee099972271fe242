"""Methods with a second model, prototypes or a second classifier, against plain loops of modules."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from support.by_hand import SEED, Rounds, State, below, near, under
from support.tiny import (
    CLASSES,
    NormNet,
    assert_states_close,
    backbone,
    batches,
    create,
    federation,
    method,
    normalised,
    run,
    sampled,
    spied,
    texts,
    training,
)
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine import Result
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.groups import Roles
from pflcore.method import Federation, Update
from pflcore.methods.fedkd import compressed

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


def another(hand: Rounds, state: State) -> Rounds:
    """With a module of its own, that trains beside the first."""
    made = Rounds(hand.name, hand.settings, hand.data)
    made.lend(state)
    return made


def sgd_of(hand: Rounds, *modules: nn.Module) -> torch.optim.SGD:
    params = [parameter for one in modules for parameter in one.parameters()]
    return torch.optim.SGD(params, hand.settings.lr, hand.settings.momentum, weight_decay=hand.settings.weight_decay)


def hits(result: Result, hand: Rounds, client: int, logits: Tensor) -> None:
    """The run counted as many right predictions of the client's test samples."""
    labels = hand.labels(hand.data.test[client])
    assert result.correct[-3 + client] == int((logits.argmax(1) == labels).sum())


# --- Ditto, pFedMe, APFL ---------------------------------------------------------------------------------------------


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

    for round_, cohort in hand:
        ended = {}
        for i in cohort:
            received = w = hand.x | hand.own[i]
            theta = mine[i] if name == "ditto" else received
            for rows in hand.rows(i, round_):
                if name == "ditto":
                    w, theta = plus(w, hand.slopes(w, rows), -lr), pulled(theta, received, rows)
                    continue
                for _ in range(3):
                    theta = pulled(theta, w, rows)
                w = {n: t - lr * lam * (t - theta[n]) if n in hand.x else theta[n] for n, t in w.items()}
            ended[i], mine[i] = w, theta
            hand.own[i] = {n: w[n] for n in hand.own[i]}
        hand.x = hand.mean(ended)
    result = hand.run(name, lam=lam, **({"inner_steps": 3} if name == "pfedme" else {}))
    hand.check(result, *(under(f"client.{i}.own/", one) for i, one in enumerate(mine)), measured=False)
    assert result.loss[-3:].tolist() == pytest.approx([hand.loss(i, one) for i, one in enumerate(mine)], rel=1e-3)


def test_dittos_global_model_is_fedavgs_and_pfedmes_server_mixes() -> None:
    ditto, fedavg = (run(method(name), backbone("convnet")) for name in ("ditto", "fedavg"))
    near(ditto.weights, dict(fedavg.weights))
    assert ditto.cost.sent_up == fedavg.cost.sent_up
    hand = Rounds("convnet", training(rounds=1))
    whole, part = hand.run("pfedme").weights, hand.run("pfedme", beta=0.2).weights
    near(part, {name: 0.8 * tensor + 0.2 * whole[name] for name, tensor in hand.x.items()}, atol=1e-6)


@pytest.mark.parametrize("begun", [0.4, 0.0])
@pytest.mark.parametrize("variant", ["as_written", "as_released"])
def test_apfl(variant: str, begun: float) -> None:
    hand = Rounds("convnet", training(sample_rate=1.0), federation((14, 7), (5, 8)))
    lr, alphas, wanted, mine = hand.settings.lr, [begun] * 2, set(), [hand.x] * 2

    def mixed(alpha: float, v: State, w: State) -> State:
        return {name: alpha * tensor + (1 - alpha) * w[name] for name, tensor in v.items()}

    for round_, cohort in hand:
        ended = {}
        for i in cohort:
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
            ended[i], alphas[i] = w, alpha
            mine[i] = v if variant == "as_written" else mixed(alpha, v, w)
        hand.x = hand.mean(ended)
    result = hand.run(method("apfl", alpha=begun, variant=variant))
    hand.check(result, *(under(f"client.{i}.own/", one) for i, one in enumerate(mine)), measured=False)
    models = [mixed(a, own, hand.x) if variant == "as_written" else own for a, own in zip(alphas, mine, strict=True)]
    assert result.loss[-2:].tolist() == pytest.approx([hand.loss(i, one) for i, one in enumerate(models)], rel=1e-3)
    for i, alpha in enumerate(alphas):
        assert float(result.weights[f"client.{i}.own/alpha"]) == pytest.approx(alpha, abs=1e-5)
        assert not begun or alpha != pytest.approx(begun, abs=1e-5)
    assert begun or variant == "as_released" or min(wanted) < 0  # cut off there


@pytest.mark.parametrize("variant", ["as_written", "as_released"])
def test_apfls_weight_ends_at_nothing_and_at_all_and_can_be_fixed(variant: str) -> None:
    """Steps this long would go beyond either end; fixed at one, it is training alone."""
    hand = Rounds("convnet", training(sample_rate=1.0, lr=3.0), federation((14, 7), (5, 8)))
    ended = hand.run(method("apfl", alpha=0.99, variant=variant)).weights
    low, high = (float(ended[f"client.{client}.own/alpha"]) for client in range(2))
    assert 0 <= low < 0.1 and high == 1
    fixed = run(method("apfl", alpha=1.0, adaptive=False), backbone("convnet"))
    alone = run(method("local", schedule="when_sampled"), backbone("convnet"))
    for name, tensor in alone.weights.items():
        _, client, entry = name.split(".", 2)
        torch.testing.assert_close(fixed.weights[f"client.{client}.own/{entry}"], tensor)
    assert fixed.correct.tolist() == alone.correct.tolist()


# --- MOON ------------------------------------------------------------------------------------------------------------


def cosine(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1)).clamp_min(1e-8)


def test_moon(hand: Rounds) -> None:
    previous = [hand.initial] * 3
    for round_, cohort in hand:
        for i in cohort:

            def loss(rows: Tensor, others: tuple[State, ...] = (hand.x, previous[i])) -> Tensor:
                zs = [hand.look(one, rows)[1] for one in others]
                logits = hand.logits(rows)
                near_, far = (torch.exp(cosine(hand.features, z) / 0.3) for z in zs)
                return F.cross_entropy(logits, hand.labels(rows)) - 2.0 * (near_ / (near_ + far)).log().mean()

            previous[i] = hand.train(i, round_, loss=loss)
        hand.x = hand.mean({i: previous[i] for i in cohort})
    result = hand.run("moon", mu=2.0, tau=0.3)
    hand.check(result, *(under(f"client.{i}.own/", one) for i, one in enumerate(previous) if one is not hand.initial))


@pytest.mark.parametrize(("net", "options"), [("convnet", {}), ("tiny_vit", {"dropout": 0.2})])
def test_moon_without_its_term_is_fedavg(net: str, options: dict[str, Any]) -> None:
    """With its dropout masks: the model in training draws first."""
    moon, fedavg = (run(one, backbone(net, **options)) for one in (method("moon", mu=0.0), method("fedavg")))
    assert_states_close({name: moon.weights[name] for name in fedavg.weights}, fedavg.weights)
    assert moon.cost.sent_up == fedavg.cost.sent_up and moon.correct.tolist() == fedavg.correct.tolist()
    data = federation((10, 10), (4, 4))
    data.inputs.fill_(102)  # the mean: features of zeros have no direction, but a gradient
    result = run(method("moon"), backbone("convnet", hidden=(1,)), data)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in result.weights.values())


class Projected(nn.Module):
    """Body, projection and classifier, one after the other; gives logits and what is compared."""

    def __init__(self, net: Backbone, start: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.body = create(net, SEED)[0]
        width, own = start["projection.hidden.weight"].shape[0], start["head.weight"].shape[1]
        self.body.head = nn.Identity()
        self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, own))
        self.head = nn.Linear(own, len(start["head.bias"]))
        swaps = {"projection.hidden": "projection.0", "projection.out": "projection.2", "head": "head"}
        places = {name: name.rpartition(".") for name in start}
        self.names = {n: f"{swaps[at]}.{part}" if at in swaps else f"body.{n}" for n, (at, _, part) in places.items()}
        self.load_state_dict({mine: start[name] for name, mine in self.names.items()})

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        z = self.projection(self.body(inputs))
        return self.head(z), z

    def state(self) -> State:
        return {name: self.state_dict()[mine].clone() for name, mine in self.names.items()}


@pytest.mark.parametrize("net", [backbone("convnet"), NormNet()], ids=["convnet", "norm"])
def test_moon_with_its_projection(net: Backbone) -> None:
    entry, settings, data = (
        method("moon", mu=2.0, tau=0.3, projection=5),
        training(rounds=3, momentum=0.5),
        federation(),
    )
    w = {name: tensor.clone() for name, tensor in create(net, SEED, entry)[0].state_dict().items()}
    hand, previous = Rounds(), [w] * 3
    hand.x = w
    for round_ in (1, 2, 3):
        cohort = sampled(SEED, round_, 3, settings)
        for i in cohort:
            model = Projected(net, w).train()
            others = [Projected(net, one).train() for one in (w, previous[i])]
            sgd = torch.optim.SGD(model.parameters(), settings.lr, momentum=settings.momentum)
            for rows in batches(data, i, round_, settings, SEED):
                inputs = normalised(data, rows)
                logits, z = model(inputs)
                near_, far = (torch.exp(cosine(z, copy.deepcopy(one)(inputs)[1].detach()) / 0.3) for one in others)
                sgd.zero_grad()
                (F.cross_entropy(logits, data.labels[rows]) - 2.0 * (near_ / (near_ + far)).log().mean()).backward()
                sgd.step()
            previous[i] = model.state()
        w = hand.mean({i: previous[i] for i in cohort})
    result = run(entry, net, data, training=settings, seed=SEED, executor="sequential")
    near(result.weights, w)
    measured = Projected(net, w).eval()
    for i, rows in enumerate(data.test):
        loss = float(F.cross_entropy(measured(normalised(data, rows))[0].detach(), data.labels[rows]))
        assert result.loss[6 + i] == pytest.approx(loss, rel=1e-3)


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


class Prototypes:
    """Of classes, with their server; a dictionary has those that there are."""

    def __init__(self) -> None:
        self.known: dict[int, Tensor] = {}

    def pull(self, features: Tensor, labels: Tensor) -> Tensor:
        """The mean squared difference over a batch, with zeros for samples of other classes."""
        total = torch.zeros(())
        for feature, label in zip(features, labels.tolist(), strict=True):
            if label in self.known:
                total = total + (feature - self.known[label]).square().sum()
        return total / features.numel()

    def average(self, returned: list[dict[int, Tensor]]) -> None:
        for label in range(CLASSES):
            if have := [one[label] for one in returned if label in one]:
                self.known[label] = torch.stack(have).mean(0)

    def logits(self, features: Tensor) -> Tensor:
        def nearness(feature: Tensor, label: int) -> float:
            return -float(F.mse_loss(feature, self.known[label])) if label in self.known else -math.inf

        return torch.tensor([[nearness(feature, label) for label in range(CLASSES)] for feature in features])


@pytest.mark.parametrize("local_steps", [None, 5])
def test_fedproto(hand: Rounds, local_steps: int | None) -> None:
    """Prototypes are of the last epoch, or with local steps of the last one that was begun."""
    if local_steps:
        hand.settings = training(rounds=1, sample_rate=1.0, local_steps=local_steps, momentum=0.5, weight_decay=1e-2)
    models, prototypes = [hand.initial] * 3, Prototypes()
    for round_, cohort in hand:
        returned = []
        for i in cohort:
            size, rows = hand.settings.batch_size, hand.data.train[i]
            epoch = -(-len(rows) // size)
            steps, seen = hand.rows(i, round_), list[tuple[Tensor, Tensor]]()
            if local_steps:
                steps = [hand.passes(i, "batches", round_, local_steps)[k * epoch] for k in range(local_steps)]

            def loss(rows: Tensor, seen: list[tuple[Tensor, Tensor]] = seen, epoch: int = epoch) -> Tensor:
                if len(seen) % epoch == 0:
                    seen.clear()
                logits, labels = hand.logits(rows), hand.labels(rows)
                seen.append((hand.features.detach(), labels))
                return F.cross_entropy(logits, labels) + 0.7 * prototypes.pull(hand.features, labels)

            hand.lend(models[i])
            models[i] = hand.descend(steps, loss)
            features, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
            returned.append({label: features[labels == label].mean(0) for label in labels.unique().tolist()})
        prototypes.average(returned)
    result = hand.run("fedproto", lam=0.7)
    assert result.weights["common/present"].tolist() == [label in prototypes.known for label in range(CLASSES)]
    near(dict(enumerate(result.weights["common/prototypes"])), prototypes.known)
    for i, own in enumerate(models):
        near(below(f"client.{i}.", result.weights) or hand.initial, own)
        hand.lend(own).eval()
        hand.logits(hand.data.test[i])
        hits(result, hand, i, prototypes.logits(hand.features.detach()))


def prototype_update(client: int, rows: dict[int, list[float]]) -> Update:
    prototypes, present = torch.zeros(CLASSES, 2), torch.zeros(CLASSES, dtype=torch.bool)
    for label, row in rows.items():
        prototypes[label], present[label] = torch.tensor(row), True
    entries = {"common/prototypes": prototypes, "common/present": present}
    return Update(client, 5, sent=prototype_update(client, {}).returned if rows else entries, returned=entries)


def test_the_server_of_fedproto_takes_the_mean_over_those_who_have_a_class() -> None:
    entry, roles = method("fedproto"), Roles(frozenset(), frozenset(), frozenset())
    start = {"common/prototypes": torch.zeros(CLASSES, 2), "common/present": torch.zeros(CLASSES, dtype=torch.bool)}
    server = entry.init_server(start, Roles(frozenset(start), frozenset(), frozenset()), Federation(2, 0))
    server = entry.update_server(server, roles, [prototype_update(0, {0: [1, 2], 1: [4, 4]})])
    server = entry.update_server(server, roles, [prototype_update(0, {0: [3, 3]}), prototype_update(1, {0: [5, 1]})])
    assert server.shared["common/prototypes"].tolist() == [[4, 2], [4, 4], [0, 0], [0, 0]]
    assert server.shared["common/present"].tolist() == [True, True, False, False]
    # Two of four rows of two numbers, and a byte of four bits, against that byte alone.
    assert entry.traffic(prototype_update(0, {0: [1, 2], 1: [4, 4]})) == (17, 1)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_a_class_without_prototype_is_never_predicted_and_has_a_finite_loss(scale: float) -> None:
    entry, seen = method("fedproto"), torch.randn(50, 3) * scale
    prototypes, present = torch.randn(CLASSES, 3) * scale, torch.tensor([True, False, True, False])

    class FakeLocal:
        @staticmethod
        def features(state: State, inputs: Tensor) -> tuple[Tensor, Tensor]:
            return inputs, seen

    def logits(present: Tensor) -> Tensor:
        state = {"common/prototypes": prototypes, "common/present": present}
        made: Tensor = entry.predict(FakeLocal(), state, seen)  # type: ignore[arg-type]
        return made

    given = logits(present)
    assert set(given.argmax(1).tolist()) <= {0, 2} and bool(torch.isfinite(given).all())
    expected = torch.stack([-F.mse_loss(seen, row.expand(50, 3), reduction="none").mean(1) for row in prototypes], 1)
    torch.testing.assert_close(given[:, [0, 2]], expected[:, [0, 2]])
    assert torch.isfinite(F.cross_entropy(given, torch.ones(50, dtype=torch.int64)))
    nobody = logits(torch.zeros(CLASSES, dtype=torch.bool))
    assert float(F.cross_entropy(nobody, torch.zeros(50, dtype=torch.int64))) == pytest.approx(math.log(CLASSES))


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
    teachers, student = [hand.initial] * 3, hand.initial
    maps = [nn.Linear(width, width, bias=False) for _ in range(3)]
    for one in maps:
        one.load_state_dict({"weight": torch.eye(width)})
    whole = sum(tensor.numel() for tensor in hand.initial.values())
    broadcast, had, traffic = whole, [0] * 3, []
    for round_, cohort in hand:
        energy, changes = 0.8 + 0.1 * round_ / hand.settings.rounds, {}
        for i in cohort:
            teacher, pupil, mapping = another(hand, teachers[i]), another(hand, student), maps[i]
            of_teacher = sgd_of(hand, teacher.model)
            of_student = sgd_of(hand, pupil.model, mapping)
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
    near(result.weights, under("common/", student))
    assert result.weights["common/numbers"].tolist() == [0, broadcast]
    for i, own in enumerate(teachers):
        near({n: result.weights.get(f"client.{i}.{n}", tensor) for n, tensor in hand.initial.items()}, own)
        mapped = result.weights.get(f"client.{i}.own/projection", torch.eye(width))
        torch.testing.assert_close(mapped, maps[i].weight.detach(), atol=2e-5, rtol=1e-3)
        hand.lend(own).eval()
        hits(result, hand, i, hand.logits(hand.data.test[i]))
    on_average = tuple(round(float(np.mean(part))) for part in zip(*traffic, strict=True))
    assert (result.cost.sent_up, result.cost.sent_down) == on_average and result.cost.sent_up < 4 * whole


def test_changes_are_cut_alike_for_one_client_and_many() -> None:
    torch.manual_seed(0)
    changes = torch.randn(3, 4, 3, 2, 2)
    changes[1] = 0
    energies = torch.tensor([0.5, 0.9, 0.95], dtype=torch.float64)
    together, sizes = torch.func.vmap(compressed)(changes, energies)
    for index, (change, energy) in enumerate(zip(changes, energies, strict=True)):
        expected, size = cut(change, float(energy))
        torch.testing.assert_close(together[index], expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(compressed(change, energy)[0], expected, atol=1e-5, rtol=1e-4)
        assert int(sizes[index]) == size
    lost = torch.full((4, 3), torch.nan)
    torch.testing.assert_close(compressed(lost, torch.tensor(0.9))[0], lost, equal_nan=True)


# --- FedRoD ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("balanced", [True, False])
def test_fedrod(hand: Rounds, balanced: bool) -> None:
    heads = [copy.deepcopy(hand.model.get_submodule("head")) for _ in range(3)]
    for one in heads:
        one._forward_pre_hooks.clear()
    for round_, cohort in hand:
        ended = {}
        for i in cohort:
            counts = torch.bincount(hand.labels(hand.data.train[i]), minlength=CLASSES)
            prior = counts.log() if balanced else torch.zeros(CLASSES)  # minus infinity for a class that is not there

            def loss(rows: Tensor, prior: Tensor = prior, head: nn.Module = heads[i]) -> Tensor:
                logits, labels = hand.logits(rows), hand.labels(rows)
                own = logits.detach() + head(hand.features.detach())
                return F.cross_entropy(logits + prior, labels) + F.cross_entropy(own, labels)

            ended[i] = hand.train(i, round_, loss=loss, beside=heads[i].parameters())
        hand.x = hand.mean(ended)
    result = hand.run("fedrod", balanced=balanced)
    hand.check(result, measured=False)
    for i, head in enumerate(heads):
        near(below(f"client.{i}.own/head.", result.weights) or head.state_dict(), head.state_dict())
        hand.lend(hand.x).eval()
        hits(result, hand, i, hand.logits(hand.data.test[i]) + head(hand.features))
    assert result.cost.sent_up == sum(tensor.nbytes for tensor in hand.initial.values())


@pytest.mark.parametrize("name", ["fedrod", "fedtp_fedrod"])
def test_the_second_classifier_of_a_transformer_reads_the_class_token_before_its_norm(name: str) -> None:
    data, net, entry = federation(), backbone("tiny_vit", dropout=0.0), method(name)
    model, groups = net.create(data.shape, data.classes, SEED)
    trainer = make_trainer(model, groups, data, entry, training(local_epochs=1, batch_size=50), SEED)
    torch.manual_seed(0)
    head = nn.Linear(8, data.classes)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state |= under("own/head.", {part: tensor.detach().clone() for part, tensor in head.state_dict().items()})
    state["data/class_counts"] = torch.ones(data.classes)
    with torch.no_grad():  # a norm that does something
        for key in ("norm.weight", "norm.bias"):
            state[key] += torch.randn(8)
    model.load_state_dict({key: tensor for key, tensor in state.items() if "/" not in key})
    tokens: list[Tensor] = []
    model.get_submodule("norm").register_forward_pre_hook(lambda _, given: tokens.append(given[0].detach()))

    def logits_of(rows: Tensor) -> Tensor:
        generic = model(normalised(data, rows)).detach()
        out: Tensor = generic + head(tokens[-1])
        return out

    rows = data.train[1]  # a single step
    with torch.no_grad():
        torch.testing.assert_close(trainer.predict(state, normalised(data, rows)), logits_of(rows))
    F.cross_entropy(logits_of(rows), data.labels[rows]).backward()
    after = trainer.train(1, 1, state).model
    for part, parameter in head.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(after[f"own/head.{part}"], parameter.detach() - 0.05 * parameter.grad)


@pytest.mark.parametrize("name", ["moon", "fedproto", "fedkd", "fedrod"])
def test_groups_can_stay_personal_and_neighbours_can_vote(name: str) -> None:
    seen: list[list[Update]] = []
    entry = method(name, also_personal=("head",), knn=0.5, neighbours=3)
    result = run(spied(entry, seen), backbone("convnet"))
    assert result.diverged is None and np.isfinite(result.loss).all()
    assert not any("head.weight" in one.returned for updates in seen for one in updates)
    assert f"client.{seen[0][0].client}.head.weight" in result.weights
