"""Methods: what they average, generate and keep, each against its definition, and all of them on every backbone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import first_of_each
from support.tiny import (
    CLASSES,
    EVERY_ROUND,
    LENGTH,
    SHAPE,
    NormNet,
    assert_states_close,
    backbone,
    create,
    exchanged,
    facts,
    federation,
    first_fitting,
    fits,
    groups_of,
    known,
    method,
    normalised,
    pairs,
    result_bytes,
    run,
    sampled,
    spied,
    suited,
    train_by_hand,
    training,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from pflcore.backbones import Backbone
from pflcore.engine import Result
from pflcore.engine.cost import count
from pflcore.errors import UserError
from pflcore.groups import ALL, Roles, Tensors, pick
from pflcore.method import OWN, Federation, Server, Update, average, under, weights
from pflcore.methods import METHODS, Method
from pflcore.operators.hypernetworks import HyperNetwork
from pflcore.ownership import roles_of

SEED = 3
# Larger steps for what would learn nothing in twelve rounds, smaller ones for what would forget what it learned.
RATES = {"lstm": 1.0, "fedrep": 0.1, "pfedgp": 0.01}
FROZEN = {"fedbabu"}  # their personal part never learns in a round
PAIRS = first_of_each(pairs())
FITTING = first_of_each((name, net) for name, net in pairs() if fits(method(name), backbone(net)))
CLASSIFYING = first_of_each(
    (name, net) for name, net in pairs() if fits(method(name), backbone(net)) and backbone(net).predicts == "classes"
)


# --- every method on every backbone --------------------------------------------------------------------------------


def lacking(entry: Method, net: Backbone) -> list[str]:
    """The groups that the method names and the backbone has not."""
    names = groups_of(net, entry).names()
    wanted = [group for group in (*entry.personal, *entry.generated) if group != ALL]
    return [group for group in wanted if not any(f"{name}.".startswith(f"{group}.") for name in names)]


@cache
def observed(name: str, net: str) -> tuple[Result, list[list[Update]]]:
    """A run of two rounds, and the updates of each."""
    seen: list[list[Update]] = []
    return run(spied(method(name), seen), backbone(net)), seen


def two_rounds(name: str, net: str) -> Result:
    return observed(name, net)[0]


@pytest.mark.parametrize(("name", "net"), PAIRS)
def test_a_missing_group_and_nothing_else_is_refused(name: str, net: str) -> None:
    try:
        missing = lacking(method(name), backbone(net))
    except UserError as error:  # no place for the method's modules
        with pytest.raises(UserError, match=re.escape(str(error))):
            run(method(name), backbone(net))
        return
    if not missing:
        assert two_rounds(name, net).diverged is None
        return
    with pytest.raises(UserError, match=f": the backbone has no parameter group {missing[0]!r}") as error:
        run(method(name), backbone(net))
    assert all(group in str(error.value) for group in groups_of(backbone(net)).names())


def test_some_pairs_fit_and_some_do_not() -> None:
    assert 0 < len(FITTING) < len(PAIRS)
    assert all(first_fitting(method(name)) for name in METHODS.names())


@pytest.mark.parametrize(("name", "net"), FITTING)
def test_a_run_measures_every_client_after_every_round(name: str, net: str) -> None:
    result = two_rounds(name, net)
    assert list(zip(result.round, result.client, strict=True)) == list(product((1, 2), (0, 1, 2)))
    each = LENGTH if backbone(net).takes == "text" else 1
    assert result.total.tolist() == [5 * each, 8 * each, 6 * each] * 2 and result.positions == each
    assert (result.last <= result.correct).all() and (result.last * each <= result.total).all()
    assert each > 1 or (result.last == result.correct).all()
    assert ((result.correct >= 0) & (result.correct <= result.total)).all()
    assert np.isfinite(result.loss).all() and (result.loss > 0).all()
    assert result.diverged is None and result.resumed_from == 0
    assert all(bool(torch.isfinite(tensor).all()) for tensor in result.weights.values())


@pytest.mark.parametrize(("name", "net"), FITTING)
def test_a_run_repeats_bit_by_bit(name: str, net: str) -> None:
    assert result_bytes(run(method(name), backbone(net))) == result_bytes(two_rounds(name, net))


@pytest.mark.parametrize(("name", "net"), FITTING)
def test_another_seed_is_another_run(name: str, net: str) -> None:
    other, first = run(method(name), backbone(net), seed=SEED + 1), two_rounds(name, net)
    assert (other.loss != first.loss).all()


@pytest.mark.parametrize(("name", "net"), CLASSIFYING)
def test_training_lowers_the_loss(name: str, net: str) -> None:
    data = suited(backbone(net), (30, 30, 30), (9, 9, 9))
    if data.is_text:  # a character is repeated
        data.inputs.copy_(data.labels.view(-1, 1).expand_as(data.inputs))
    else:  # a class is a shade of grey
        data.inputs.copy_((data.labels * 60).view(-1, 1, 1, 1).expand_as(data.inputs))
    settings = training(rounds=12, sample_rate=1.0, lr=RATES.get(net) or RATES.get(name, 0.05), momentum=0.5)
    result = run(method(name), backbone(net), data, training=settings)
    first, *later = (result.loss[result.round == round_].mean() for round_ in (1, *range(8, 13)))
    # Who tunes before a measurement knows something after the first round already; who guesses has log 4. A single
    # round of a net with batch norm can be far off, and which one it is depends on the processor's rounding.
    assert np.median(later) < 0.6 * max(first, np.log(CLASSES))


# --- what leaves a client ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "net"), FITTING)
def test_nothing_personal_leaves_a_client(name: str, net: str) -> None:
    entry, data = method(name), suited(backbone(net))
    result, seen = observed(name, net)
    sizes = exchanged(entry, backbone(net))
    assert len(seen) == 2
    for round_, updates in enumerate(seen, 1):
        assert [one.client for one in updates] == sampled(SEED, round_, 3, training())
        for one in updates:
            assert one.samples == len(data.train[one.client])
            assert one.returned.keys() == one.sent.keys() == sizes.keys()
    measured = [entry.traffic(one) for updates in seen for one in updates]
    assert (result.cost.sent_up, result.cost.sent_down) == tuple(
        round(np.mean(part)) for part in zip(*measured, strict=True)
    )


@pytest.mark.parametrize(("name", "net"), FITTING)
def test_the_server_holds_shared_entries_and_clients_their_own(name: str, net: str) -> None:
    result, (initial, roles, known) = two_rounds(name, net), facts(method(name), backbone(net))
    trained = {client for round_ in (1, 2) for client in sampled(SEED, round_, 3, training())}
    trained |= set(range(3)) if method(name).opening() else set()
    kept = {entry for entry in result.weights if not entry.startswith(("client.", "server."))}
    fixed = groups_of(backbone(net), method(name)).fixed
    assert kept == (exchanged(method(name), backbone(net)).keys() - roles.generated) | fixed
    assert not fixed & (roles.shared | roles.personal | roles.generated)
    own = {entry for entry in result.weights if entry.startswith("client.")}
    beside = [f"own/{entry}" for entry in method(name).companions(initial, roles, known)]
    assert own == {f"client.{client}.{entry}" for client in trained for entry in (*roles.personal, *beside)}
    server = {entry.removeprefix("server.") for entry in result.weights if entry.startswith("server.")}
    assert not server & (roles.personal | roles.shared | roles.generated)


@pytest.mark.parametrize(("name", "net"), FITTING)
def test_communication_and_parameters_are_counted(name: str, net: str) -> None:
    entry, net_ = method(name), backbone(net)
    result, (initial, roles, known) = two_rounds(name, net), facts(entry, net_)
    model, groups = create(net_, 0, entry)
    assert groups.parameters | groups.fixed == {key for key, _ in model.named_parameters()}
    assert result.parameters == count({key: initial[key] for key in groups.parameters})
    beside = entry.companions(initial, roles, known)
    assert result.cost.stored == count({**pick(initial, roles.personal), **under(OWN, beside)})
    sent = sum(exchanged(entry, net_).values())
    if type(entry).traffic is Method.traffic:
        assert result.cost.sent_up == result.cost.sent_down == sent
    else:  # what is compressed
        assert 0 < result.cost.sent_up < sent and 0 < result.cost.sent_down < sent
    assert result.cost.macs > 0 and result.cost.received * 4 >= sent / 2


@pytest.mark.parametrize("name", METHODS.names())
def test_what_is_kept_or_exchanged_beside_the_model_is_listed(name: str) -> None:
    entry = method(name)
    initial, roles, known = facts(entry, first_fitting(entry))
    assert bool(entry.exchanges) == bool(entry.common(initial, roles, known))
    assert entry.keeps or not entry.companions(initial, roles, known)
    assert entry.personal or entry.keeps or not roles.personal


def personal_weights(result: Result, client: int) -> Tensors:
    prefix = f"client.{client}."
    return {entry: tensor for entry, tensor in result.weights.items() if entry.startswith(prefix)}


@pytest.mark.parametrize(("name", "net"), FITTING)
def test_only_a_round_of_its_own_changes_a_clients_personal_part(name: str, net: str) -> None:
    one, three = (run(method(name), backbone(net), training=training(rounds=rounds)) for rounds in (1, 3))
    runs = [one, two_rounds(name, net), three]
    kept = 0
    for round_, (before, after) in enumerate(pairwise(runs), 2):
        trained = method(name).participants(sampled(SEED, round_, 3, training()), 3)
        for client in range(3):
            old, new = personal_weights(before, client), personal_weights(after, client)
            if client in trained and name in FROZEN:
                assert all(torch.equal(old[entry], new[entry]) for entry in old)
            elif client in trained:
                assert not old or any(not torch.equal(old[entry], new[entry]) for entry in old)
            else:
                assert old.keys() == new.keys() and all(torch.equal(old[entry], new[entry]) for entry in old)
                kept += len(old)
    assert kept or not method(name).roles(groups_of(backbone(net), method(name))).personal


@pytest.mark.parametrize("name", ["fedper", "vanilla_attention"])
def test_a_client_that_never_trained_has_the_initial_personal_part(name: str) -> None:
    data, net = federation(), backbone("tiny_vit")
    result = run(method(name), net, data, training=training(rounds=1, sample_rate=0.34))
    (trained,) = sampled(SEED, 1, 3, training(sample_rate=0.34))
    model, _ = net.create(data.shape, data.classes, SEED)
    initial = dict(model.eval().state_dict())
    for client in range(3):
        own = {entry.split(".", 2)[2]: tensor for entry, tensor in personal_weights(result, client).items()}
        assert bool(own) == (client == trained)
        shared = {entry: tensor for entry, tensor in result.weights.items() if entry in initial}
        rows = data.test[client]
        logits = functional_call(model, {**initial, **shared, **own}, (normalised(data, rows),))
        loss = float(F.cross_entropy(logits, data.labels[rows]))
        assert result.loss[client] == pytest.approx(loss, rel=1e-5)


# --- averages ------------------------------------------------------------------------------------------------------


def update(samples: int, client: int = 0, **entries: Tensor) -> Update:
    return Update(client, samples, sent=entries, returned=entries)


def test_averages_are_weighted_by_the_training_samples_of_the_cohort() -> None:
    updates = [
        update(1, 4, w=torch.tensor([4.0, 0.0]), n=torch.tensor(7), other=torch.ones(1)),
        update(3, 2, w=torch.tensor([0.0, 8.0]), n=torch.tensor(9), other=torch.ones(1)),
    ]
    assert weights(updates) == [0.25, 0.75]
    mean = average(updates, frozenset({"w", "n"}))
    assert mean.keys() == {"w", "n"}
    assert mean["w"].tolist() == [1.0, 6.0]
    assert mean["n"].item() == 7 and mean["n"].dtype == torch.int64  # a counter comes from the first client


# As their papers or their authors' codes have it.
UNIFORM = {"fedbabu", "fedbn", "fedkd", "fedrep", "fedselect", "lg_fedavg", "pfedgp", "scaffold"}
OTHER_RULES = {"fedamp", "fedproto", "local"}


# Averages of FedNova, FedDyn and FedAS are others: test_personal_models.py, test_feddyn.py, test_fedas.py. What is
# exchanged beside a model has other rules.
@pytest.mark.parametrize("averaging", [None, "samples", "uniform"])
@pytest.mark.parametrize("name", [name for name in METHODS.names() if name not in ("fednova", "feddyn", "fedas")])
def test_every_method_averages_what_is_shared_over_the_cohort(name: str, averaging: str | None) -> None:
    if averaging and name in OTHER_RULES:
        with pytest.raises(UserError, match=f"^method {name}: averaging has no meaning"):
            method(name, averaging=averaging)
        return
    seen: list[list[Update]] = []
    entry = method(name, averaging=averaging)
    uniform = averaging == "uniform" or (averaging is None and name in UNIFORM)
    result = run(spied(entry, seen), first_fitting(entry), federation((14, 3, 40)), training=training(rounds=1))
    roles = roles_of(entry, groups_of(first_fitting(entry), entry))
    (updates,) = seen
    total = sum(one.samples for one in updates)
    assert total < 57 and len({one.samples for one in updates}) == 2
    expected = {
        entry: sum(one.returned[entry] * (1 / 2 if uniform else one.samples / total) for one in updates)
        for entry in roles.shared
    }
    assert_states_close({entry: result.weights[entry] for entry in roles.shared}, expected)


@pytest.mark.parametrize("name", ["pfedhn", "fedofa"])
def test_hypernetworks_learn_from_clients_by_the_same_shares(name: str) -> None:
    """Three clients of 10, 40 and 20 samples count like three of 1 in a plain mean, and only there."""
    before, after = {}, {}
    for averaging, samples in product(("samples", "uniform"), ((10, 40, 20), (1, 1, 1))):
        entry = method(name, averaging=averaging)
        initial, roles, told = facts(entry, backbone("convnet"))
        server = entry.init_server(initial, roles, told)
        made = entry.generate(server, range(3))
        updates = [
            Update(client, count, sent=one, returned={key: tensor * (client + 1) for key, tensor in one.items()})
            for client, (count, one) in enumerate(zip(samples, made, strict=True))
        ]
        before[averaging, samples] = {key: tensor.clone() for key, tensor in server.extra.items()}
        after[averaging, samples] = entry.update_server(server, roles, updates).extra
    assert any(
        not torch.equal(tensor, before["samples", (1, 1, 1)][key])
        for key, tensor in after["samples", (1, 1, 1)].items()
    )
    assert_states_close(after["uniform", (10, 40, 20)], after["samples", (1, 1, 1)])
    uneven, even = after["samples", (10, 40, 20)], after["samples", (1, 1, 1)]
    assert any(not torch.allclose(uneven[key], even[key]) for key in even)


def test_fedkd_can_weight_students_by_samples() -> None:
    shared = {"common/w": torch.zeros(2), "common/numbers": torch.zeros(2, dtype=torch.int64)}
    server = Server(shared, federation=Federation(2, 0, planned=2), round=1)
    updates = [
        update(samples, **{"common/w": torch.tensor(values)}) for samples, values in ((1, [4.0, 0.0]), (3, [0.0, 8.0]))
    ]
    for averaging, expected in ((None, [2.0, 4.0]), ("samples", [1.0, 6.0])):
        after = method("fedkd", averaging=averaging).update_server(
            server, Roles(frozenset(), frozenset(), frozenset()), updates
        )
        assert after.shared["common/w"].tolist() == expected


def test_buffers_are_averaged_and_counters_are_not() -> None:
    seen: list[list[Update]] = []
    data = federation((10, 40, 20), (4, 4, 4))
    result = run(spied(method("fedavg"), seen), NormNet(), data, training=training(rounds=1, sample_rate=1.0))
    returned = [one.returned for one in seen[0]]
    mean = sum(share * one["norm.running_mean"] for share, one in zip((1 / 7, 4 / 7, 2 / 7), returned, strict=True))
    torch.testing.assert_close(result.weights["norm.running_mean"], mean)
    assert [int(one["norm.num_batches_tracked"]) for one in returned] == [4, 16, 8]
    assert int(result.weights["norm.num_batches_tracked"]) == 4
    assert result.cost.sent_up == sum(tensor.nbytes for tensor in returned[0].values())


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(-100, 100, width=32)), min_size=1, max_size=8))
def test_an_average_lies_between_the_values_it_is_of(pairs: list[tuple[int, float]]) -> None:
    updates = [update(samples, w=torch.tensor([value])) for samples, value in pairs]
    assert sum(weights(updates)) == pytest.approx(1)
    mean = float(average(updates, frozenset({"w"}))["w"])
    values = [value for _, value in pairs]
    assert min(values) - 1e-4 <= mean <= max(values) + 1e-4
    total = sum(samples for samples, _ in pairs)
    assert mean == pytest.approx(sum(samples * value for samples, value in pairs) / total, rel=1e-4, abs=1e-4)


# --- single methods ------------------------------------------------------------------------------------------------


def test_fedprox_without_its_term_is_fedavg() -> None:
    plain, proximal = run(method("fedavg"), backbone("convnet")), run(method("fedprox", mu=0.0), backbone("convnet"))
    assert all(torch.equal(plain.weights[name], proximal.weights[name]) for name in plain.weights)


def test_fedprox_holds_clients_near_what_they_received() -> None:
    seen: list[list[Update]] = []
    for mu in (0.0, 1.0, 5.0):
        run(spied(method("fedprox", mu=mu), seen), backbone("convnet"), training=training(rounds=1))
    moved = [
        sum(float((one.returned[name] - one.sent[name]).pow(2).sum()) for one in updates for name in one.sent)
        for updates in seen
    ]
    assert moved[0] > moved[1] > moved[2] > 0


@pytest.mark.parametrize(("schedule", "clients"), [("every_round", {0, 1, 2}), ("when_sampled", {0})])
def test_the_schedule_of_local_says_who_trains(schedule: str, clients: set[int]) -> None:
    seed = next(seed for seed in range(99) if sampled(seed, 1, 3, training(sample_rate=0.1)) == [0])
    settings = training(rounds=1, sample_rate=0.1)
    result = run(method("local", schedule=schedule), backbone("convnet"), training=settings, seed=seed)
    assert {int(name.split(".")[1]) for name in result.weights} == clients
    assert result.cost.sent_up == result.cost.sent_down == 0


def test_clients_of_local_do_not_hear_of_each_other() -> None:
    # Client 2's data change; the others' models and scores stay.
    data = federation()
    entry, net = method("local", schedule="every_round"), backbone("convnet")
    first = run(entry, net, data)
    data.labels[data.train[2]] = 0
    second = run(entry, net, data)
    for client in range(3):
        old, new = personal_weights(first, client), personal_weights(second, client)
        assert all(torch.equal(old[name], new[name]) for name in old) == (client != 2)
    assert (first.loss == second.loss)[first.client != 2].all()


# --- FedTP: an equivalent module and torch.optim.SGD ---------------------------------------------------------------


class Module(nn.Module):
    """The hypernetwork as a module with the entries of `params`."""

    def __init__(self, params: Tensors, targets: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.targets = targets
        self.embedding = nn.Embedding.from_pretrained(params["embedding"].clone(), freeze=False)
        layers = sorted(name for name in params if name.startswith("mlp.") and name.endswith(".weight"))
        self.mlp = nn.ModuleList(self.linear(params, name.removesuffix(".weight")) for name in layers)
        self.heads = nn.ModuleList(self.linear(params, f"heads.{name}") for name in targets)

    def linear(self, params: Tensors, name: str) -> nn.Linear:
        weight = params[f"{name}.weight"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": params[f"{name}.bias"]})
        return layer

    def forward(self, client: int) -> Tensors:
        x = self.embedding(torch.tensor(client))
        for index, layer in enumerate(self.mlp):
            x = layer(x.clamp(min=0) if index else x)
        pairs = zip(self.targets.items(), self.heads, strict=True)
        return {name: head(x).reshape(shape) for (name, shape), head in pairs}

    def params(self) -> Tensors:
        """By the names of the server's entries."""
        made = {"hyper/embedding": self.embedding.weight}
        named = [
            *((f"mlp.{index}", layer) for index, layer in enumerate(self.mlp)),
            *((f"heads.{name}", layer) for name, layer in zip(self.targets, self.heads, strict=True)),
        ]
        for name, layer in named:
            made.update({f"hyper/{name}.weight": layer.weight, f"hyper/{name}.bias": layer.bias})
        return {name: tensor.detach() for name, tensor in made.items()}


