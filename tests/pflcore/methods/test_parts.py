"""Methods whose clients train parts in turn, or adapt what they received, against plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.by_hand import SEED, Rounds, State, losses
from support.tiny import backbone, federation, method, result_bytes, run, training
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import add_prefix
from pflcore.seeds import generator
from pflcore.settings import Training

ROUNDS = training(rounds=2, sample_rate=1.0, local_epochs=3, lr=0.05, momentum=0.5, weight_decay=0.01)
BODY_BYTES = sum(tensor.nbytes for name, tensor in Rounds().x.items() if not name.startswith("head."))


# --- parts in turn: FedRep, FedBABU, LG-FedAvg -----------------------------------------------------------------------


def tuned(hand: Rounds, client: int, names: list[str] | None, lr: float, steps: int | None, epochs: int) -> float:
    """The loss after plain SGD on a client's own samples, in the batches that follow the last round."""
    rows = hand.passes(client, "tuning", hand.settings.rounds, epochs)
    if steps:
        order, own = generator(SEED, "tuning", hand.settings.rounds, client), hand.data.train[client]
        rows = [own[order.permutation(len(own))[: hand.settings.batch_size]] for _ in range(steps)]
    model = hand.x | hand.own[client]
    for batch in rows:
        slopes = hand.slopes(model, batch)
        model |= {name: model[name] - lr * slopes[name] for name in names or slopes}
    return hand.loss(client, model)


@pytest.mark.parametrize("epochs", [1, 2])
def test_fedrep(epochs: int) -> None:
    """First the head, then the body, each from zero momentum."""
    hand = Rounds("convnet", Training(**{**vars(ROUNDS), "weight_decay": 0.0}), own="head.")

    def client(i: int, round_: int) -> State:
        rows = hand.rows(i, round_)
        first = epochs * len(rows) // 3  # of three epochs
        hand.lend(hand.x, hand.own[i])
        hand.descend(rows[:first], moved=hand.parameters(head=True))
        ended = hand.descend(rows[first:], moved=hand.parameters(head=False))
        hand.own[i] = {name: ended[name] for name in hand.own[i]}
        return ended

    hand.average(client, "uniform")
    hand.check(hand.run(method("fedrep", head_epochs=epochs)))


def test_joint_training_is_fedper() -> None:
    with pytest.raises(UserError, match=r"^fedrep: method\.head_epochs = 1 of training\.local_epochs = 1 leaves no"):
        run(method("fedrep", head_epochs=1.0), backbone("convnet"), training=training(local_epochs=1))
    hand = Rounds("convnet", ROUNDS, own="head.")
    joint, fedper = hand.run(method("fedrep", schedule="joint", averaging="samples")), hand.run(method("fedper"))
    assert result_bytes(joint) == result_bytes(fedper)


@pytest.mark.parametrize(("parts", "steps", "lr"), [("all", None, 0.2), ("head", 3, None)])
def test_fedbabu(parts: str, steps: int | None, lr: float | None) -> None:
    """It trains the body and tunes a copy, without momentum and decay; its head is neither trained nor sent."""
    hand = Rounds("convnet", ROUNDS, own="head.")
    hand.average(lambda i, round_: hand.train(i, round_, moved=hand.parameters(head=False)), "uniform")
    options = {"finetune_parts": parts, "finetune_steps": steps, "finetune_epochs": 2, "finetune_lr": lr}
    names = hand.parameters(head=True) if parts == "head" else None
    result = hand.run(method("fedbabu", **options), "stacked" if steps else "sequential")
    hand.check(result, measured=False)
    losses(result, [tuned(hand, i, names, lr or ROUNDS.lr, steps, 2) for i in range(3)])
    assert result.cost.sent_up == result.cost.sent_down == BODY_BYTES


def test_lg_fedavg() -> None:
    hand, shared = Rounds("convnet", ROUNDS), ("fc", "head")
    hand.own = [{name: t for name, t in hand.initial.items() if not name.startswith(shared)} for _ in range(3)]
    hand.x = {name: tensor for name, tensor in hand.initial.items() if name.startswith(shared)}
    hand.average(hand.train, "uniform")
    hand.check(hand.run(method("lg_fedavg", shared=shared)))


