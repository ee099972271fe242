"""The contract of methods: what each of its parts is told, against numbers made by hand, under every executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny import (
    CLASSES,
    backbone,
    create,
    federation,
    normalised,
    result_bytes,
    run,
    run_by_all,
    sampled,
    train_by_hand,
    training,
)
from torch import Tensor
from torch.nn import functional as F

from pflcore.data.federation import FederatedData
from pflcore.engine.checkpoint import CheckpointFolder
from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, OwnSamples, Phase, cross_entropy
from pflcore.methods import Method
from pflcore.methods.simple import FedAvg, FedPer
from pflcore.seeds import generator
from pflcore.method import Server, Update, average, weights

# --- method ----------------------------------------------------------------------------------------------------------


SEED = 3


@dataclass(frozen=True, kw_only=True)
class Witness(FedAvg):
    """FedAvg whose clients note what they are told: rates of their steps, how many, the round, what they received."""

    facts = ("steps", "round")

    def __post_init__(self) -> None:
        """It is not registered."""

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {"rates": torch.tensor(0.0), "told": torch.zeros(2, dtype=torch.int64), "before": initial["head.bias"]}

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "noted": {"rates": torch.zeros_like(start[f"{OWN}rates"])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        rates = state["noted"]["rates"] + local.lr
        state, loss = super().step(local, state, batch)
        return {**state, "noted": {"rates": rates}}, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        told = torch.stack([local.received["data/steps"], local.received["data/round"]])
        noted = {"rates": state["noted"]["rates"], "told": told, "before": local.received["head.bias"]}
        own = {f"{OWN}{name}": tensor for name, tensor in noted.items()}
        return {**state, "model": {**state["model"], **own}}


def last_rounds(settings: Any, clients: int) -> dict[int, int]:
    """Client → the last round that it took part in."""
    return {one: round_ for round_ in range(1, settings.rounds + 1) for one in sampled(SEED, round_, clients, settings)}


def test_a_client_knows_its_rates_its_steps_the_round_and_what_it_received() -> None:
    settings = training(rounds=3, schedule="exponential", gamma=0.5, schedule_by="step")
    weights = run_by_all(Witness(), backbone("convnet"), training=settings, seed=SEED).weights
    lasts = last_rounds(settings, 3)
    for client, round_ in lasts.items():
        steps = 2 * -(-(14, 7, 9)[client] // 5)
        rates = [0.05 * 0.5 ** (round_ - 1 + step / steps) for step in range(steps)]
        told = {name: weights[f"client.{client}.{OWN}{name}"] for name in ("rates", "told", "before")}
        assert told["told"].tolist() == [steps, round_]
        np.testing.assert_allclose(float(told["rates"]), sum(rates), rtol=1e-5)
        if round_ > 1:  # what it received is what FedAvg's earlier rounds made
            earlier = run(FedAvg(), backbone("convnet"), training=replace(settings, rounds=round_ - 1), seed=SEED)
            torch.testing.assert_close(told["before"], earlier.weights["head.bias"])
        else:
            assert torch.equal(told["before"], create(backbone("convnet"), SEED)[0].state_dict()["head.bias"])


@dataclass(frozen=True, kw_only=True)
class Templates(FedAvg):
    """FedAvg whose clients predict the class whose training samples have the nearest mean of features."""

    remembers = True

    def __post_init__(self) -> None:
        """It is not registered."""

    def predictor(self, local: ClientView, state: Tensors, samples: OwnSamples) -> Callable[[Tensor], Tensor]:
        seen = [(local.features(state, batch.inputs)[1], batch.labels) for batch in samples.batches()]
        features, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        means = [features[labels == one].sum(0) / (labels == one).sum().clamp_min(1) for one in range(samples.classes)]
        return lambda inputs: -torch.cdist(local.features(state, inputs)[1], torch.stack(means))


def test_a_client_predicts_with_its_own_training_samples() -> None:
    data, settings = federation(), training(rounds=1, sample_rate=1.0)
    result = run_by_all(Templates(), backbone("convnet"), data=data, training=settings, seed=SEED)
    model, _ = create(backbone("convnet"), SEED)
    model.load_state_dict(result.weights)
    seen: list[Tensor] = []
    model.eval().get_submodule("head").register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for client in range(3):
        seen.clear()
        for rows in (data.train[client], data.test[client]):
            model(normalised(data, rows))
        known, asked = seen
        labels = data.labels[data.train[client]].tolist()
        hits, loss = 0, 0.0
        for sample, label in zip(asked, data.labels[data.test[client]].tolist(), strict=True):
            near = []
            for one in range(CLASSES):
                own = [vector for vector, of in zip(known, labels, strict=True) if of == one]
                mean = sum(own) / len(own) if own else torch.zeros_like(sample)
                near.append(-float((sample - mean).square().sum().sqrt()))
            hits += near.index(max(near)) == label
            loss -= near[label] - float(np.logaddexp.reduce(near))
        assert result.correct[client] == hits
        np.testing.assert_allclose(result.loss[client], loss / len(asked), rtol=1e-4)


@dataclass(frozen=True, kw_only=True)
class Scaled(FedAvg):
    """FedAvg whose predictions are weighed by what the client has of each class, a fact that differs by client."""

    facts = ("class_counts",)

    def __post_init__(self) -> None:
        """It is not registered."""

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        return local.forward(state, inputs) * local.received["data/class_counts"]


def test_a_client_is_measured_with_its_own_facts_also_where_it_keeps_nothing() -> None:
    data, settings = federation(), training(rounds=1, sample_rate=1.0)
    result = run_by_all(Scaled(), backbone("convnet"), data=data, training=settings, seed=SEED)
    model, _ = create(backbone("convnet"), SEED)
    model.load_state_dict(result.weights)
    for client in range(3):
        rows = data.test[client]
        logits = model.eval()(normalised(data, rows)).detach() * data.class_counts(client)
        np.testing.assert_allclose(result.loss[client], float(F.cross_entropy(logits, data.labels[rows])), rtol=1e-5)


@dataclass(frozen=True, kw_only=True)
class Look(Method):
    """A pass in which nothing is trained: the mean of what the classifier gets."""

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        seen = torch.zeros_like(start[f"{OWN}mean"])
        return {**super().begin(local, start), "seen": {"sum": seen, "count": torch.zeros_like(seen[0])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        logits, features = local.features(state["model"], batch.inputs)
        total, count = state["seen"]["sum"] + features.sum(0), state["seen"]["count"] + len(features)
        return {**state, "seen": {"sum": total, "count": count}}, cross_entropy(logits, batch.labels)

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        mean = state["seen"]["sum"] / state["seen"]["count"]
        return {**state, "model": {**state["model"], f"{OWN}mean": mean}}


@dataclass(frozen=True, kw_only=True)
class Phased(FedPer):
    """FedPer that tunes its head on half of the samples before a round, and looks at all of them after it."""

    def __post_init__(self) -> None:
        """It is not registered."""

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {"mean": torch.zeros(federation.features)}

    def phases(self) -> tuple[Phase, ...]:
        before = Phase(extra=True, epochs=2, share=0.5, roles=("personal",))
        return before, Phase(), Phase(Look(), extra=True)


def phase_rows(data: FederatedData, client: int, round_: int, part: int, share: float, epochs: int) -> list[Tensor]:
    """The rows of the steps of a phase with batches of its own."""
    order, own = generator(SEED, f"phase {part}", round_, client), data.train[client]
    if share < 1:
        own = own[order.permutation(len(own))[: int(share * len(own))]]
    return [rows for _ in range(epochs) for rows in torch.split(own[order.permutation(len(own))], 5)]


def test_a_round_has_phases_before_and_after_whose_effects_are_kept() -> None:
    data, settings = federation(), training(sample_rate=1.0, momentum=0.5)
    result = run_by_all(Phased(), backbone("convnet"), data=data, training=settings, seed=SEED)
    model, _ = create(backbone("convnet"), SEED)
    seen: list[Tensor] = []
    model.get_submodule("head").register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    models = [{name: tensor.clone() for name, tensor in model.state_dict().items()} for _ in range(3)]
    means = []
    for round_ in (1, 2):
        means = []
        for client in range(3):
            model.load_state_dict(models[client])
            head = torch.optim.SGD(model.get_submodule("head").parameters(), settings.lr, momentum=0.5)
            for rows in phase_rows(data, client, round_, 3, 0.5, 2):
                model.zero_grad()
                F.cross_entropy(model(normalised(data, rows)), data.labels[rows]).backward()
                head.step()
            tuned = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            models[client] = train_by_hand(model, tuned, data, client, round_, settings, SEED)
            seen.clear()
            for rows in phase_rows(data, client, round_, 5, 1.0, 1):
                model(normalised(data, rows))
            means.append(torch.cat(seen).mean(0))
        sizes = [len(rows) for rows in data.train]
        for name in models[0]:
            if not name.startswith("head."):
                mean = sum(size * one[name] for size, one in zip(sizes, models, strict=True)) / sum(sizes)
                models = [{**one, name: mean} for one in models]
    for client in range(3):
        torch.testing.assert_close(result.weights[f"client.{client}.{OWN}mean"], means[client], rtol=1e-4, atol=1e-6)
        for name in ("head.weight", "head.bias"):
            torch.testing.assert_close(result.weights[f"client.{client}.{name}"], models[client][name])
    torch.testing.assert_close(result.weights["fc1.weight"], models[0]["fc1.weight"], rtol=1e-4, atol=1e-6)
    # It costs more than FedPer by what its passes take: the head's gradients alone, twice half, and a pass forward.
    plain = run(FedPer(), backbone("convnet"), data=data, training=settings, seed=SEED)
    assert plain.cost.macs < result.cost.macs < 2 * plain.cost.macs


@dataclass(frozen=True, kw_only=True)
class Shared(Look):
    """As what it derives from, of a mean that is exchanged."""

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        seen = torch.zeros_like(start["common/mean"])
        return {"model": start, "opt_state": {}, "seen": {"sum": seen, "count": torch.zeros_like(seen[0])}}

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        mean = state["seen"]["sum"] / state["seen"]["count"]
        return {**state, "model": {**state["model"], f"{OWN}mean": mean, "common/mean": mean}}


@dataclass(frozen=True, kw_only=True)
class Opened(FedAvg):
    """FedAvg before which all clients tell the mean of what the classifier gets in the initial model."""

    def __post_init__(self) -> None:
        """It is not registered."""

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {"mean": torch.zeros(federation.features)}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {"mean": torch.zeros(federation.features)}

    def warmup(self) -> Phase:
        return Phase(Shared())


def test_all_clients_pass_over_their_data_before_the_first_round(tmp_path: Path) -> None:
    data, settings = replace(federation(), novel=frozenset({1})), training(sample_rate=0.5, rounds=3)
    result = run_by_all(Opened(), backbone("convnet"), data=data, training=settings, seed=SEED)
    model, _ = create(backbone("convnet"), SEED)
    seen: list[Tensor] = []
    model.get_submodule("head").register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    means = {}
    for client in (0, 2):
        seen.clear()
        model(normalised(data, data.train[client]))
        means[client] = seen[0].mean(0)
        torch.testing.assert_close(result.weights[f"client.{client}.{OWN}mean"], means[client], rtol=1e-4, atol=1e-6)
    assert "client.1.own/mean" not in result.weights
    expected = (14 * means[0] + 9 * means[2]) / 23
    torch.testing.assert_close(result.weights["common/mean"], expected, rtol=1e-4, atol=1e-6)
    # It changes nothing else, and a run that goes on from a checkpoint does not do it again.
    plain = run(FedAvg(), backbone("convnet"), data=data, training=settings, seed=SEED)
    assert all(torch.equal(result.weights[name], tensor) for name, tensor in plain.weights.items())
    with CheckpointFolder(tmp_path, "it", print) as checkpoints:
        arguments = {"data": data, "seed": SEED, "checkpoints": checkpoints, "checkpoint_every": 0.0}
        run(Opened(), backbone("convnet"), training=replace(settings, rounds=2), **arguments)
        continued = run(Opened(), backbone("convnet"), training=settings, **arguments)
    assert continued.resumed_from == 2 and result_bytes(continued) == result_bytes(result)


def test_shares_of_a_phase_are_steps_of_the_round() -> None:
    """Cut into phases that train all alike, without momentum, a round is what it is in one piece."""

    class Cut(FedAvg):
        def phases(self) -> tuple[Phase, ...]:
            return Phase(epochs=0.7), Phase(epochs=1), Phase()

    settings = training(schedule="exponential", gamma=0.5, schedule_by="step", augment_flip=0.5)
    cut, whole = (run_by_all(one(), backbone("tiny_vit"), training=settings, rtol=1e-3) for one in (Cut, FedAvg))
    assert result_bytes(cut)["weights"] == result_bytes(whole)["weights"]


# --- server view -----------------------------------------------------------------------------------------------------


def test_what_nobody_said_is_none() -> None:
    told, server = Federation(3, 7), Server({})
    assert (told.clients, told.seed, told.momentum, told.classes, told.features) == (3, 7, 0.0, 0, 0)
    assert (told.head, told.local_epochs, told.samples, dict(told.generated)) == ((), None, (), {})
    assert (server.extra, server.federation, server.round) == ({}, Federation(0, 0), 0)
    assert Update(0, 5, {}, {}).steps == 0


def test_the_number_of_rounds_must_be_asked_for() -> None:
    assert Federation(3, 7, total_rounds=12).rounds == 12
    with pytest.raises(UserError, match=r"test_method\.py:\d+: federation\.rounds must be asked for"):
        print(Federation(3, 7).rounds)


def test_a_mean_is_by_samples_or_by_the_shares_that_are_given() -> None:
    before = {"w": torch.zeros(2), "n": torch.tensor(0), "own": torch.zeros(1)}
    returned = [{"w": torch.tensor([2.0 * k, -k]), "n": torch.tensor(k), "own": torch.ones(1)} for k in (1, 2, 5)]
    updates = [
        Update(k, samples, before, one) for k, (samples, one) in enumerate(zip((6, 3, 1), returned, strict=True))
    ]
    assert weights(updates) == [0.6, 0.3, 0.1]
    for shares, mean in ((None, 0.6 + 0.6 + 0.5), ([0.5, 0.0, 0.5], 3.0), ([1.0, 1.0, 1.0], 8.0)):
        found = average(updates, frozenset({"w", "n"}), shares)
        assert found.keys() == {"w", "n"} and found["n"].item() == 1
        torch.testing.assert_close(found["w"], torch.tensor([2 * mean, -mean]))
    found["n"].add_(1)
    assert returned[0]["n"].item() == 1  # nothing of a client's is handed on
    counters = average(updates, frozenset({"n"}))
    assert counters["n"].item() == 1 and counters.keys() == {"n"}
