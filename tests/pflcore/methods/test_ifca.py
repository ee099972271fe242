"""IFCA against rounds written out with a module and ``backward``, and on clients that are two groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.tiny import (
    EXECUTORS,
    NormNet,
    assert_states_close,
    backbone,
    create,
    facts,
    federation,
    method,
    normalised,
    run,
    sampled,
    train_by_hand,
    training,
)
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import Backbone
from pflcore.errors import UserError
from pflcore.method import Federation
from pflcore.seeds import generator
from pflcore.settings import Training

SEED = 3
DATA = federation()
State = dict[str, Tensor]


def beginnings(entry: Any, net: Backbone) -> list[State]:
    """The models of all clusters before the first round."""
    model, groups = create(net, SEED)
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    told = Federation(3, SEED, parameters=groups.parameters)
    others = entry.common(first, entry.roles(groups), told)
    return [first, *({name: others.get(f"{one}/{name}", first[name]) for name in first} for one in (1, 2))]


def best(model: nn.Module, models: list[State], client: int, stream: str, round_: int) -> int:
    """The number of the model of least mean loss over the client's samples, in shuffled batches of five."""
    order, rows = generator(SEED, stream, round_, client), DATA.train[client]
    steps = torch.split(rows[order.permutation(len(rows))], 5)
    losses = []
    for one in models:
        total = 0.0
        for batch in steps:
            model.load_state_dict(one)  # anew, as batch norm would go on with its statistics
            model.train()
            logits = model(normalised(DATA, batch)).detach()
            total += float(F.cross_entropy(logits, DATA.labels[batch], reduction="sum"))
        losses.append(total)
    return losses.index(min(losses))


def by_hand(
    entry: Any, net: Backbone, settings: Training, personal: str
) -> tuple[list[State], list[State], list[list[int]], list[float]]:
    """Models of the clusters, what clients keep, the choices of all rounds, and the losses that are measured last."""
    model, _ = create(net, SEED)
    models = beginnings(entry, net)
    kept = [{n: tensor for n, tensor in models[0].items() if personal and n.startswith(personal)} for _ in range(3)]
    choices: list[list[int]] = []
    for round_ in range(1, settings.rounds + 1):
        returned: dict[int, list[State]] = {0: [], 1: [], 2: []}
        for client in sampled(SEED, round_, 3, settings):
            seen = [{**one, **kept[client]} for one in models]
            choice = best(model, seen, client, "phase 3", round_)
            ended = train_by_hand(model, seen[choice], DATA, client, round_, settings, SEED)
            kept[client] = {name: ended[name] for name in kept[client]}
            returned[choice].append(ended)
        choices.append([choice for choice, members in returned.items() for _ in members])
        for choice, members in returned.items():
            if members:
                models[choice] = {
                    name: sum(one[name] for one in members) / len(members) if tensor.is_floating_point() else tensor
                    for name, tensor in members[0].items()
                }
    measured = []
    for client in range(3):
        seen = [{**one, **kept[client]} for one in models]
        model.load_state_dict(seen[best(model, seen, client, "tuning", settings.rounds)])
        rows = DATA.test[client]
        measured.append(float(F.cross_entropy(model.eval()(normalised(DATA, rows)).detach(), DATA.labels[rows])))
    return models, kept, choices, measured


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("net", "personal"), [("convnet", ""), ("convnet", "head."), ("norm", "")])
def test_rounds_are_those_of_the_algorithm(net: str, personal: str, executor: str) -> None:
    chosen, settings = NormNet() if net == "norm" else backbone(net), training(rounds=4, momentum=0.5)
    entry = method("ifca", clusters=3, also_personal=(personal.rstrip("."),) if personal else ())
    result = run(entry, chosen, DATA, training=settings, seed=SEED, executor=executor)
    models, kept, choices, measured = by_hand(entry, chosen, settings, personal)
    assert len({choice for round_ in choices for choice in round_}) > 1
    for cluster, place in enumerate(("server.first/", "common/1/", "common/2/")):
        for name, tensor in models[cluster].items():
            if name not in kept[0]:
                torch.testing.assert_close(result.weights[f"{place}{name}"], tensor, rtol=1e-3, atol=2e-5)
    for client in range(3):
        for name, tensor in kept[client].items():
            torch.testing.assert_close(result.weights[f"client.{client}.{name}"], tensor, rtol=1e-3, atol=2e-5)
    assert result.loss[9:].tolist() == pytest.approx(measured, rel=1e-3)


def test_models_begin_alike_and_apart() -> None:
    first, second, third = beginnings(method("ifca", clusters=3), NormNet())
    for name in ("fc.weight", "fc.bias", "head.weight"):
        assert not torch.equal(first[name], second[name]) and not torch.equal(second[name], third[name])
        assert torch.equal(first[name].flatten().sort()[0], second[name].flatten().sort()[0])
    for name in ("norm.weight", "norm.running_var"):  # constants
        assert torch.equal(first[name], third[name])


def test_clients_of_two_kinds_find_their_groups() -> None:
    """What is class 0 for one half of the clients is class 3 for the other."""
    data = federation((30, 24, 36, 18), (12, 12, 12, 12))
    data.inputs.copy_((data.labels * 60).view(-1, 1, 1, 1).expand_as(data.inputs))
    for client in (1, 3):
        for rows in (data.train[client], data.test[client]):
            data.labels[rows] = 3 - data.labels[rows]
    settings = training(rounds=30, sample_rate=1.0, lr=0.1)
    ifca, fedavg = (run(method(name), backbone("convnet"), data, training=settings) for name in ("ifca", "fedavg"))
    right = [one.correct[-4:] / one.total[-4:] for one in (ifca, fedavg)]
    assert right[0].mean() > 0.9 and right[1].mean() < 0.7


def test_with_one_cluster_it_is_fedavg() -> None:
    one, plain = run(method("ifca", clusters=1), NormNet()), run(method("fedavg", averaging="uniform"), NormNet())
    assert_states_close({name: one.weights[f"server.first/{name}"] for name in plain.weights}, plain.weights, 0)
    assert one.loss.tolist() == plain.loss.tolist()


def test_all_models_are_sent_and_one_comes_back() -> None:
    ifca, fedavg = (run(method(*one), backbone("convnet"), DATA).cost for one in (("ifca",), ("fedavg",)))
    assert ifca.sent_down == 2 * fedavg.sent_down
    assert ifca.sent_up == fedavg.sent_up + 8  # the number of its choice


def test_what_cannot_be_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^method ifca: finetune_\*: clients choose their model"):
        method("ifca", finetune_epochs=1)


def test_the_first_cluster_travels_as_the_model_itself() -> None:
    entry = method("ifca", clusters=3)
    initial, roles, told = facts(entry, NormNet())
    made = entry.common(initial, roles, told)
    assert made.keys() == {"choice", *(f"{cluster}/{name}" for cluster in (1, 2) for name in initial)}
    for name, tensor in initial.items():
        for cluster in (1, 2):  # the same numbers elsewhere; running statistics where they were
            redrawn = made[f"{cluster}/{name}"]
            assert torch.equal(redrawn.flatten().sort().values, tensor.flatten().sort().values)
            if name not in told.parameters:
                assert torch.equal(redrawn, tensor)
    assert not torch.equal(made["1/head.weight"], made["2/head.weight"])