class Given:
    """A FedTP server of five clients before its first round, and its equivalent as a module."""

    def __init__(self, seed: int = SEED, **options: Any) -> None:
        self.entry = method("fedtp", **{"layers": 3, **options})
        net = backbone("tiny_vit")
        model, groups = net.create(SHAPE, CLASSES, seed)
        initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.roles: Roles = self.entry.roles(groups)
        self.server: Server = self.entry.init_server(initial, self.roles, known(5, seed, initial, self.roles))
        self.targets = {name: tuple(initial[name].shape) for name in initial if name in self.roles.generated}
        self.module = Module(self.below("hyper/"), self.targets)

    def below(self, prefix: str) -> Tensors:
        extra = self.server.extra
        return {name.removeprefix(prefix): extra[name].clone() for name in extra if name.startswith(prefix)}

    def made(self, client: int) -> Tensors:
        return {name: tensor.clone() for name, tensor in self.entry.generate(self.server, [client])[0].items()}

    def updates(self, clients: Sequence[int], scale: float = 0.1, seed: int = 0) -> list[Update]:
        """What clients return that moved at random."""
        torch.manual_seed(seed)
        updates = []
        for client in clients:
            sent = {**self.server.shared, **self.made(client)}
            returned = {name: tensor + scale * torch.randn(tensor.shape) for name, tensor in sent.items()}
            updates.append(Update(client, 3 + 2 * client, sent, returned))
        return updates

    def step(self, updates: list[Update]) -> None:
        self.server = self.entry.update_server(self.server, self.roles, updates)

    @property
    def embedding(self) -> Tensor:
        return self.server.extra["hyper/embedding"].clone()