@pytest.mark.parametrize(
    ("groups", "same", "net"),
    [
        (("norm",), "fedbn", "tiny_vit"),
        (("attention.qkv",), "vanilla_attention", "tiny_vit"),
        ((), "fedavg", "convnet"),
    ],
)
def test_special_cases_have_names(groups: tuple[str, ...], same: str, net: str) -> None:
    """FedBN alone has another mean: its clients are weighted equally."""
    averaging = "uniform" if same == "fedbn" else None
    chosen = run(method("personal_groups", groups=groups, averaging=averaging), backbone(net))
    also = run(method("fedavg", also_personal=groups, averaging=averaging), backbone(net))
    assert result_bytes(chosen) == result_bytes(run(method(same), backbone(net))) == result_bytes(also)


# --- what was received, adapted: Per-FedAvg, FedALA ------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "net"), [(None, "convnet"), (0.3, "norm")])
def test_per_fedavg(alpha: float | None, net: str) -> None:
    """Steps by the gradient after a step; halves of a batch are both all of it where one would be too small."""
    settings = training(rounds=2, sample_rate=1.0, momentum=0.5, weight_decay=0.01)
    hand = Rounds(net, settings, federation((14, 6 if net == "convnet" else 8, 1 if net == "convnet" else 7)))
    inner, fewest = alpha or settings.lr, 1 if net == "convnet" else 2  # batch norm gets no half of one sample

    def ahead(w: State, rows: Tensor) -> State:
        return w | {n: w[n] - inner * slope for n, slope in hand.slopes(w, rows).items()}

    def client(i: int, round_: int) -> State:
        hand.lend(hand.x)
        sgd = torch.optim.SGD(hand.model.parameters(), settings.lr, 0.5, weight_decay=0.01)
        for rows in hand.rows(i, round_):
            half, w = len(rows) // 2, hand.state()
            first, second = (rows[:half], rows[half:]) if half >= fewest else (rows, rows)
            adapted = ahead(w, first)
            statistics = {n: one for n, one in hand.state().items() if n not in hand.parameters()}
            slopes = hand.slopes(adapted | statistics, second)
            statistics = {n: one for n, one in hand.state().items() if n not in hand.parameters()}
            hand.lend(w, statistics)
            for name, parameter in hand.model.named_parameters():
                parameter.grad = slopes[name]
            sgd.step()
        return hand.state()

    hand.average(client)
    batches = [(own, generator(SEED, "tuning", 2, i)) for i, own in enumerate(hand.data.train)]
    result = hand.run(method("per_fedavg", alpha=alpha), "sequential" if alpha else "stacked")
    tuned = [ahead(hand.x, own[order.permutation(len(own))[:5]]) for own, order in batches]
    hand.check(result, models=tuned, measured=net == "convnet")


@pytest.mark.parametrize("layers", ["head", "all"])
def test_fedala(layers: str) -> None:
    hand = Rounds()
    names = hand.parameters(head=None if layers == "all" else True)
    owns = [{name: hand.x[name] for name in names} for _ in range(3)]
    weights = [{name: torch.ones_like(hand.x[name]) for name in names} for _ in range(3)]

    def learned(client: int, steps: list[Tensor]) -> tuple[State, State]:
        """The mixture of the global model and a client's own, and its weights."""
        own, share = owns[client], weights[client]

        def mixed() -> State:
            return hand.x | {n: own[n] + (hand.x[n] - own[n]) * share[n] for n in names}

        for rows in steps:
            slopes = hand.slopes(mixed(), rows)
            share = {n: (share[n] - 40.0 * slopes[n] * (hand.x[n] - own[n])).clamp(0, 1) for n in names}
        return mixed(), share

    def client(i: int, round_: int) -> State:
        begun, weights[i] = learned(i, hand.passes(i, "phase 3", round_, share=0.6))
        ended = hand.train(i, round_, begun)
        owns[i] = {name: ended[name] for name in names}
        return ended

    hand.average(client)
    assert any(bool(((one > 0) & (one < 1)).any()) for own in weights for one in own.values())
    pairs = zip(owns, weights, strict=True)
    kept: list[Any] = [add_prefix("before/", own) | add_prefix("weights/", share) for own, share in pairs]
    models = [learned(i, hand.passes(i, "tuning", 3))[0] for i in range(3)]
    hand.check(hand.run("fedala", layers=layers, share=0.6, eta=40.0), kept=kept, models=models, atol=1e-4)
