"""Methods whose clients train parts in turn, or adapt what they received, against plain loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.by_hand import SEED, Rounds, losses
from support.tiny import backbone, federation, method, result_bytes, run, training

from pflcore.groups import add_prefix
from pflcore.seeds import generator

ROUNDS = training(rounds=2, sample_rate=1.0, local_epochs=3, lr=0.05, momentum=0.5, weight_decay=0.01)


@pytest.mark.parametrize("epochs", [1, 2])
def test_fedrep(epochs):
    """First the head, then the body, each from zero momentum."""
    hand = Rounds("convnet", replace(ROUNDS, weight_decay=0.0), own="head.")

    def client(i, round_):
        rows = hand.rows(i, round_)
        first = epochs * len(rows) // 3  # of three epochs
        hand.lend(hand.x, hand.own[i])
        hand.descend(rows[:first], moved=hand.parameters(head=True))
        steps_ = hand.taken
        ended = hand.descend(rows[first:], moved=hand.parameters(head=False))
        hand.train_losses[-1][i] = sum(steps_ + hand.taken) / len(rows)
        hand.own[i] = {name: ended[name] for name in hand.own[i]}
        return ended

    hand.average(client, "uniform")
    result = hand.run(method("fedrep", head_epochs=epochs))
    hand.check(result)
    np.testing.assert_allclose(result.train_loss, np.ravel(hand.train_losses), rtol=1e-5)


@pytest.mark.parametrize("parts, steps, lr", [("all", None, 0.2), ("head", 3, None)])
def test_fedbabu(parts, steps, lr):
    """It trains the body and tunes a copy, without momentum and decay; its head is neither trained nor sent."""
    hand = Rounds("convnet", ROUNDS, own="head.")
    body, tuned = hand.parameters(head=False), []
    hand.average(lambda i, round_: hand.train(i, round_, moved=body), "uniform")
    for i, train in enumerate(hand.data.train):
        batches, order = hand.passes(i, "tuning", 2, 2), generator(SEED, "tuning", 2, i)
        if steps:
            batches = [train[order.permutation(len(train))[:5]] for _ in range(steps)]
        model = hand.x | hand.own[i]
        for rows in batches:
            slopes = hand.slopes(model, rows)
            model |= {n: model[n] - (lr or 0.05) * slopes[n] for n in hand.parameters(head=None if lr else True)}
        tuned.append(hand.loss(i, model))
    options = {"finetune_parts": parts, "finetune_steps": steps, "finetune_epochs": 2, "finetune_lr": lr}
    result = hand.run(method("fedbabu", **options), "stacked" if steps else "sequential")
    hand.check(result, measured=False)
    losses(result, tuned)
    assert result.cost.sent_up == result.cost.sent_down == sum(tensor.nbytes for tensor in hand.x.values())


def test_lg_fedavg():
    hand, shared = Rounds("convnet", ROUNDS), ("fc", "head")
    hand.own = [{name: t for name, t in hand.initial.items() if not name.startswith(shared)} for _ in range(3)]
    hand.x = {name: tensor for name, tensor in hand.initial.items() if name.startswith(shared)}
    hand.average(hand.train, "uniform")
    hand.check(hand.run(method("lg_fedavg", shared=shared)))


def test_special_cases_have_names():
    """FedBN alone has another mean: its clients are weighted equally."""
    for groups, same, net in ((("norm",), "fedbn", "tiny_vit"), ((), "fedavg", "convnet")):
        averaging = "uniform" if groups else None
        chosen = run(method("personal_groups", groups=groups, averaging=averaging), backbone(net))
        also = run(method("fedavg", also_personal=groups, averaging=averaging), backbone(net))
        assert result_bytes(chosen) == result_bytes(run(method(same), backbone(net))) == result_bytes(also)
    joint, fedper = method("fedrep", schedule="joint", averaging="samples"), method("fedper")
    assert result_bytes(run(joint, backbone("convnet"))) == result_bytes(run(fedper, backbone("convnet")))


@pytest.mark.parametrize("alpha, net", [(None, "convnet"), (0.3, "norm")])
def test_per_fedavg(alpha, net):
    """Steps by the gradient after a step; halves of a batch are both all of it where one would be too small."""
    settings, fewest = training(rounds=2, sample_rate=1.0, momentum=0.5, weight_decay=0.01), 2 if alpha else 1
    hand = Rounds(net, settings, federation((14, 8, 7) if alpha else (14, 6, 1)))  # no batch norm of one sample

    def adapt(w, rows):
        return w | {n: w[n] - (alpha or settings.lr) * slope for n, slope in hand.slopes(w, rows).items()}

    def client(i, round_):
        hand.lend(hand.x)
        sgd = torch.optim.SGD(hand.model.parameters(), settings.lr, 0.5, weight_decay=0.01)
        for rows in hand.rows(i, round_):
            half, w = len(rows) // 2, hand.state()
            first, second = (rows[:half], rows[half:]) if half >= fewest else (rows, rows)
            adapted = adapt(w, first)
            slopes = hand.slopes(hand.state() | {n: adapted[n] for n in hand.parameters()}, second)
            hand.lend(hand.state() | {n: w[n] for n in hand.parameters()})  # statistics are those of both
            for name, parameter in hand.model.named_parameters():
                parameter.grad = slopes[name]
            sgd.step()
        return hand.state()

    hand.average(client)
    batches = [(samples, generator(SEED, "tuning", 2, i)) for i, samples in enumerate(hand.data.train)]
    result = hand.run(method("per_fedavg", alpha=alpha), "sequential" if alpha else "stacked")
    tuned = [adapt(hand.x, samples[order.permutation(len(samples))[:5]]) for samples, order in batches]
    hand.check(result, models=tuned, measured=net == "convnet")


@pytest.mark.parametrize("layers", ["head", "all"])
def test_fedala(layers):
    hand = Rounds()
    names = hand.parameters(head=None if layers == "all" else True)
    owns, weights = ([{n: like(hand.x[n]) for n in names} for _ in range(3)] for like in (torch.clone, torch.ones_like))

    def learned(i, steps):
        """The mixture of the global model and a client's own, and its weights."""
        share, away = weights[i], {n: hand.x[n] - owns[i][n] for n in names}

        def mixed():
            return hand.x | {n: owns[i][n] + away[n] * share[n] for n in names}

        for rows in steps:
            slopes = hand.slopes(mixed(), rows)
            share = {n: (share[n] - 40.0 * slopes[n] * away[n]).clamp(0, 1) for n in names}
        return mixed(), share

    def client(i, round_):
        begun, weights[i] = learned(i, hand.passes(i, "phase 3", round_, share=0.6))
        ended = hand.train(i, round_, begun)
        owns[i] = {name: ended[name] for name in names}
        return ended

    hand.average(client)
    assert any(bool(((weight > 0) & (weight < 1)).any()) for tensors in weights for weight in tensors.values())
    stored = [add_prefix("before/", owns[i]) | add_prefix("weights/", weights[i]) for i in range(3)]
    models = [learned(i, hand.passes(i, "tuning", 3))[0] for i in range(3)]
    hand.check(hand.run("fedala", layers=layers, share=0.6, eta=40.0), kept=stored, models=models, atol=1e-4)