def hyper_step(module: Module, sgd: torch.optim.Optimizer, updates: Sequence[Update]) -> None:
    """Loss Σ p_i · ⟨h(z_i), before − after⟩, its gradient, one step."""
    total = sum(one.samples for one in updates)
    sgd.zero_grad()
    torch.stack(
        [
            one.samples / total * (tensor * (one.sent[name] - one.returned[name])).sum()
            for one in updates
            for name, tensor in module(one.client).items()
        ]
    ).sum().backward()
    sgd.step()


@pytest.mark.parametrize(
    "options",
    [
        {"server_lr": 0.1},
        {"server_lr": 0.1, "server_momentum": 0.0, "server_weight_decay": 0.0},
        {"server_lr": 0.3, "server_momentum": 0.5, "server_weight_decay": 0.2, "layers": 1},
    ],
)
def test_the_server_step_of_fedtp_is_sgd_through_the_hypernetwork(options: dict[str, float]) -> None:
    given = Given(**options)
    entry: Any = given.entry
    sgd = torch.optim.SGD(
        given.module.parameters(),
        entry.server_lr,
        momentum=entry.server_momentum,
        weight_decay=entry.server_weight_decay,
    )
    for seed, cohort in enumerate(([0, 3], [1, 3, 4], [0])):
        updates = given.updates(cohort, scale=1.0, seed=seed)
        for one in updates:
            expected = {name: tensor.detach() for name, tensor in given.module(one.client).items()}
            assert_states_close({name: one.sent[name] for name in given.targets}, expected)
        hyper_step(given.module, sgd, updates)
        given.step(updates)
        params = {f"hyper/{name}": tensor for name, tensor in given.below("hyper/").items()}
        assert_states_close(params, given.module.params())


