"""Methods that differ from FedAvg in what the server makes of the clients' models, against rounds by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.by_hand import Rounds, State, losses, near
from support.tiny import backbone, federation, method, run, training
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import add_prefix

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(
    ("name", "words", "options"),
    [
        *((name, r"all .* of the model is personal$", {"also_personal": ("all",)}) for name in ("scaffold", "fedamp")),
        ("fedala", "layers: head: the backbone has none, or they are personal", {"also_personal": ("head",)}),
        ("fedselect", "alternations: 3 take as many epochs", {"alternations": 3}),
        ("fedamp", "own_weight: with attention by distance", {"own_weight": 0.3}),
        ("fedamp", "alpha: 1 above sigma / 2", {"alpha": 1.0, "sigma": 1.9}),
        ("fedala", r"finetune_\*: ", {"finetune_epochs": 1}),
    ],
)
def test_what_does_not_go_together_is_a_line(name: str, words: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"^method {name}: {words}") as error:
        run(method(name, **options), backbone("convnet"))
    assert "\n" not in str(error.value)


# --- corrections: FedDyn, SCAFFOLD, FedNova --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "alpha", "own", "momentum", "averaging"),
    [("convnet", 0.05, "head.", 0.5, None), ("convnet", 2.0, "", 0.0, "samples"), ("norm", 0.3, "", 0.0, None)],
)
def test_feddyn(net: str, alpha: float, own: str, momentum: float, averaging: str | None) -> None:
    hand = Rounds(net, training(rounds=3, momentum=momentum), own=own)
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


@pytest.mark.parametrize(("net", "step", "own", "momentum"), [("convnet", 0.5, "head.", 0.5), ("norm", 1.0, "", 0.0)])
def test_scaffold(net: str, step: float, own: str, momentum: float) -> None:
    hand = Rounds(net, training(rounds=3, momentum=momentum, schedule="exponential", gamma=0.5), own=own)
    c, variates = hand.zeros(), [hand.zeros() for _ in range(3)]
    for round_, cohort in hand:
        lr, ended, change = hand.settings.lr * 0.5 ** (round_ - 1), {}, hand.zeros()
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


@pytest.mark.parametrize(("own", "rho"), [("", 0.0), ("head.", 0.6)])
def test_fednova(own: str, rho: float) -> None:
    hand = Rounds(own=own, settings=training(rounds=3, momentum=rho))
    for round_, cohort in hand:
        p, ended = hand.shares(cohort), {i: hand.train(i, round_) for i in cohort}
        # A gradient counts in the step that sees it and, by momentum, in all later ones.
        a = {i: sum(rho**j for k in range(len(hand.rows(i, round_))) for j in range(k + 1)) for i in cohort}
        tau = sum(p[i] * a[i] for i in cohort)
        hand.x = {n: x - tau * sum(p[i] * (x - ended[i][n]) / a[i] for i in cohort) for n, x in hand.x.items()}
    hand.check(hand.run("fednova"))


# --- FedSelect -------------------------------------------------------------------------------------------------------


def grown(mask: Tensor, moved: Tensor, rate: float, limit: float) -> Tensor:
    own, size = mask.numpy().ravel().copy(), mask.numel()
    free = np.flatnonzero(~own)
    count = min(int(np.round(rate * len(free))), int(limit * size) - own.sum())
    own[free[np.argsort(-moved.numpy().ravel()[free])[: max(count, 0)]]] = True
    return torch.from_numpy(own).view_as(mask)


@pytest.mark.parametrize(("net", "alternations"), [("convnet", 2), ("norm", 1)])
def test_fedselect(net: str, alternations: int) -> None:
    hand = Rounds(net, training(rounds=5, momentum=0.5, weight_decay=1e-2))
    names, travelled = hand.parameters(), []
    nothing = {name: torch.zeros_like(hand.x[name], dtype=torch.bool) for name in names}
    masks, values, took = [nothing] * 3, [dict(hand.x) for _ in range(3)], [0] * 3

    def own(client: int) -> State:
        return hand.x | {n: torch.where(masks[client][n], values[client][n], hand.x[n]) for n in names}

    def passed(steps: list[Tensor], moves: State) -> None:
        """SGD, in which what does not move is put back after each step; momentum is that of all."""
        sgd = torch.optim.SGD(hand.model.parameters(), hand.settings.lr, 0.5, weight_decay=1e-2)
        for rows in steps:
            before = hand.state()
            sgd.zero_grad()
            hand.cross_entropy(rows).backward()
            sgd.step()
            hand.lend(hand.state(), {n: torch.where(moves[n], hand.state()[n], before[n]) for n in names})

    def client(i: int, round_: int) -> State:
        start, mask, steps = own(i), masks[i], hand.rows(i, round_)
        hand.lend(start)
        half = len(steps) // 2
        for turn, cut in enumerate([steps] if alternations == 1 else [steps[:half], steps[half:]]):
            passed(hand.passes(i, f"phase {3 + 2 * turn}", round_), mask)
            passed(cut, {name: ~one for name, one in mask.items()})
        values[i], took[i] = hand.state(), took[i] + 1
        if took[i] % 2 == 0:
            moved = {n: (values[i][n] - start[n]).abs() for n in names if "weight" in n}
            masks[i] = mask | {n: grown(mask[n], one, 0.3, 0.4) for n, one in moved.items()}
        down = sum(tensor.nbytes for tensor in hand.x.values()) - 4 * sum(int(one.sum()) for one in mask.values())
        travelled.append((down + sum(-(-one.numel() // 8) for n, one in mask.items() if "weight" in n), down))
        return values[i]

    for round_, cohort in hand:
        used = {i: masks[i] for i in cohort}
        ended = {i: client(i, round_) for i in cohort}
        mean = hand.mean(ended, "uniform")
        for n in names:
            who = torch.stack([~used[i][n] for i in ended]).float()
            total = (who * torch.stack([one[n] for one in ended.values()])).sum(0)
            mean[n] = torch.where(who.sum(0) > 0, total / who.sum(0).clamp_min(1), hand.x[n])
        hand.x = mean
    assert any(bool((one["head.weight"].float().mean() > 0.3) & ~one["head.weight"].all()) for one in masks)
    result = hand.run("fedselect", rate=0.3, limit=0.4, every=2, alternations=alternations)
    kept = [{f"mask/{n}": one for n, one in mask.items() if "weight" in n} for mask in masks]
    hand.check(result, kept=kept, models=[own(i) for i in range(3)])
    assert [result.cost.sent_up, result.cost.sent_down] == pytest.approx(np.mean(travelled, 0).tolist(), abs=0.5)


# --- mixtures: FedAMP, FedCAC, FedU ----------------------------------------------------------------------------------

DISTANCE = {"lam": 0.6, "alpha": 0.4, "sigma": 2.0}
COSINE = {"attention": "cosine", "lam": 3.0, "alpha": 2.0, "sigma": 40.0, "own_weight": 0.6}


def attention(vectors: Array, options: dict[str, Any]) -> Array:
    """ξ of all clients, one pair after the other."""
    made, cosine, sigma = np.zeros((len(vectors), len(vectors))), "attention" in options, options["sigma"]
    for i, a in enumerate(vectors):
        for j, b in enumerate(vectors):
            near_ = sigma * (a @ b) / np.sqrt((a @ a) * (b @ b)) if cosine else -((a - b) @ (a - b)) / sigma
            made[i, j] = 0 if i == j else np.exp(near_) * (1 if cosine else options["alpha"] / sigma)
        if cosine:
            made[i] *= (1 - options["own_weight"]) / made[i].sum()
        made[i, i] = 1 - made[i].sum()
    return made


@pytest.mark.parametrize(
    ("net", "options", "own"),
    [("convnet", COSINE, "head."), ("convnet", {**DISTANCE, "start": "own"}, ""), ("norm", DISTANCE, "")],
    ids=["cosine", "own", "norm"],
)
def test_fedamp(net: str, options: dict[str, Any], own: str) -> None:
    hand = Rounds(net, training(rounds=3, momentum=0.5), own=own)
    names, whole, pull = list(hand.zeros()), [hand.initial] * 3, options["lam"] / options["alpha"]
    mixed = [{n: hand.x[n] for n in names} for _ in range(3)]
    for round_, cohort in hand:
        for i in cohort:
            begun = whole[i] if options.get("start") == "own" else whole[i] | mixed[i]
            whole[i] = hand.train(i, round_, begun, pull=lambda n, w, u=mixed[i]: pull * (w - u[n]))
        vectors = np.stack([torch.cat([one[n].flatten() for n in names]).double().numpy() for one in whole])
        shares = attention(vectors, options).tolist()
        mixed = [{n: sum(s * one[n] for s, one in zip(row, whole, strict=True)) for n in names} for row in shares]
    result = hand.run("fedamp", **options)
    for i, state in enumerate(whole):
        near(result.weights, {f"client.{i}.own/{n}" if n in names else f"client.{i}.{n}": t for n, t in state.items()})
        near({n: result.weights[f"server.models/{n}"][i] for n in names}, {n: state[n] for n in names})
    losses(result, [hand.loss(i, state) for i, state in enumerate(whole)])


def test_fedcac() -> None:
    tau, beta = 0.3, 3
    hand = Rounds("convnet", training(rounds=5), federation((14, 7, 9, 11), (5, 8, 6, 4)))
    models, masks, friends = dict[int, State](), dict[int, State](), dict[int, set[int]]()

    def critical(before: Tensor, after: Tensor) -> Tensor:
        moved = ((after - before) * after).abs().flatten()
        best = moved.argsort(descending=True)[: int(tau * moved.numel())]
        mask = torch.zeros_like(moved, dtype=torch.bool)
        mask[best[moved[best] > 0]] = True
        return mask.view_as(after)

    def sent_to(i: int) -> State:
        if i not in models:
            return hand.x
        circle = [models[one] for one in friends[i]]
        return {n: torch.where(masks[i][n], sum(one[n] for one in circle) / len(circle), x) for n, x in hand.x.items()}

    sizes = set()
    for round_, cohort in hand:
        begun = {i: sent_to(i) for i in cohort}
        for i, before in begun.items():
            models[i] = hand.train(i, round_, before)
            masks[i] = {n: critical(before[n], after) for n, after in models[i].items()}
        hand.x = hand.mean({i: models[i] for i in cohort})
        flat = {i: torch.cat([mask.flatten() for mask in own.values()]).numpy() for i, own in masks.items()}
        pairs = {(i, j): 1 - np.sum(a != b) / (2 * a.sum()) for i, a in flat.items() for j, b in flat.items() if i != j}
        friends = {i: {i} for i in masks}
        if pairs and round_ <= beta:
            mean, largest = np.mean(list(pairs.values())), max(pairs.values())
            for (i, j), overlap in pairs.items():
                friends[i] |= {j} if overlap >= mean + round_ / beta * (largest - mean) - 1e-12 else set()
        sizes |= {len(one) for one in friends.values()}
    assert len(sizes) > 1  # at some time some were alone and some were not
    result = hand.run("fedcac", tau=tau, beta=beta)
    near(result.weights, add_prefix("server.global/", hand.x))
    for i, own in models.items():
        near({n: result.weights[f"server.models/{n}"][i] for n in own}, own)
        near({n: result.weights[f"server.critical/{n}"][i] for n in own}, masks[i])
    losses(result, [hand.loss(i, sent_to(i)) for i in range(4)])


@pytest.mark.parametrize("net", ["convnet", "norm"])
def test_fedu(net: str) -> None:
    """Two of three clients a round; who is not sampled neither moves nor pulls; buffers stay on the client."""
    hand = Rounds(net, training(rounds=3, momentum=0.5))
    models = [hand.x] * 3
    for round_, cohort in hand:
        done = {i: hand.train(i, round_, models[i]) for i in cohort}
        for i, own in done.items():
            moved = {n: own[n] - 0.08 * sum(own[n] - other[n] for other in done.values()) for n in hand.parameters()}
            models[i] = own | moved
    result = hand.run("fedu", coupling=0.4, strength=0.2)
    for i, one in enumerate(models):
        near({n: result.weights[f"server.models/{n}"][i] for n in hand.zeros()}, {n: one[n] for n in hand.zeros()})
    losses(result, [hand.loss(i, one) for i, one in enumerate(models)])
