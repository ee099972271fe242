"""Tuning before a measurement, for any method: against loops with ``backward`` and ``torch.optim.SGD``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.tiers import six_of
from support.tiny import (
    EVERY_ROUND,
    EXECUTORS,
    NormNet,
    backbone,
    federation,
    first_fitting,
    groups_of,
    method,
    normalised,
    run,
    training,
)
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import Backbone
from pflcore.engine import Result
from pflcore.engine.client import balanced
from pflcore.errors import UserError
from pflcore.methods import METHODS, Method
from pflcore.seeds import generator

SEED = 3
DATA = federation((14, 7), (5, 8))
SETTINGS = training(sample_rate=1.0, momentum=0.5, weight_decay=0.01)
Logits = Callable[[Tensor], Tensor]


def trained(entry: Method, net: Backbone | None = None, executor: str = "sequential", **more: Any) -> Result:
    return run(
        entry, net or backbone("convnet"), DATA,
        training=replace(SETTINGS, **more), evaluation=EVERY_ROUND, seed=SEED, executor=executor,
    )  # fmt: skip


def loaded(result: Result, prefix: str = "", net: Backbone | None = None) -> nn.Module:
    """The model that a run ended with, in training mode."""
    model, _ = (net or backbone("convnet")).create(DATA.shape, DATA.classes, 0)
    model.load_state_dict({name: result.weights[f"{prefix}{name}"] for name in model.state_dict()})
    return model.train()


def tuned(
    client: int,
    logits: Logits,
    parameters: Sequence[Tensor],
    epochs: int,
    steps: int | None,
    lr: float,
    weights: Tensor | None = None,
) -> None:
    """Plain SGD on a client's own samples, in the batches that follow its second round."""
    sgd, own = torch.optim.SGD(parameters, lr), DATA.train[client]
    order, size = generator(SEED, "tuning", 2, client), SETTINGS.batch_size
    drawn = (own[order.permutation(len(own))] for _ in range(steps or epochs))
    for batch in (rows[:size] for rows in drawn) if steps else (one for rows in drawn for one in rows.split(size)):
        sgd.zero_grad()
        F.cross_entropy(logits(normalised(DATA, batch)), DATA.labels[batch], weights).backward()
        sgd.step()


def assert_measured(result: Result, client: int, logits: Logits) -> None:
    rows, last = DATA.test[client], len(DATA.test) + client
    with torch.no_grad():
        made = logits(normalised(DATA, rows))
    assert result.correct[last] == int((made.argmax(1) == DATA.labels[rows]).sum())
    assert result.loss[last] == pytest.approx(float(F.cross_entropy(made, DATA.labels[rows])), rel=1e-4)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("groups", [(), ("head",)])
@pytest.mark.parametrize(("steps", "lr"), [(None, None), (3, 0.2)])
def test_fedavg_is_tuned_by_plain_sgd(
    executor: str, groups: tuple[str, ...], steps: int | None, lr: float | None
) -> None:
    plain = trained(method("fedavg"))
    options = {"finetune_epochs": 2, "finetune_steps": steps, "finetune_lr": lr, "finetune_groups": groups}
    result = trained(method("fedavg", **options), executor=executor)
    assert all(torch.allclose(result.weights[name], plain.weights[name], atol=1e-6) for name in plain.weights)
    for client in range(2):
        model = loaded(plain)
        moving = [tensor for name, tensor in model.named_parameters() if name.startswith(groups or ("",))]
        tuned(client, model, moving, 2, steps, lr or SETTINGS.lr)
        assert_measured(result, client, model.eval())


def test_running_statistics_move_with_their_group_alone() -> None:
    plain = trained(method("fedavg"), NormNet())
    for groups in ((), ("norm",), ("head",)):
        result = trained(method("fedavg", finetune_epochs=2, finetune_groups=groups), NormNet())
        for client in range(2):
            model = loaded(plain, net=NormNet())
            if groups == ("head",):  # in training mode the batch's statistics still normalise, and nobody keeps them
                model.get_submodule("norm").momentum = 0.0  # type: ignore[assignment]
            moving = [tensor for name, tensor in model.named_parameters() if name.startswith(groups or ("",))]
            tuned(client, model, moving, 2, None, SETTINGS.lr)
            assert_measured(result, client, model.eval())


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("name", "prefix"), [("fedavg", ""), ("ditto", "client.{}.own/")])
def test_it_has_the_class_weights_of_training(name: str, prefix: str, executor: str) -> None:
    plain = trained(method(name), class_weights="balanced")
    result = trained(method(name, finetune_epochs=2), executor=executor, class_weights="balanced")
    for client in range(2):
        model, weights = loaded(plain, prefix.format(client)), balanced(DATA.class_counts(client))
        assert len(weights.unique()) > 1
        tuned(client, model, list(model.parameters()), 2, None, SETTINGS.lr, weights)
        assert_measured(result, client, model.eval())


# What they do before a measurement is theirs: test_what_cannot_be_combined_is_one_line.
REFUSING = ("per_fedavg", "fedala", "ifca", "pfedfda", "pfedgp")


@pytest.mark.parametrize("name", six_of(name for name in METHODS.names() if name not in REFUSING))
def test_every_method_can_be_tuned_and_keeps_none_of_it(name: str) -> None:
    net = first_fitting(method(name))
    # FedProto's predictions read no classifier.
    group = groups_of(net).names()[0] if name == "fedproto" else "head"
    options: dict[str, Any] = {"finetune_steps": 2, "finetune_epochs": 1, "finetune_groups": (group,)}
    plain, result = (run(one, net, executor="sequential") for one in (method(name), method(name, **options)))
    assert all(torch.equal(result.weights[entry], plain.weights[entry]) for entry in plain.weights)
    assert (result.loss != plain.loss).any()
    stacked = run(method(name, **options), net, executor="stacked")
    assert stacked.loss.tolist() == pytest.approx(result.loss.tolist(), rel=1e-3)


def test_what_cannot_be_combined_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^method per_fedavg: finetune_\*: it takes its one step of alpha"):
        method("per_fedavg", finetune_epochs=1)
    with pytest.raises(UserError, match=r"^method fedala: finetune_\*: clients learn their mixture"):
        method("fedala", finetune_epochs=1)
    with pytest.raises(UserError, match=r"^fedproto\.finetune_groups: its predictions read no classifier"):
        method("fedproto", finetune_epochs=1, finetune_groups=("head",))
    for option, value in (("finetune_lr", 0.1), ("finetune_groups", ("head",))):
        with pytest.raises(
            UserError, match=rf"^fedavg\.{option} says nothing without finetune_epochs or finetune_steps$"
        ):
            method("fedavg", **{option: value})
    with pytest.raises(
        UserError, match=r"^method fedavg: finetune_groups: the backbone has no parameter group 'haed'; did"
    ):
        trained(method("fedavg", finetune_epochs=1, finetune_groups=("haed",)))
    with pytest.raises(UserError, match=r"^method fedavg: finetune_groups: train_only leaves nothing to train in them"):
        trained(method("fedavg", train_only=("head",), finetune_epochs=1, finetune_groups=("conv1",)))


def test_methods_that_tune_by_themselves_tune_the_named_groups_instead() -> None:
    for name in ("fedbabu", "fedrep"):
        tuning = method(name, finetune_epochs=2, finetune_groups=("head",)).tuning()
        assert tuning is not None and (tuning.steps, tuning.groups, tuning.epochs) == (None, ("head",), 2)
        own = method(name, finetune_epochs=2, finetune_lr=0.3).tuning()
        assert own is not None and own.steps is not None and (own.groups, own.lr) == ((), 0.3)