def test_a_run_of_fedtp_equals_rounds_written_out_by_hand() -> None:
    data, net, settings = federation(), backbone("tiny_vit"), training(rounds=3)
    entry: Any = method("fedtp", server_lr=0.5)
    model, groups = net.create(data.shape, data.classes, SEED)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    roles = entry.roles(groups)
    extra = entry.init_server(state, roles, known(3, SEED, state, roles)).extra
    targets = {name: tuple(state[name].shape) for name in state if name in roles.generated}
    module = Module({name.removeprefix("hyper/"): extra[name] for name in extra if "hyper/" in name}, targets)
    sgd = torch.optim.SGD(module.parameters(), 0.5, momentum=0.9, weight_decay=1e-3)
    for round_ in (1, 2, 3):
        updates = []
        for client in sampled(SEED, round_, 3, settings):
            received = {**state, **{name: tensor.detach() for name, tensor in module(client).items()}}
            returned = train_by_hand(model, received, data, client, round_, settings, SEED)
            updates.append(Update(client, len(data.train[client]), received, returned))
        hyper_step(module, sgd, updates)
        state.update(average(updates, roles.shared))
    result = run(entry, net, data, training=settings)
    assert_states_close({name: result.weights[name] for name in roles.shared}, {n: state[n] for n in roles.shared})
    params = {name.removeprefix("server."): result.weights[name] for name in result.weights if "r.hyper/" in name}
    assert_states_close(params, module.params())
    model.eval()
    for client in range(3):  # all are measured with what is generated after the step, sampled or not
        model.load_state_dict({**state, **module(client)})
        logits = model(normalised(data, data.test[client])).detach()
        labels = data.labels[data.test[client]]
        row = 6 + client
        assert result.loss[row] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-4)
        assert result.correct[row] == int((logits.argmax(1) == labels).sum())


def test_an_identity_hypernetwork_with_lr_1_generates_what_the_client_returned() -> None:
    # Only the heads' biases act: h(z) = bias, and its derivative is the identity.
    given = Given(server_lr=1.0, server_momentum=0.0, server_weight_decay=0.0)
    for name, tensor in given.server.extra.items():
        if name.startswith("hyper/") and not (name.startswith("hyper/heads.") and name.endswith(".bias")):
            tensor.zero_()
    (one,) = given.updates([2])
    given.step([one])
    assert_states_close(given.made(2), {name: one.returned[name] for name in given.targets})


def distance(given: Given, updates: Sequence[Update]) -> float:
    """Σ p_i · ‖h(z_i) − returned_i‖²."""
    total = sum(one.samples for one in updates)
    return sum(
        one.samples / total * float((tensor - one.returned[name]).pow(2).sum())
        for one in updates
        for name, tensor in given.made(one.client).items()
    )


@pytest.mark.parametrize("clients", [[0], [4], [1, 2], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_hypernetwork_moves_towards_what_clients_learned(clients: list[int], seed: int) -> None:
    given = Given(seed, server_lr=0.01, server_momentum=0.0, server_weight_decay=0.0)
    updates = given.updates(clients, scale=0.2, seed=seed)
    before = distance(given, updates)
    given.step(updates)
    assert distance(given, updates) < before


def test_generated_weights_follow_a_client_from_round_to_round() -> None:
    seen: list[list[Update]] = []
    entry = method("fedtp", server_lr=0.05, server_momentum=0.0, server_weight_decay=0.0)
    data = federation((20,), (5,))
    run(spied(entry, seen), backbone("tiny_vit"), data, training=training(rounds=4, lr=0.1))
    for (before,), (after,) in pairwise(seen):
        learned = {name: before.returned[name] - before.sent[name] for name in before.sent if ".qkv." in name}
        along = sum(float((learned[name] * (after.sent[name] - before.sent[name])).sum()) for name in learned)
        assert len(learned) == 2 and along > 0


def test_generated_parts_differ_between_clients_but_not_between_calls() -> None:
    given = Given()
    together = given.entry.generate(given.server, [3, 0, 1])
    for client, made in zip([3, 0, 1], together, strict=True):
        assert {name: tuple(tensor.shape) for name, tensor in made.items()} == given.targets
        assert_states_close(made, given.made(client))
    for name in given.targets:
        assert float((together[0][name] - together[1][name]).abs().max()) > 1e-3


def test_embeddings_of_others_move_by_momentum_and_decay_alone() -> None:
    still = Given(server_lr=0.1, server_momentum=0.0, server_weight_decay=0.0)
    before = still.embedding
    still.step(still.updates([0, 3]))
    moved = (still.embedding != before).any(1)
    assert moved.tolist() == [True, False, False, True, False]

    decayed = Given(server_lr=0.1, server_momentum=0.0, server_weight_decay=0.5)
    before = decayed.embedding
    decayed.step(decayed.updates([0, 3]))
    torch.testing.assert_close(decayed.embedding[[1, 2, 4]], before[[1, 2, 4]] * (1 - 0.1 * 0.5))

    rolling = Given(server_lr=0.1, server_momentum=0.9, server_weight_decay=0.0)
    start = rolling.embedding
    rolling.step(rolling.updates([0]))
    first = rolling.embedding
    rolling.step(rolling.updates([3]))
    torch.testing.assert_close(rolling.embedding[0] - first[0], 0.9 * (first[0] - start[0]))
    assert float((first[0] - start[0]).abs().max()) > 0


def test_the_defaults_of_fedtp_are_the_papers() -> None:
    entry: Any = METHODS.create("fedtp")
    assert (entry.embedding, entry.hidden, entry.layers) == (32, 150, 4)
    assert (entry.server_lr, entry.server_momentum, entry.server_weight_decay) == (0.01, 0.9, 1e-3)
    with torch.device("meta"):
        params = HyperNetwork(100, 32, 150, 4, {str(block): (1536, 128) for block in range(8)}).init(0)
    numbers = {kind: sum(t.numel() for name, t in params.items() if kind in name) for kind in ("emb", "mlp", "heads")}
    assert numbers == {"emb": 3_200, "mlp": 72_900, "heads": 237_502_464}


def test_a_hypernetwork_starts_as_pytorch_starts_its_layers() -> None:
    sizes = HyperNetwork(300, 20, 64, 2, {"a": (30, 10), "b": (7,)})
    torch.manual_seed(9)
    expected = torch.rand(1)
    torch.manual_seed(9)
    params = sizes.init(1)
    assert torch.equal(torch.rand(1), expected)
    assert params["embedding"].shape == (300, 20)
    assert abs(float(params["embedding"].std()) - 1) < 0.05
    assert params["heads.a.weight"].shape == (300, 64)
    for name, width in (("mlp.0", 20), ("mlp.1", 64), ("heads.a", 64), ("heads.b", 64)):
        largest = max(float(params[f"{name}.{part}"].abs().max()) for part in ("weight", "bias"))
        assert 0.9 * width**-0.5 < largest <= width**-0.5
    assert all(torch.equal(params[name], tensor) for name, tensor in sizes.init(1).items())
    assert not torch.equal(sizes.init(2)["embedding"], params["embedding"])


def test_evaluation_does_not_change_the_hypernetwork() -> None:
    often, once = (
        run(method("fedtp"), backbone("tiny_vit"), evaluation=evaluation).weights
        for evaluation in (EVERY_ROUND, type(EVERY_ROUND)(window=0, curve_every=0))
    )
    assert all(torch.equal(often[name], once[name]) for name in often)
